"""Writing one event to a source topic, as another program would."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Final

from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.model import Headers, Position
from delivery.ports import Unreachable

WRITE_S: Final = 10.0
CLOSE_S: Final = 5.0


class EventRefused(Exception):
    """Kafka answered, and did not take the record."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where an acknowledged record stands, and the time that it carries (Unix milliseconds)."""

    position: Position
    time_ms: int


async def write_event(
    connection: KafkaConnection, topic: str, *, key: bytes | None, value: bytes, headers: Headers
) -> Written:
    """Write to an existing topic; its key chooses the partition. Raises Unreachable or EventRefused."""
    producer = connection.producer(WRITE_S)
    try:
        async with asyncio.timeout(2 * WRITE_S):
            await producer.start()
            placed = await producer.send_and_wait(topic, value, key=key, headers=list(headers))
    except (KafkaConnectionError, KafkaTimeoutError, TimeoutError, OSError) as error:
        raise Unreachable(f"Kafka: {type(error).__name__}") from error
    except KafkaError as error:
        raise EventRefused(f"topic {topic}: {type(error).__name__}") from error
    finally:
        with contextlib.suppress(KafkaError, TimeoutError, OSError):
            await asyncio.wait_for(producer.stop(), CLOSE_S)
    position = Position(topic=placed.topic, partition=placed.partition, offset=placed.offset)
    return Written(position=position, time_ms=placed.timestamp)
