"""The transactional producer of a replay."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

from aiokafka.errors import KafkaError

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_producers import CLOSE_S, START_S, KafkaLaneProducer
from delivery.model import OutgoingRecord
from delivery.ports import Fenced, Unreachable

# A run that is killed leaves a transaction open, and readers of the queues that it wrote to wait behind it: until the
# next run starts, or for this time and the 10 s that the broker takes to look for such transactions.
TRANSACTION_S: Final = 3.0
WRITE_S: Final = 10.0


class KafkaReplayProducer:
    """After any error it is good for nothing but `close`."""

    def __init__(self, lane: KafkaLaneProducer) -> None:
        self._lane = lane

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        """One transaction.

        Raises Fenced when another producer with this id has started. Raises Unreachable when Kafka does not take it
        in time; then it is not known whether it was committed, but the next producer's start settles that.
        """
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(WRITE_S):
                await self._lane.write(records, {})
        except Fenced as error:
            # A broker that ends a transaction for its age fences its producer, too.
            if time.monotonic() - began_s >= TRANSACTION_S:
                raise Unreachable(f"Kafka: a transaction took longer than {TRANSACTION_S:.0f} s") from error
            raise
        except (KafkaError, TimeoutError, OSError, AssertionError) as error:
            raise Unreachable(f"Kafka: {type(error).__name__}") from error

    async def close(self) -> None:
        """Never raises and never waits long."""
        await self._lane.close()


async def start_replay(connection: KafkaConnection, transactional_id: str) -> KafkaReplayProducer:
    """Fence every other producer with this id and end what it left open. Raises Unreachable."""
    producer = connection.transactional(transactional_id, TRANSACTION_S)
    try:
        await asyncio.wait_for(producer.start(), START_S)
    except BaseException as error:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(producer.stop(), CLOSE_S)
        if isinstance(error, KafkaError | TimeoutError | OSError):
            raise Unreachable(f"Kafka: {type(error).__name__}") from error
        raise
    return KafkaReplayProducer(KafkaLaneProducer(producer, group=""))
