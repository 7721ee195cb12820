"""Several workers under one process: started, replaced when they die, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

log = structlog.get_logger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
# Who has lived this long has started well: its next death is a new trouble.
HEALTHY_S: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that is to live until the stop."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(repr=False)


def restart_pause_s(deaths: int, *, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> float:
    """How long to wait after this many deaths in a row (1 and more): doubling, bounded."""
    return min(first_s * 2.0 ** min(deaths - 1, 30), longest_s)


class Family:
    """Children that live until `stop` is called; each is replaced when it ends before that."""

    def __init__(
        self, children: Sequence[Child], *, first_pause_s: float = FIRST_PAUSE_S, healthy_s: float = HEALTHY_S
    ) -> None:
        self._children = children
        self._first_pause_s = first_pause_s
        self._healthy_s = healthy_s
        self._stop = asyncio.Event()
        self._living: dict[str, Process] = {}

    async def run(self) -> int:
        """Return 0 when all have ended after a stop."""
        await asyncio.gather(*(self._keep(child) for child in self._children))
        return 0

    def stop(self, number: signal.Signals) -> None:
        """Pass the signal on, the second one too; nobody is replaced any more."""
        self._stop.set()
        for process in self._living.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        deaths = 0
        while not self._stop.is_set():
            started_at = loop.time()
            status = await self._live(child)
            if self._stop.is_set():
                return
            deaths = 1 if loop.time() - started_at >= self._healthy_s else deaths + 1
            pause_s = restart_pause_s(deaths, first_s=self._first_pause_s)
            log.error("worker process ended", name=child.name, status=status, again_in_s=pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)

    async def _live(self, child: Child) -> int | str:
        """Start it and wait for its end. Returns its exit status, or why it could not be started."""
        try:
            # In a process group of its own: a terminal's Ctrl-C reaches it once, through us, and not twice.
            process = await asyncio.create_subprocess_exec(
                *child.command, env=dict(child.environment), stdin=DEVNULL, process_group=0
            )
        except OSError as error:
            return type(error).__name__
        self._living[child.name] = process
        if self._stop.is_set():
            # The signal came while it was being started.
            process.send_signal(signal.SIGTERM)
        try:
            return await process.wait()
        finally:
            del self._living[child.name]


def run_family(children: Sequence[Child]) -> int:
    """Keep them alive until SIGTERM or SIGINT, and return the exit status."""

    async def main() -> int:
        family = Family(children)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, family.stop, number)
        return await family.run()

    return asyncio.run(main())
