"""How what runs in the background is ended, so that a process which has done everything does not stay."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

# Up to Python 3.11 `asyncio.wait_for`, which the Kafka client uses everywhere, swallows a cancellation that comes
# together with what it waits for; whoever called it then goes on for ever. Longer than the 2 s that a producer may take
# to close in such a task, which a second cancellation would cut off.
AGAIN_S: Final = 2.5
ROUNDS: Final = 4
# Longer than each part gives itself: what has not closed by then never will, and all is settled and committed.
CLOSE_S: Final = 10.0


async def end(tasks: Collection[asyncio.Task[None]]) -> list[str]:
    """Cancel them until they have ended; the names of those that never do, which are given up."""
    living = {task for task in tasks if not task.done()}
    for _ in range(ROUNDS):
        if not living:
            break
        for task in living:
            task.cancel()
        _, living = await asyncio.wait(living, timeout=AGAIN_S)
    return [task.get_name() for task in living]


async def close(parts: Mapping[str, asyncio.Task[None]]) -> list[str]:
    """Wait for parts that are closing; the names of those that do not end, which are given up."""
    if not parts:
        return []
    _, open_still = await asyncio.wait(parts.values(), timeout=CLOSE_S)
    for task in open_still:
        task.cancel()
    return [name for name, task in parts.items() if task in open_still]
