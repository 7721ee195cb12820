"""One worker's time with one queue: what a loop may do while the queue is ours, and how it is told that it is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from delivery.mailbox import Mailbox
from delivery.model import Endpoint, LoopExit, Partition, Revoked, Stopped
from delivery.policy.dispatch import Mark
from delivery.policy.orders import NO_ORDERS, Ordered, Orders, ordered
from delivery.policy.standing import FRESH, Standing
from delivery.ports import TakenOver

# A queue that was lost to a later token is let go within a second; the ledger answers within half of one.
LET_GO_S = 3.0


class Tenure:
    """From taking a queue over to losing it.

    `standing` is what the next loop begins with, `settled_to` the offset before which everything is settled.
    """

    def __init__(self, partition: Partition, endpoint: Endpoint) -> None:
        self.partition = partition
        self.endpoint = endpoint
        self.token = 0
        self.taken: TakenOver | None = None
        self.settled_to = 0
        self.standing: Standing = FRESH
        # What the ledger holds, as far as this owner knows.
        self.recorded: Standing = FRESH
        # Who tells the ledger something, one after the other, since what is told last stays.
        self.pen = asyncio.Lock()
        self._telling = 0
        self.orders: Orders = NO_ORDERS
        self.mailbox: Mailbox | None = None
        self.ready = False
        # Kafka has forgotten how far the queue had been read; it stands still until an operator says where to go on.
        self.offset_lost = False
        self.offset_lost_since: float | None = None
        self.lost = False
        self.stopping = False
        self.assigned_at = 0.0
        # The first record after an owner that did not let go, until it has been counted; and the offset up to which
        # each record is committed before the next is taken.
        self.suspect = False
        self.careful_to = -1
        # The latest request that was marked as dispatched, by this owner or the one before.
        self.mark: Mark | None = None
        self.sending_since: float | None = None
        # Until when at most a next owner has to wait for what the loop does with the record in hand.
        self.busy_until: float | None = None
        # Until when the loop waits at the latest, None while it does not; for whoever watches.
        self.waiting_until: float | None = None
        # What a wait is for that has nothing to do with the record in hand; for whoever watches.
        self.waits_for = ""
        self._interrupted = asyncio.Event()
        self._released = asyncio.Event()

    def lose(self) -> None:
        """The queue is another's: no new request."""
        self.lost = True
        self._interrupt()

    def released(self) -> None:
        """The next owner can know where this one stood."""
        self._released.set()

    async def let_go(self) -> None:
        """Wait until that is so, a few seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LET_GO_S):
                await self._released.wait()

    @contextlib.contextmanager
    def under_way(self, until: float) -> Iterator[None]:
        """Something is done with the record in hand that a next owner must not do again.

        It has to be over, and its outcome written down, before this ends.
        """
        self.busy_until = until
        try:
            yield
        finally:
            self.busy_until = None

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """The ledger is about to be told something: when the queue is lost meanwhile, the hand-over says it."""
        self._telling += 1
        try:
            yield
        finally:
            self._telling -= 1

    @property
    def writing(self) -> bool:
        """The ledger is being told something: whether that arrives before the queue is another's is not known."""
        return self._telling > 0

    def stop(self) -> None:
        """The worker stops: no new request, but what is in flight still counts."""
        self.stopping = True
        self._interrupt()

    def obey(self, orders: Orders) -> None:
        """What an operator has ordered by now; a loop that waits looks again."""
        self.orders = orders
        self._interrupt()

    def ordered(self, queued_ms: int | None) -> Ordered:
        """What the orders say now; `queued_ms` is when the record in hand was queued, None while it is not read."""
        progress = self.standing.in_hand
        in_hand = None if progress is None else progress.offset
        return ordered(self.orders, self.settled_to, in_hand, queued_ms)

    def wake(self) -> None:
        """What the loop waits for has come."""
        self._interrupted.set()

    def _interrupt(self) -> None:
        self._interrupted.set()
        if self.mailbox is not None:
            self.mailbox.wake()

    def exit(self) -> LoopExit | None:
        """Why the loop has to end now; None while it may go on."""
        if self.lost:
            return Revoked()
        if self.stopping:
            return Stopped()
        return None

    async def wait(self, seconds: float, *, until: float | None = None) -> None:
        """Sleep, but not past the end of the tenure, nor past an order; `until` is shown to whoever watches."""
        if seconds <= 0:
            return
        self.waiting_until = until
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._interrupted.wait()
        finally:
            self.waiting_until = None
        if self.exit() is None:
            self._interrupted.clear()
