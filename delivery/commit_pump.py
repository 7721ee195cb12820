"""The one pump that commits what is settled, and marks what is about to be sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

from delivery.commit_task import Text, ended, why
from delivery.model import Partition
from delivery.ports import NOTHING, CommitRefused, Member

COMMIT_TIMEOUT_S = 3.0
# In the revoke callback, with everybody waiting for us.
REBALANCE_COMMIT_S = 2.0
# Kafka does not take it now; ten tries a second would not change that.
REFUSED_S = 0.5

REBALANCING = "the group is rebalancing"
NOT_OURS = "the partition is not ours any more"


class CommitPump:
    """Commits marks: at most one commit in flight, one every `interval_s` while something is settled.

    Nothing is committed between revoke and assign: such a commit queues behind JoinGroup on the same connection, is
    answered with an old generation and makes the client join once more, for ever.

    What was put beside an offset stays beside it until a later offset is committed.
    """

    def __init__(self, member: Member, interval_s: float) -> None:
        self._member = member
        self._interval_s = interval_s
        self._marks: dict[Partition, int] = {}
        self._dirty = asyncio.Event()
        self._pending: asyncio.Task[None] | None = None
        # What was refused, and in how many parts it is tried again.
        self._suspects: dict[Partition, None] = {}
        self._parts = 2
        self._hurry = asyncio.Event()
        self._acknowledged: dict[Partition, int] = {}
        # Told when Kafka has acknowledged a commit of the partition.
        self.watched: dict[Partition, Callable[[], None]] = {}
        # The epoch whose assignment has been revoked.
        self._closed_in = -1
        self._beside: dict[Partition, tuple[int, str]] = {}
        self._waiting: dict[Partition, Text] = {}
        self._putting: asyncio.Task[None] | None = None

    def mark(self, partition: Partition, next_offset: int) -> None:
        """Everything before `next_offset` is settled."""
        self._marks[partition] = next_offset
        if not self._dirty.is_set():
            self._dirty.set()

    def forget(self, partition: Partition) -> None:
        """The partition is not ours any more: its marks say nothing."""
        self._marks.pop(partition, None)
        self._acknowledged.pop(partition, None)
        self._beside.pop(partition, None)
        self._suspects.pop(partition, None)
        wanted = self._waiting.pop(partition, None)
        if wanted is not None:
            wanted.end(NOT_OURS)

    def acknowledged(self, partition: Partition) -> int:
        """Kafka is known to have committed everything before this offset; -1 when it is not known."""
        return self._acknowledged.get(partition, -1)

    @property
    def open(self) -> bool:
        """False while the group rebalances."""
        return self._member.settled_in and self._closed_in != self._member.epoch

    def marked(self, partition: Partition) -> bool:
        """Something of it is settled, and Kafka has not acknowledged that yet."""
        return partition in self._marks

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
            if self.open and self._pending is None and not await self._commit_in_parts():
                await asyncio.sleep(REFUSED_S)

    async def _commit_in_parts(self) -> bool:
        """What is settled, in one commit as long as Kafka takes it. False when something was refused.

        One queue that it takes no commit for must not keep the others. What was refused together is tried again in
        parts, more of them when none was taken; two refusals end a round, since they are not about one queue.
        """
        suspects = [partition for partition in self._suspects if partition in self._marks]
        size = max(1, -(-len(suspects) // self._parts))
        parts = [[partition for partition in self._marks if partition not in self._suspects]]
        parts += [suspects[start : start + size] for start in range(0, len(suspects), size)]
        refused = taken = 0
        for part in parts:
            if refused == 2 or self._pending is not None or not self.open:
                break
            for partition in part:
                self._suspects.pop(partition, None)
            if await self._commit_alone(COMMIT_TIMEOUT_S, part):
                taken += bool(part)
            else:
                # Behind the others, so that two such queues keep nobody either.
                self._suspects |= dict.fromkeys(part)
                refused += 1
        self._parts = max(2, min(2 * self._parts, len(self._suspects))) if refused and not taken else 2
        return not refused

    async def prove(
        self, offsets: Mapping[Partition, int], timeout_s: float, beside: Mapping[Partition, str] = NOTHING
    ) -> None:
        """Commit these offsets, and this beside them, for queues that are being taken over. Raises CommitRefused.

        Like every other commit it is the only one in flight, and none is begun once the group rebalances.
        """
        await self._idle()
        if self._closed_in == self._member.epoch:
            raise CommitRefused(REBALANCING)
        self._beside |= {partition: (offsets[partition], text) for partition, text in beside.items()}
        task = self._begin(offsets, timeout_s, "proof")
        await ended(task, timeout_s)
        if not task.done() or task.cancelled():
            raise CommitRefused("given up")
        task.result()

    async def put_beside(self, partition: Partition, offset: int, text: str) -> None:
        """Commit the offset where the queue stands with this text beside it, at once. Raises CommitRefused.

        Queues that ask at the same time share a commit, and what is settled goes with it.
        """
        wanted = self._waiting[partition] = Text(partition, offset, text)
        if self._putting is None or self._putting.done():
            self._putting = asyncio.create_task(self._put_all(), name="put beside")
        try:
            await wanted.done.wait()
        finally:
            # Nobody waits for it any more: later it would set the offset back.
            wanted.end("given up")
            if self._waiting.get(partition) is wanted:
                del self._waiting[partition]
        if wanted.refused is not None:
            raise CommitRefused(wanted.refused)

    async def _put_all(self) -> None:
        """Until nobody waits."""
        while self._waiting:
            await self._idle()
            batch, self._waiting = [*self._waiting.values()], {}
            began, epoch = asyncio.get_running_loop().time(), self._member.epoch
            several = len(self._marks.keys() | {wanted.partition for wanted in batch}) > 1
            refused = await self._put(batch)
            # One queue that Kafka takes no commit for must not keep the others.
            for wanted in batch if refused not in (None, REBALANCING) and several else ():
                late = asyncio.get_running_loop().time() - began >= COMMIT_TIMEOUT_S
                if late or self._member.epoch != epoch:
                    break
                await self._idle()
                await self._put([wanted], alone=True)
            for wanted in batch:
                wanted.end(refused)

    async def _put(self, batch: Sequence[Text], *, alone: bool = False) -> str | None:
        """Commit these together; why not, when they were refused together. Of one `alone` that is its end."""
        if self._closed_in == self._member.epoch:
            return REBALANCING
        owned = self._member.assigned
        for wanted in batch:
            if wanted.partition not in owned:
                wanted.end(NOT_OURS)
        batch = [wanted for wanted in batch if not wanted.done.is_set()]
        if not batch:
            return None
        beside = {wanted.partition: (wanted.offset, wanted.text) for wanted in batch}
        self._beside |= beside
        offsets = {} if alone else {p: offset for p, offset in self._marks.items() if p in owned}
        offsets |= {partition: offset for partition, (offset, _) in beside.items()}
        task = self._begin(offsets, COMMIT_TIMEOUT_S, "put beside")
        await ended(task, COMMIT_TIMEOUT_S)
        refused = why(task, len(batch))
        for wanted in batch:
            if refused is not None and self._beside.get(wanted.partition) == beside[wanted.partition]:
                # It may be there or not. Whatever is committed next takes it away.
                del self._beside[wanted.partition]
            if refused is None or alone:
                wanted.end(refused)
        return refused

    async def _idle(self) -> None:
        while self._pending is not None:
            await asyncio.wait([self._pending])

    def _begin(self, offsets: Mapping[Partition, int], timeout_s: float, name: str) -> asyncio.Task[None]:
        """While `_pending` is set, nobody else starts a commit. Whoever waits for it may go; it stays until its end."""
        task = self._pending = asyncio.create_task(self._commit(offsets, timeout_s), name=name)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        if self._pending is task:
            self._pending = None
        if not task.cancelled():
            # Asked for, so that it is not reported as never looked at when nobody waits any more.
            task.exception()

    async def _commit(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        beside = {
            partition: text
            for partition, (offset, text) in self._beside.items()
            if text and offsets.get(partition) == offset
        }
        await self._member.commit(offsets, timeout_s, beside)
        self._note(offsets)

    def _note(self, sent: Mapping[Partition, int]) -> None:
        """Kafka has acknowledged these."""
        for partition, offset in sent.items():
            self._acknowledged[partition] = offset
            if self._marks.get(partition) == offset:
                del self._marks[partition]
            if (beside := self._beside.get(partition)) is not None and beside[0] < offset:
                del self._beside[partition]
            if (told := self.watched.get(partition)) is not None:
                told()
        if not self._marks:
            self._dirty.clear()

    def reassigned(self, assigned: Collection[Partition], lapsed: bool) -> None:
        """An assignment came. What others may have had meanwhile is not committed: it would set their offsets back."""
        for partition in [p for p in self._marks if lapsed or p not in assigned]:
            del self._marks[partition]

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
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while self._pending is not None and (left_s := end - loop.time()) > 0:
            await ended(self._pending, left_s)

    async def _commit_alone(self, timeout_s: float, of: Collection[Partition] | None = None) -> bool:
        """Commit the marks of these, or all; they are kept, whatever Kafka says. False when it refuses."""
        owned = self._member.assigned
        wanted = self._marks.keys() if of is None else of
        sent = {
            partition: self._marks[partition] for partition in wanted if partition in self._marks and partition in owned
        }
        if not sent:
            for partition in self._marks.keys() - owned:
                del self._marks[partition]
            if not self._marks:
                self._dirty.clear()
            return True
        task = self._begin(sent, timeout_s, "commit")
        await ended(task, timeout_s)
        return why(task, len(sent)) is None
