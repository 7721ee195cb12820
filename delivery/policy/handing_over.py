"""What an owner of a queue makes of what the former one left behind."""

from __future__ import annotations

import dataclasses

from delivery.model import Endpoint, HaltReason
from delivery.policy.halting import halted
from delivery.policy.standing import Fate, Standing
from delivery.policy.steps import Halt

# While the shared state is away nobody can say what another worker has just sent: as long as a halt pauses at least.
UNKNOWN_PAUSE_S = 10.0
# What an owner that did not let go can have sent behind the last commit that is known, and what may have ended it.
SUSPECT_OFFSETS = 256


def start_offset(committed: int, settled_to: int | None, committed_to: int | None) -> int:
    """Where to begin.

    A former owner that let go had settled everything before `settled_to` and knew Kafka to be at `committed_to`. Its
    word counts while Kafka is between the two: an operator who has set the group's offset back wants those again.
    """
    if settled_to is None or committed_to is None or not committed_to <= committed <= settled_to:
        return committed
    return settled_to


def inherited(standing: Standing, *, start: int, clean: bool, settled_to: int | None) -> Standing:
    """How the endpoint stands for an owner that begins at `start`.

    When the former owner let go and Kafka is elsewhere, somebody has worked without the ledger: only waits hold on.
    Attempts that were made for another record than the first say nothing any more.
    """
    if clean and settled_to is not None and start != settled_to:
        return _waits_only(standing)
    if standing.in_hand is not None and standing.in_hand.offset < start:
        return dataclasses.replace(standing, in_hand=None)
    return standing


def _waits_only(standing: Standing) -> Standing:
    return Standing(
        not_before=standing.not_before,
        halt=standing.halt,
        halt_detail=standing.halt_detail,
        halted_wall_s=standing.halted_wall_s,
        due_at=standing.due_at,
        apart=standing.apart,
    )


def unknown(standing: Standing, now: float, wall_s: float) -> Standing:
    """While nobody can say how the endpoint stands, it is left in peace for ten seconds."""
    due_at = max(standing.due_at or 0.0, now + UNKNOWN_PAUSE_S)
    return dataclasses.replace(
        standing, halt=HaltReason.REDIS, halt_detail="the shared state is away", halted_wall_s=wall_s, due_at=due_at
    )


def may_have_been_sent(standing: Standing, now: float) -> bool:
    """Whether an owner that did not let go can have been sending its first record, by what it had written down.

    A record that waits, for its next attempt or for the end of a halt, is not what ended that worker, however often
    workers end meanwhile. The halt that is reserved before the request which could be the last of a streak is none yet.
    """
    next_at = standing.not_before if standing.in_hand is None else max(standing.not_before, standing.in_hand.next_at)
    if standing.halt is not None and standing.halt is not HaltReason.REJECTIONS:
        next_at = max(next_at, standing.due_at or 0.0)
    return next_at <= now


def suspected(standing: Standing) -> Standing:
    """The record in hand is the first after an owner that did not let go: it may be what ended that worker."""
    progress = standing.in_hand
    if progress is None or progress.fate is not Fate.OPEN:
        return standing
    return dataclasses.replace(standing, in_hand=dataclasses.replace(progress, crashes=progress.crashes + 1))


def reserved(standing: Standing, endpoint: Endpoint, now: float, wall_s: float, timeout_s: float) -> Standing | None:
    """What a successor has to find if this worker dies with the request that it is about to send; None for nothing.

    A request at an endpoint that has just rejected counts as one more rejection, and the one that could be the last
    of the streak as a halt from the end of its time.
    """
    if standing.streak == 0:
        return None
    counted = dataclasses.replace(standing, streak=standing.streak + 1)
    if counted.streak < endpoint.halt.after:
        return counted
    return halted(counted, endpoint, Halt(reason=HaltReason.REJECTIONS), now + timeout_s, wall_s)
