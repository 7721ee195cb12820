"""Marks a request that must not be sent twice as dispatched, before any byte of it leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from delivery.commit_pump import COMMIT_TIMEOUT_S
from delivery.policy.dispatch import known, next_mark, unconfirmed, unresolved
from delivery.policy.standing import Fate
from delivery.policy.steps import Send, Step
from delivery.ports import Clock, CommitRefused, Member
from delivery.recording import Recording
from delivery.settle import Settle
from delivery.tenure import Tenure

# A coordinator that moves, or a rebalance that this member has not heard of yet, is over sooner; then it is a fault.
PATIENCE_S: Final = 3.0
# Between two tries.
REFUSED_S: Final = 0.1
# A turn in RATE that is used later is given up, since many such at once, after Kafka stood still, are no rate; so is a
# slot, which is leased for little longer than a request.
LATE_S: Final = 1.0
# So often in a row it is bad luck; then it is a fault, and asking on would use up turns for nothing.
LATE_IN_A_ROW: Final = 3
_GOES_ON: Final = frozenset({Fate.OPEN, Fate.HELD, Fate.OUR_FAULT})


class CannotRecord(Exception):
    """Kafka did not take the mark: nothing may be sent."""


class Dispatch:
    """For one loop. An idempotent endpoint needs no mark, and none is asked for."""

    def __init__(self, tenure: Tenure, member: Member, settle: Settle, recording: Recording, clock: Clock) -> None:
        self._tenure = tenure
        self._free = tenure.endpoint.idempotent
        self._member = member
        self._settle = settle
        self._recording = recording
        self._clock = clock
        self._late = 0
        # How much later than without a mark a request may end.
        self.takes_s = 0.0 if self._free else PATIENCE_S + COMMIT_TIMEOUT_S

    def possible(self) -> bool:
        """False while the group rebalances, when nothing can be marked."""
        return self._free or self._settle.open

    async def judge(self) -> None:
        """The record in hand was just read: if it was sent and nobody knows the outcome, it is unconfirmed."""
        tenure = self._tenure
        if not self._free and tenure.mark is not None and unresolved(tenure.standing, tenure.mark):
            tenure.standing = unconfirmed(tenure.standing, tenure.mark)
            await self._recording.remember()

    async def ready(self, timeout_s: float, decided: Callable[[], Step]) -> float | None:
        """Mark the request; the time that it may take, or None when it may not be sent any more.

        `decided` says what is to be done after that, since it takes time. Raises CannotRecord.
        """
        if self._free:
            return timeout_s
        tenure, began = self._tenure, self._clock.monotonic()
        if await self._marked():
            step = decided()
            shared = tenure.endpoint.shared
            limited = shared.rate is not None or shared.max_in_flight is not None
            took_s = self._clock.monotonic() - began
            late = limited and took_s > LATE_S
            self._late = self._late + 1 if late else 0
            if isinstance(step, Send) and not late and tenure.exit() is None and self._member.proven():
                return step.timeout_s
            self.answered()
            if self._late >= LATE_IN_A_ROW and isinstance(step, Send) and self._may_send():
                raise CannotRecord(
                    f"Kafka takes it after {took_s:.1f} s, {LATE_S:g} s is too late for a limited request"
                )
        if not tenure.lost:
            await self._recording.remember()
        if tenure.lost:
            # Also when that came about just now: the next owner has been told to wait.
            await self._recording.tell_next_owner()
        return None

    async def _marked(self) -> bool:
        """False when nobody may send now: the queue is another's, or the group rebalances."""
        tenure, since = self._tenure, self._clock.monotonic()
        while self._may_send():
            tenure.mark = next_mark(tenure.standing, self._clock.wall())
            try:
                await self._settle.put_beside(tenure, tenure.mark.text())
                return True
            except CommitRefused as error:
                # It may be there all the same: the next one is a later one.
                self.answered()
                if self._may_send() and self._clock.monotonic() - since >= PATIENCE_S:
                    raise CannotRecord(str(error)) from error
            await tenure.wait(REFUSED_S)
        return False

    def _may_send(self) -> bool:
        return self._tenure.exit() is None and self._member.proven() and self._settle.open

    def answered(self) -> None:
        """It is known what came of the marked request, be it that it was not sent."""
        if not self._free and self._tenure.mark is not None:
            self._tenure.standing = known(self._tenure.standing, self._tenure.mark)

    async def ended(self) -> None:
        """An attempt has ended. When it is to be made again, nobody need think that it may have been received.

        That stands in the ledger too; Kafka has it for when the ledger is away.
        """
        progress = self._tenure.standing.in_hand
        if self._free or self._tenure.lost or progress is None or progress.fate not in _GOES_ON:
            return
        with contextlib.suppress(CommitRefused):
            await self._settle.put_beside(self._tenure, "")

    def settled(self) -> None:
        """The record is done: whoever comes next must not find it marked."""
        if not self._free:
            self._settle.hurry()
