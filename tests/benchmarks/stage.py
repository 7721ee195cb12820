"""The processes around a measurement: the scripted endpoint, single steps, and how much CPU one has used."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.load import Cost

ROOT = Path(__file__).resolve().parent.parent.parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
STEP_S = 120.0


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process (proc(5), `stat`, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Spare:
    """What the machine has left since this was made (proc(5), `/proc/stat`)."""

    def __init__(self) -> None:
        self._idle, self._all = self._now()

    @staticmethod
    def _now() -> tuple[int, int]:
        ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)

    @property
    def share(self) -> float:
        """Of all cores together."""
        idle, everything = self._now()
        return (idle - self._idle) / max(1, everything - self._all)


def resident_mib(pid: int) -> float:
    """Memory of a process (proc(5), `statm`, field 2)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 1_048_576


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """The scripted endpoint, running as another process."""

    port: int

    def url(self, path: str) -> str:
        """The URL of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    async def ask(self, path: str) -> Any:
        """One of its own answers: `/__stats`, `/__reset`, `/__seen?path=P`."""
        async with aiohttp.ClientSession() as session, session.get(self.url(path)) as answer:
            return await answer.json()


@contextlib.asynccontextmanager
async def endpoint() -> AsyncIterator[Endpoint]:
    """Start it and end it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "supervisor.demo.scripted", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        ready = (await asyncio.wait_for(process.stdout.readline(), 20)).split()
        yield Endpoint(int(ready[1]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def step(name: str, **arguments: object) -> Cost:
    """Run one step of `tests.benchmarks.load` and return what it cost."""
    options = [f"--{key}={value}" for key, value in arguments.items()]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.load", name, *options), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), STEP_S)
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"step {name} failed")
    return Cost(**json.loads(out))
