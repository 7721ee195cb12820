"""How long a loop that ended by rule pauses, and what the next one begins with."""

from __future__ import annotations

import dataclasses
from typing import Final, assert_never

from delivery.model import Endpoint, HaltReason
from delivery.policy.standing import Fate, Progress, Standing
from delivery.policy.steps import Halt

UNTIL_ORDERED: Final = frozenset({HaltReason.PAUSED, HaltReason.GONE})
"""Only an operator's order ends these."""


def halted(standing: Standing, endpoint: Endpoint, halt: Halt, now: float, wall_s: float) -> Standing:
    """The standing of a loop that ended at `now`: when it starts again, and what it starts with.

    Rejections pause for `pause_s`, lengthened by `growth` for each such halt since the last delivery; failing and held
    endpoints double theirs, and so does a record that crashes its loop. Never sooner than the endpoint asked.
    One that waits for an order has no due time, one whose quota is spent has that at which the quota's window turns.
    A pause and a limit of ours are no answers of the endpoint's: the streak goes on after them.
    """
    pause_s = endpoint.halt.pause_s
    changes: dict[str, int | float | None] = {"streak": 0, "gone": 0}
    match halt.reason:
        case HaltReason.PAUSED | HaltReason.QUOTA | HaltReason.RETRY_BUDGET | HaltReason.REDIS:
            changes = {}
        case HaltReason.GONE:
            # Whenever it is resumed, the five requests before count.
            changes["not_before"] = max(now + pause_s, standing.not_before)
        case HaltReason.REJECTIONS:
            pause_s = _lengthened(endpoint, endpoint.halt.growth, standing.rejection_pauses)
            changes["rejection_pauses"] = standing.rejection_pauses + 1
        case HaltReason.FAILING | HaltReason.HOLD:
            pause_s = _lengthened(endpoint, 2.0, standing.pauses)
            changes["pauses"] = standing.pauses + 1
            if halt.reason is HaltReason.FAILING:
                changes |= {"failing": 0, "failed_before": True}
        case HaltReason.CRASHED:
            crashes = standing.in_hand.crashes if standing.in_hand is not None else 0
            pause_s = _lengthened(endpoint, 2.0, crashes)
        case _:
            pass
    if halt.reason is HaltReason.HOLD and standing.held_since is None:
        changes["held_since"] = now
    standing = dataclasses.replace(
        standing,
        halt=halt.reason,
        halt_detail=halt.detail,
        halted_wall_s=wall_s,
        due_at=None if halt.reason in UNTIL_ORDERED else max(halt.until or now + pause_s, standing.not_before),
        apart=False,
        in_hand=_kept(standing.in_hand, halt.reason),
    )
    return dataclasses.replace(standing, **changes)  # type: ignore[arg-type]


def _lengthened(endpoint: Endpoint, growth: float, earlier: int) -> float:
    limit = max(endpoint.halt.pause_s, endpoint.halt.max_s)
    # 64 doublings are past every limit; a larger exponent would only overflow.
    return min(limit, endpoint.halt.pause_s * growth ** min(earlier, 64))


def _kept(progress: Progress | None, reason: HaltReason) -> Progress | None:
    """The record in hand as the next run finds it: a verdict stands, a hold begins a new run of attempts."""
    if progress is None:
        return None
    if reason is HaltReason.CRASHED:
        return dataclasses.replace(progress, crashes=progress.crashes + 1)
    match progress.fate:
        case Fate.HELD:
            return dataclasses.replace(progress, fate=Fate.OPEN, attempts=0, next_at=0.0)
        case Fate.OUR_FAULT:
            return dataclasses.replace(progress, fate=Fate.OPEN, detail="")
        case Fate.OPEN | Fate.DELIVERED | Fate.DEAD | Fate.LETTERED:
            return progress
        case _ as never:
            assert_never(never)


def started(standing: Standing) -> Standing:
    """The standing of a loop that begins: no halt in force, the counts as they were left."""
    if standing.halt is None and standing.due_at is None:
        return standing
    return dataclasses.replace(standing, halt=None, halt_detail="", halted_wall_s=None, due_at=None, apart=False)
