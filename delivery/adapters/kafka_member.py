"""Membership of a consumer group: says what is ours and commits for it; reads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import SyncGroupRequest

from delivery.adapters.kafka_assignor import FewMovesAssignor
from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.model import Partition
from delivery.ports import NOTHING, Clock, CommitRefused

log = structlog.get_logger(__name__)

# Past max_poll_interval_ms without a poll the client leaves the group, although there is nothing to read.
POLL_S = 0.2
LEAVE_S = 5.0
# Topic names of up to 249 characters: an OffsetCommit request stays under 400 KiB.
COMMIT_CHUNK = 1_000


class KafkaMember(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka ships no types
    """`delivery.ports.Member` on aiokafka.

    `before_rebalance` is awaited in the revoke callback; it must end by itself within about two seconds.
    `after_rebalance(assigned, lapsed)` is called with each assignment, before anything can be committed for it.
    """

    def __init__(self, connection: KafkaConnection, topics: KafkaTopics, group: str, clock: Clock) -> None:
        self._connection = connection
        self._topics_client = topics
        self._group = group
        self._clock = clock
        self._consumer: AIOKafkaConsumer | None = None
        self._assignor = FewMovesAssignor.for_one_member()
        self._topics: frozenset[str] = frozenset()
        self._proof = float("-inf")
        # When the assignment that the group gave last was asked for.
        self._synced = float("-inf")
        # Who we were in the group when the latest assignment came, and in which generation.
        self._membership: tuple[str, int] = ("", -1)
        self._lapsed_in = 0
        self._changed = asyncio.Event()
        self.before_rebalance: Callable[[], Awaitable[None]] | None = None
        self.after_rebalance: Callable[[frozenset[Partition], bool], None] | None = None
        self.assigned: frozenset[Partition] = frozenset()
        self.epoch = 0
        self.settled_in = False

    async def start(self) -> None:
        """Connect. The group is joined with the first `subscribe`."""
        self._assignor.leaving = False
        self._consumer = self._connection.member(self._group, self._assignor)
        await self._consumer.start()
        self._watch(self._consumer)

    async def stop(self) -> None:
        """Leave the group, so that others take over at once."""
        self.settled_in = False
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                await asyncio.wait_for(consumer.stop(), LEAVE_S)
            except (KafkaError, TimeoutError) as error:
                log.warning("leaving the group failed", group=self._group, error=type(error).__name__)

    def subscribe(self, topics: Collection[str]) -> None:
        """Join, or join again, for these topics; they must exist."""
        wanted = frozenset(topics)
        if self._consumer is None or not wanted or wanted == self._topics:
            return
        self._topics = wanted
        self._consumer.subscribe(sorted(wanted), listener=self)

    def retire(self) -> None:
        """Join once more and ask for nothing: the others have everything before this member is gone.

        A member that only leaves keeps its queues waiting until the others have heard of it by their heartbeats.
        """
        if self._consumer is not None and self._topics:
            self._assignor.leaving = True
            self._consumer._coordinator.request_rejoin()

    @property
    def topics(self) -> frozenset[str]:
        """What is subscribed now."""
        return self._topics

    def proven(self) -> bool:
        """A heartbeat or commit was answered recently enough for the broker not to have expelled us since."""
        return self._clock.monotonic() - self._proof <= self._connection.proof_s

    def lapsed(self, seen_epoch: int) -> bool:
        """One of the assignments since then may have come after others had what we held."""
        return self._lapsed_in > seen_epoch

    async def next_assignment(self, seen_epoch: int) -> None:
        """Wait until an assignment newer than `seen_epoch` is there."""
        while self.epoch <= seen_epoch:
            self._changed.clear()
            await self._changed.wait()

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """The group rebalances: no commit is started from here until the next assignment."""
        if self.before_rebalance is not None and self.settled_in:
            await self.before_rebalance()
        self.settled_in = False

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Only note it: heartbeats stop while this runs."""
        if self._consumer is None:
            return
        for partition in assigned:
            # A position saves the client a look-up; nothing is read, since the partition is paused.
            self._consumer.seek(partition, 0)
            self._consumer.pause(partition)
        lapsed = not (self._goes_on(self._consumer._coordinator) or self.proven() or self.epoch == 0)
        if not lapsed:
            # From when it was asked for, as with a commit.
            self._proof = max(self._proof, self._synced)
        else:
            # Loops that have not heard yet would go on with what another had: the next heartbeat proves us.
            self._lapsed_in = self.epoch + 1
        self.assigned = frozenset(Partition(p.topic, p.partition) for p in assigned)
        if self.after_rebalance is not None:
            self.after_rebalance(self.assigned, lapsed)
        self.epoch += 1
        self.settled_in = True
        self._changed.set()

    async def commit(
        self, offsets: Mapping[Partition, int], timeout_s: float, metadata: Mapping[Partition, str] = NOTHING
    ) -> None:
        """Commit for partitions of the present assignment. Raises CommitRefused."""
        if self._consumer is None or not self.settled_in:
            raise CommitRefused("the group is rebalancing")
        if not offsets.keys() <= self.assigned:
            raise CommitRefused("not all of these partitions are ours any more")
        entries = list(offsets.items())
        for start in range(0, len(entries), COMMIT_CHUNK):
            chunk = {
                TopicPartition(*p): (offset, metadata[p]) if p in metadata else offset
                for p, offset in entries[start : start + COMMIT_CHUNK]
            }
            sent = self._clock.monotonic()
            try:
                # Not longer: a commit that aiokafka retries over a rebalance would go out with the new
                # generation and overwrite what the new owner has committed.
                await asyncio.wait_for(self._consumer.commit(chunk), timeout_s)
            except (KafkaError, TimeoutError) as error:
                raise CommitRefused(type(error).__name__) from error
            # From when it was sent: a worker that was frozen reads an answer that says nothing about now.
            self._proof = max(self._proof, sent)

    async def committed(self, partitions: Collection[Partition]) -> dict[Partition, int | None]:
        """The group's committed offsets. Raises Unreachable."""
        # Not through the group's own connection: there it would queue behind a JoinGroup.
        return await self._topics_client.committed(self._group, partitions)

    async def metadata(self, partitions: Collection[Partition]) -> dict[Partition, str]:
        """The text beside the group's committed offsets, where there is any. Raises Unreachable."""
        return await self._topics_client.metadata(self._group, partitions)

    async def run(self) -> None:
        """Poll for ever: that alone keeps the client in the group."""
        while True:
            consumer = self._consumer
            if consumer is None or not self._topics:
                await asyncio.sleep(POLL_S)
                continue
            if consumer._coordinator._coordination_task.done():
                # Heartbeats would go on, and the group would wait for a member that never joins again.
                raise RuntimeError(f"the Kafka client left the group {self._group} to itself")
            try:
                await consumer.getmany(timeout_ms=int(POLL_S * 1000))
            except (KafkaError, AssertionError) as error:
                if consumer is self._consumer:
                    log.warning("group member", group=self._group, error=type(error).__name__)
                await asyncio.sleep(POLL_S)

    def _goes_on(self, coordinator: Any) -> bool:
        """This generation of the group is the next after the one in which we had our assignment, as the same member.

        So nobody else had what we held, however long it took: with a dead member in the group, JoinGroup is answered
        when that one's session ends, and nothing proves us meanwhile.
        """
        before, self._membership = self._membership, (coordinator.member_id, coordinator.generation)
        return self._membership == (before[0], before[1] + 1)

    def _watch(self, consumer: AIOKafkaConsumer) -> None:
        """Note when the group answers us: aiokafka tells nobody, and only an answer proves membership."""
        coordinator = consumer._coordinator
        heartbeat, send = coordinator._do_heartbeat, coordinator._send_req

        async def watched_send(request: Any) -> Any:
            sent = self._clock.monotonic()
            response = await send(request)
            if isinstance(request, SyncGroupRequest) and response.error_code == 0:
                self._synced = sent
            return response

        async def watched() -> bool:
            sent = self._clock.monotonic()
            answered = bool(await heartbeat())
            if answered:
                self._proof = max(self._proof, sent)
            return answered

        coordinator._do_heartbeat, coordinator._send_req = watched, watched_send
