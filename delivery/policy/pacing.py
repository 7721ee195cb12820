"""A rate's turns: first come, first served, never more than the rate allows over any time.

A token bucket that is kept as one moment, `full_at`: when it will be full again if nobody takes anything more (the
generic cell rate algorithm, ITU-T I.371). Whoever takes a turn learns at once when it is, so that those who wait need
not ask again and nobody overtakes.
"""

from __future__ import annotations

import dataclasses

from delivery.model import Rate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A bucket that was last used at the rate of one turn each `interval_s`."""

    full_at: float
    interval_s: float


def next_turn(pace: Pace | None, rate: Rate, now: float, *, unused: bool = False) -> tuple[float, Pace]:
    """The moment of the next turn that is free, and the bucket after it was taken.

    `unused`: whoever asks had the last turn, whose moment has come, and did not use it. It is put back first, as far
    as there is room. Only for who has the rate alone: what others were promised since counts on what was taken before.
    When the rate has changed, what was taken ahead counts as so many turns at the new one.
    """
    full_at = now
    if pace is not None and pace.full_at > now:
        full_at = now + (pace.full_at - now) / pace.interval_s * rate.interval_s
    if unused:
        full_at = max(now, full_at - rate.interval_s)
    turn_at = max(now, full_at - (rate.burst - 1) * rate.interval_s)
    return turn_at, Pace(full_at=full_at + rate.interval_s, interval_s=rate.interval_s)
