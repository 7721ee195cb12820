"""Which loops to start, and when: pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from delivery.policy.standing import Standing

# More endpoints than this halting within one sweep fell together, and would come back together.
HERD = 20
SPREAD_S = 10.0
# Former owners let go one after the other: what is taken over in a halt within this time fell together.
TOGETHER_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a loop now."""

    queue: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Start a loop at this monotonic moment."""

    queue: str
    at: float


Action = Start | StartAt


def plan(
    owned: Mapping[str, Standing],
    running: Collection[str],
    now: float,
    horizon_s: float,
    idle: Collection[str] = (),
) -> tuple[Action, ...]:
    """What to do for the owned queues without a loop.

    One without a due time starts at once, one whose due time comes within `horizon_s` gets a timer for exactly then,
    and the rest are left to a later look. The `idle` ones may send nothing and have nothing else to do.
    """
    actions: list[Action] = []
    for queue, standing in owned.items():
        if queue in running or queue in idle:
            continue
        if standing.due_at is None or standing.due_at <= now:
            actions.append(Start(queue=queue))
        elif standing.due_at <= now + horizon_s:
            actions.append(StartAt(queue=queue, at=standing.due_at))
    return tuple(actions)


def spread(due: Mapping[str, float], units: Sequence[float], now: float, *, more: bool = False) -> dict[str, float]:
    """New due times for queues that fell together: halted since the last look, or taken over in a halt.

    None when they are few, unless there are `more`: a herd was put apart just before, and these fell with it. `units`
    are uniform in [0, 1), one for each queue: each is put off by up to ten seconds, from now on if it is due already.
    """
    if len(due) <= HERD and not more:
        return {}
    return {queue: max(at, now) + unit * SPREAD_S for (queue, at), unit in zip(due.items(), units, strict=True)}
