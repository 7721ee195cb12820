"""Those that halted together must not come back together: who fell since the last look, and when each starts again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from delivery.policy.standing import Standing
from supervisor.plan import HERD, spread


class Herd:
    """The queues that halted, or were taken over in a halt, since the last look."""

    def __init__(self, sweep_s: float, chance: Callable[[], float]) -> None:
        self._sweep_s = sweep_s
        self._chance = chance
        self._fell: set[str] = set()
        self._until = 0.0
        self._more = False

    def __contains__(self, queue: str) -> bool:
        """It fell, and has not been looked at since."""
        return queue in self._fell

    @property
    def many(self) -> bool:
        """They fell together, or with those before, and are to be looked at soon: at the next sweep they may run."""
        return self._more or len(self._fell) > HERD

    def add(self, queue: str, now: float) -> None:
        """This one fell; within a sweep after a herd it belongs to that."""
        self._fell.add(queue)
        self._more = self._more or now < self._until

    def gain(self, queue: str, standing: Standing, now: float) -> bool:
        """This one was taken over. True when it belongs to those that are looked at together.

        Its former owner ended before it could put it apart, or it fell due while it had no owner, as others did.
        """
        if standing.due_at is None or (standing.apart and standing.due_at > now):
            return False
        self.add(queue, now)
        return True

    def leave(self, queue: str) -> None:
        """It is another's now."""
        self._fell.discard(queue)

    def put_apart(self, halted: Mapping[str, Standing], now: float) -> dict[str, float]:
        """The new due times, none when they are few; `halted` are the queues that no loop runs for."""
        due = {q: at for q in self._fell if q in halted and (at := halted[q].due_at) is not None}
        self._fell.clear()
        apart = spread(due, [self._chance() for _ in due], now, more=self._more)
        self._more = False
        if len(apart) > HERD:
            self._until = now + self._sweep_s
        return apart
