"""A scope's requests at once: slots that are leased, and a line of those who wait for one.

Whoever leaves hands the slot to the first in the line, who is called and has to come for it. So nobody overtakes,
nobody looks in vain, and what a dead one had is free again when its time is over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

# Those who wait look again this often, in case nobody called them; a place in the line is kept three times as long.
LOOK_S: Final = 2.0
PLACE_S: Final = 6.0
# A slot that was handed to somebody who does not come is free again after this.
OFFER_S: Final = 3.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Who is inside and who waits, the first first, each with the moment at which that ends by itself."""

    inside: Mapping[str, float] = dataclasses.field(default_factory=dict)
    waiting: Mapping[str, float] = dataclasses.field(default_factory=dict)


def entered(line: Line, who: str, most: int, lease_s: float, now: float) -> tuple[Line, tuple[str, ...]]:
    """The line after `who` came, for a slot or at the end of the line, and those who are called.

    Whoever has a slot already has it for `lease_s` from now on, and whoever waits keeps the place.
    """
    line = _left_over(line, now)
    if who not in line.inside:
        line = dataclasses.replace(line, waiting={**line.waiting, who: now + PLACE_S})
    line, called = _handed_out(line, most, now)
    if who in line.inside:
        line = dataclasses.replace(line, inside={**line.inside, who: now + lease_s})
    return line, tuple(name for name in called if name != who)


def left(line: Line, who: str, most: int, now: float) -> tuple[Line, tuple[str, ...]]:
    """The line after `who` went away, from wherever it was, and those who are called."""
    line = _left_over(line, now)
    inside, waiting = (
        {name: until for name, until in part.items() if name != who} for part in (line.inside, line.waiting)
    )
    return _handed_out(Line(inside=inside, waiting=waiting), most, now)


def _left_over(line: Line, now: float) -> Line:
    inside, waiting = (
        {name: until for name, until in part.items() if until > now} for part in (line.inside, line.waiting)
    )
    return Line(inside=inside, waiting=waiting)


def _handed_out(line: Line, most: int, now: float) -> tuple[Line, tuple[str, ...]]:
    called = tuple(line.waiting)[: max(0, most - len(line.inside))]
    inside = {**line.inside, **dict.fromkeys(called, now + OFFER_S)}
    return Line(inside=inside, waiting={n: until for n, until in line.waiting.items() if n not in called}), called
