"""The parts that follow the control topic, put together: reader, writer, and what the worker knows from them.

And the one that follows the dead-letter topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_control import KafkaControlReader, KafkaControlWriter
from delivery.adapters.kafka_letters import KafkaLetters
from delivery.adapters.kafka_member import KafkaMember
from delivery.control import Control
from delivery.model import Endpoint
from delivery.naming import control_topic, queue_topic
from delivery.ports import Clock
from supervisor.pending_letters import PendingLetters, counts_for

log = structlog.get_logger(__name__)

# The topic is read in a fraction of a second where Kafka answers and it is there.
ORDERS_S: Final = 5.0


class Following:
    """`services` have to be started and stopped, and `forever` has to run; `on_orders` is told a queue's name."""

    def __init__(
        self,
        connection: KafkaConnection,
        prefix: str,
        exists: Callable[[str], Awaitable[bool]],
        clock: Clock,
        on_orders: Callable[[str], None],
    ) -> None:
        topic = control_topic(prefix)
        writer = KafkaControlWriter(connection, topic, exists)
        self.control = Control(clock, writer)
        self.control.on_orders = lambda tenant, endpoint: on_orders(queue_topic(prefix, tenant, endpoint))
        self._reader = KafkaControlReader(
            connection,
            topic,
            exists,
            apply=self.control.apply,
            caught_up=self.control.caught_up,
            made_anew=self.control.made_anew,
        )
        self.services: Mapping[str, Any] = {"control reader": self._reader, "control writer": writer}
        self.forever: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {"control reader": self._reader.run}

    async def before(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run what starts loops when the orders are known; it does not wait for them for ever."""
        if not await self._reader.wait(ORDERS_S):
            log.error("delivering without knowing the orders: a paused endpoint may get requests", after_s=ORDERS_S)
        await run()


def pending_letters(
    connection: KafkaConnection,
    prefix: str,
    exists: Callable[[str], Awaitable[bool]],
    member: KafkaMember,
    queues: Mapping[str, Endpoint],
    clock: Clock,
) -> PendingLetters:
    """Counts for the tenants whose first queue the member owns."""
    tenants = {queue: endpoint.tenant for queue, endpoint in queues.items()}

    def ours() -> frozenset[str]:
        return counts_for(tenants, member.topics, (p.topic for p in member.assigned), proven=member.proven())

    return PendingLetters(KafkaLetters(connection, prefix, exists), ours, clock)
