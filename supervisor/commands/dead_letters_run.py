"""One run of a replay over a tenant's dead letters, in the order that makes it exact.

First the producer: its start fences any other run for the tenant and ends what that had begun. Then everything that
was written to the dead-letter topic by now is read, to its end: a receipt that stands behind an open transaction of
somebody else (a fan-out writes there, too) is waited for. Only then is it known what has not been sent again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from rich.progress import Progress

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_inspection import edges
from delivery.adapters.kafka_producers import TRANSACTION_TIMEOUT_S
from delivery.adapters.kafka_replay import KafkaReplayProducer, start_replay
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.model import Partition
from delivery.naming import queue_topic, replay_transactional_id
from delivery.policy.letter_book import Choice, LetterBook, LetterFilter
from delivery.ports import Fenced, Unreachable
from delivery.replay import Replay, Tally, Terms
from supervisor.clock import SystemClock
from supervisor.commands.dead_letters import at_offsets, read_book
from supervisor.configuration import Configuration
from supervisor.failure import Failed
from supervisor.own_topics import largest_bytes, misconfigured

# A fan-out that died leaves a transaction open: until its successor starts, or for its time limit and the 10 s that the
# broker takes to look for such transactions, with as much again for a slow one.
PATIENCE_S: Final = TRANSACTION_TIMEOUT_S + 20.0


class TakenOver(Exception):
    """A later run has started; the text says how far this one came."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is the same for all tenants."""

    configuration: Configuration
    connection: KafkaConnection
    topics: KafkaTopics
    letters: LetterFilter
    choose: Callable[[str, LetterBook], Choice]
    to: str | None
    rate: float | None
    run_id: str
    stop: asyncio.Event
    bar: Progress

    async def tenant(self, tenant: str, partition: Partition) -> tuple[Choice, Tally]:
        """Raises TakenOver, Failed, Misused or Unreachable."""
        queues = await self._queues(tenant)
        transactional_id = replay_transactional_id(self.configuration.prefix, tenant)
        producer = await start_replay(self.connection, transactional_id)
        try:
            self.bar.console.print(
                f"{tenant}: run {self.run_id} has started; any earlier one is ended", markup=False, soft_wrap=True
            )
            choice = await self._choose(tenant, partition)
            return choice, await self._send(tenant, partition, producer, choice, queues)
        finally:
            await producer.close()

    async def _queues(self, tenant: str) -> dict[str, int | None]:
        """The queues that there are, with what they take. Raises Failed when one is not fit to be one."""
        wanted = {queue_topic(self.configuration.prefix, e.tenant, e.name) for e in self.configuration.endpoints}
        mine = {queue_topic(self.configuration.prefix, tenant, e.name) for e in self.configuration.endpoints} & wanted
        found = await self.topics.describe(await self.topics.existing(mine))
        wrong = [f"{name} {fault}" for name, topic in found.items() if (fault := misconfigured(topic)) is not None]
        if wrong:
            raise Failed(f"topic {wrong[0]}")
        return {name: largest_bytes(topic) for name, topic in found.items()}

    async def _choose(self, tenant: str, partition: Partition) -> Choice:
        within = (await edges(self.connection, [partition], committed=False))[partition]
        book = await read_book(self.connection, partition, within, tenant, self.letters, patience_s=PATIENCE_S)
        return self.choose(tenant, book)

    async def _send(
        self,
        tenant: str,
        partition: Partition,
        producer: KafkaReplayProducer,
        choice: Choice,
        queues: dict[str, int | None],
    ) -> Tally:
        for endpoint in choice.endpoints:
            queue = queue_topic(self.configuration.prefix, tenant, endpoint)
            if queue not in queues:
                raise Failed(f"topic {queue} does not exist: delivery check --create-topics")
        terms = Terms(
            prefix=self.configuration.prefix, tenant=tenant, run=self.run_id, queues=queues, to=self.to, rate=self.rate
        )
        task = self.bar.add_task(tenant, total=len(choice.chosen))
        replay = Replay(terms, producer, SystemClock(), self.stop, lambda count: self.bar.advance(task, count))
        try:
            async with aclosing(at_offsets(self.connection, partition, choice.chosen.keys())) as batches:
                await replay.send(batches, choice.chosen)
        except Fenced as error:
            sent = sum(replay.tally.sent.values())
            raise TakenOver(
                f"a later replay of {tenant} has taken over; this one ended after {sent} of {len(choice.chosen)} events"
            ) from error
        except Unreachable as error:
            sent = sum(replay.tally.sent.values())
            raise Failed(
                f"ended after {sent} of {len(choice.chosen)} events of {tenant}: {error}. Whether the batch in hand "
                "was written is found out by running it again"
            ) from error
        return replay.tally
