"""Where logs begin and end, asked through a consumer that reads others meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from delivery.model import Partition
from delivery.ports import Unreachable

OFFSETS_TIMEOUT_S = 10.0


class KafkaEdges:
    """Looks first and end offsets up, several at a time.

    The client knows only the topics that it was told last, also from within `assign`. A look-up that loses its topics
    to that finds them again one by one: ten seconds for a hundred queues. So they are kept until it is over.
    """

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        # The topics that are being looked up, and by how many.
        self._asked: Counter[str] = Counter()
        self._set_topics = consumer._client.set_topics
        consumer._client.set_topics = self._set_more

    def _set_more(self, topics: Collection[str]) -> Awaitable[Any]:
        known: Awaitable[Any] = self._set_topics({*topics, *self._asked})
        return known

    async def of(self, partitions: Collection[Partition], *, newest: bool) -> dict[Partition, int]:
        """The first offset of each, or the one behind the last. Raises Unreachable."""
        if not partitions:
            return {}
        look_up = self._consumer.end_offsets if newest else self._consumer.beginning_offsets
        asked = Counter({partition.topic for partition in partitions})
        self._asked += asked
        try:
            async with asyncio.timeout(OFFSETS_TIMEOUT_S):
                # In one request: the client would ask for the topics one after the other, a thousand in a minute.
                await self._consumer._client.set_topics({p.topic for p in self._consumer.assignment()})
                found = await look_up([TopicPartition(*p) for p in partitions])
        except (KafkaError, TimeoutError) as error:
            raise Unreachable(f"Kafka: {type(error).__name__}") from error
        finally:
            self._asked -= asked
        return {Partition(p.topic, p.partition): int(offset) for p, offset in found.items()}
