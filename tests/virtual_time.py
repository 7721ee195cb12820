"""An event loop on which waiting takes no time: its clock jumps to whatever is due next.

A test of a wait of five minutes runs in a millisecond, and the same way every time. Nothing in it may wait for the
outside world; a test in which everybody waits for somebody else fails at once.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

Parameters = ParamSpec("Parameters")

EPOCH_S = 1_800_000_000.0
"""The wall clock when the loop's own clock says 0."""


class EverybodyWaits(AssertionError):
    """No task can go on and nothing is due."""


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc,valid-type,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found:
            return found
        if timeout is None:
            raise EverybodyWaits("every task waits and nothing is due")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use it as a loop factory; its time starts at 1000."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds, which pass only when nothing else is to be done."""
        return self._jumping.now


class VirtualClock:
    """`delivery.ports.Clock` on the running loop's time."""

    def monotonic(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """The same, as Unix time."""
        return EPOCH_S + self.monotonic()


def in_virtual_time(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Make an async test an ordinary one that runs on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def time_passes(seconds: float) -> None:
    """So many seconds of the loop's own time, in which nobody waits. Raises TypeError on a loop of real time."""
    if not isinstance(asyncio.get_running_loop(), VirtualLoop):
        raise TypeError("only a loop of virtual time can jump")
    await asyncio.sleep(seconds)


async def others() -> None:
    """Let every other task go on until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)
