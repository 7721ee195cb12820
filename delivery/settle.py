"""The only code that completes an offset, and the one pump that commits what is completed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import structlog

from delivery.model import DeadLetterReason, Delivery, OutgoingRecord, Partition
from delivery.naming import dead_letter_topic
from delivery.policy.attempt_facts import AttemptFacts
from delivery.policy.dead_letter import LetterHead, dead_letter, shrink
from delivery.ports import CommitRefused, DeadLetters, DeadLetterTooLarge, Member, Meter
from delivery.tenure import Tenure

log = structlog.get_logger(__name__)

COMMIT_TIMEOUT_S = 3.0
# In the revoke callback, with everybody waiting for us.
REBALANCE_COMMIT_S = 2.0
# A cancelled commit has nothing to wait for.
CANCEL_S = 0.1
# Between two looks whether a commit has arrived.
LOOK_S = 0.005
# Kafka does not take it now; ten tries a second would not change that.
REFUSED_S = 0.5


class CommitPump:
    """Commits marks: at most one commit in flight, one every `interval_s` while something is settled.

    Nothing is committed between revoke and assign: such a commit queues behind JoinGroup on the same connection, is
    answered with an old generation and makes the client join once more, for ever.
    """

    def __init__(self, member: Member, interval_s: float) -> None:
        self._member = member
        self._interval_s = interval_s
        self._marks: dict[Partition, int] = {}
        self._dirty = asyncio.Event()
        self._pending: asyncio.Task[None] | None = None
        self._refused = False
        self._hurry = asyncio.Event()
        self._acknowledged: dict[Partition, int] = {}
        # The epoch whose assignment has been revoked.
        self._closed_in = -1

    def mark(self, partition: Partition, next_offset: int) -> None:
        """Everything before `next_offset` is settled."""
        self._marks[partition] = next_offset
        if not self._dirty.is_set():
            self._dirty.set()

    def forget(self, partition: Partition) -> None:
        """The partition is not ours any more: its marks say nothing."""
        self._marks.pop(partition, None)
        self._acknowledged.pop(partition, None)

    def acknowledged(self, partition: Partition) -> int:
        """Kafka is known to have committed everything before this offset; -1 when it is not known."""
        return self._acknowledged.get(partition, -1)

    def hurry(self) -> None:
        """Commit without waiting for the interval."""
        self._hurry.set()

    async def run(self) -> None:
        """Commit for ever."""
        while True:
            await self._dirty.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._hurry.wait()
            self._hurry.clear()
            if self._member.settled_in and self._pending is None:
                self._refused = False
                await self._commit_alone(COMMIT_TIMEOUT_S)
                if self._refused:
                    await asyncio.sleep(REFUSED_S)

    async def prove(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        """Commit these offsets for queues that are being taken over. Raises CommitRefused.

        Like every other commit it is the only one in flight, and none is begun once the group rebalances.
        """
        while self._pending is not None:
            await asyncio.wait([self._pending])
        if self._closed_in == self._member.epoch:
            raise CommitRefused("the group is rebalancing")
        task = self._pending = asyncio.create_task(self._member.commit(offsets, timeout_s), name="proof")
        try:
            await _ended(task, timeout_s)
        finally:
            if self._pending is task:
                self._pending = None
        if not task.done() or task.cancelled():
            raise CommitRefused("given up")
        task.result()
        self._acknowledged.update(offsets)

    async def before_rebalance(self) -> None:
        """Finish or give up the commit in flight, then commit what is settled by now: two seconds in all."""
        self._closed_in = self._member.epoch
        loop = asyncio.get_running_loop()
        end = loop.time() + REBALANCE_COMMIT_S
        await self._end_pending(REBALANCE_COMMIT_S)
        left_s = end - loop.time()
        if left_s > 0:
            await self._commit_alone(left_s)

    async def flush(self) -> bool:
        """Commit what is settled, now. False when Kafka did not take it."""
        await self._end_pending(COMMIT_TIMEOUT_S)
        await self._commit_alone(COMMIT_TIMEOUT_S)
        return not self._marks

    async def _end_pending(self, timeout_s: float) -> None:
        task = self._pending
        if task is not None:
            await _ended(task, timeout_s)

    async def _commit_alone(self, timeout_s: float) -> None:
        """While `_pending` is set, nobody else starts a commit."""
        task = self._pending = asyncio.create_task(self._commit(timeout_s), name="commit")
        try:
            await _ended(task, timeout_s)
        finally:
            if self._pending is task:
                self._pending = None

    async def _commit(self, timeout_s: float) -> None:
        owned = self._member.assigned
        sent = {partition: offset for partition, offset in self._marks.items() if partition in owned}
        if not sent:
            self._marks.clear()
            self._dirty.clear()
            return
        try:
            await self._member.commit(sent, timeout_s)
        except CommitRefused as error:
            log.warning("commit refused", partitions=len(sent), error=str(error))
            self._refused = True
            return
        except Exception as error:
            # Whatever the client raises, the marks are kept and the pump goes on.
            log.error("commit failed", partitions=len(sent), exc_info=error)
            return
        for partition, offset in sent.items():
            self._acknowledged[partition] = offset
            if self._marks.get(partition) == offset:
                del self._marks[partition]
        if not self._marks:
            self._dirty.clear()


async def _ended(task: asyncio.Task[None], timeout_s: float) -> None:
    """Wait for a commit; cancel one that takes longer.

    It would be retried after the rebalance, with the new generation, over the new owner's offset.
    """
    _, late = await asyncio.wait([task], timeout=timeout_s)
    if late:
        log.warning("commit given up", after_s=round(timeout_s, 3))
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_S)


class Settle:
    """Completes deliveries. What a former owner reports is dropped: the queue goes on where its owner stands."""

    def __init__(self, pump: CommitPump, dead_letters: DeadLetters, prefix: str, meter: Meter) -> None:
        self._pump = pump
        self._dead_letters = dead_letters
        self._prefix = prefix
        self._meter = meter

    def complete(self, tenure: Tenure, delivery: Delivery) -> None:
        """Mark the record done and drop it from the mailbox."""
        mailbox = tenure.mailbox
        if tenure.lost or mailbox is None:
            return
        mailbox.pop()
        tenure.settled_to = delivery.queue.offset + 1 if len(mailbox) else mailbox.next_offset
        self._pump.mark(tenure.partition, tenure.settled_to)

    def hurry(self) -> None:
        """Commit what is settled at once."""
        self._pump.hurry()

    async def keep_up(self, tenure: Tenure, most: int) -> None:
        """Wait until at most `most` offsets are settled and not known to be committed: so many are sent twice at most.

        Ends with the tenure.
        """
        while tenure.exit() is None and tenure.settled_to - self._pump.acknowledged(tenure.partition) > most:
            self._pump.hurry()
            await tenure.wait(LOOK_S)

    async def dead_letter(
        self, tenure: Tenure, delivery: Delivery, reason: DeadLetterReason, facts: AttemptFacts
    ) -> None:
        """Have Kafka acknowledge the dead letter, then complete. Raises DeadLetterUnwritable, DeadLetterTooLarge."""
        endpoint = tenure.endpoint
        head = LetterHead(
            topic=dead_letter_topic(self._prefix, endpoint.tenant),
            tenant=endpoint.tenant,
            endpoint=endpoint.name,
            reason=reason,
            excerpt_bytes=endpoint.excerpt_bytes,
        )
        await write_dead_letter(self._dead_letters, dead_letter(delivery, head, facts))
        self._meter.dead_letter(endpoint, reason)
        self.complete(tenure, delivery)


async def write_dead_letter(dead_letters: DeadLetters, record: OutgoingRecord) -> None:
    """Have Kafka acknowledge it, smaller if it must be. Raises DeadLetterUnwritable, DeadLetterTooLarge."""
    try:
        await dead_letters.write(record)
    except DeadLetterTooLarge:
        limit = await dead_letters.limit_bytes(record.topic)
        smaller = None if limit is None else shrink(record, limit)
        if smaller is None:
            raise
        await dead_letters.write(smaller)
