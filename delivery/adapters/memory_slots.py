"""Requests at once, counted in this process: all there is for a worker alone."""

from __future__ import annotations

from collections.abc import Callable

from delivery.limits import Place
from delivery.policy.slots import Line, entered, left
from delivery.ports import Clock


class MemorySlots:
    """`delivery.limits.Slots` in dictionaries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, Line] = {}
        self._wakes: dict[str, Callable[[], None]] = {}

    async def enter(self, place: Place) -> bool:
        """A slot, or a place in the line."""
        line, called = entered(self._line(place), place.who, place.most, place.lease_s, self._clock.monotonic())
        inside = place.who in line.inside
        if not inside:
            self._wakes[place.who] = place.wake
        self._keep(place, line, called)
        return inside

    async def leave(self, place: Place) -> None:
        """Hand it to the first who waits."""
        self._wakes.pop(place.who, None)
        self._keep(place, *left(self._line(place), place.who, place.most, self._clock.monotonic()))

    def _line(self, place: Place) -> Line:
        return self._lines.get(place.scope, Line())

    def _keep(self, place: Place, line: Line, called: tuple[str, ...]) -> None:
        self._lines[place.scope] = line
        for who in called:
            wake = self._wakes.pop(who, None)
            if wake is not None:
                wake()
