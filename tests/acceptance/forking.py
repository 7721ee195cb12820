"""The command as a process that is forked from one which has imported it already.

A process that starts anew spends a second of a processor on imports. Where two workers at a time are killed and
replaced that is most of what a test costs, and it comes out of the rates that it measures. A forked process has its
own memory, signals, exit status and output, like any other; `make test-long`, and tests of how the command starts and
stops, start it as users do.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

COMMAND = (sys.executable, "-m", "supervisor")

# Linux only: elsewhere a fork may break what the system's libraries hold.
CAN_FORK = sys.platform == "linux"
_fork_server = multiprocessing.get_context("forkserver") if CAN_FORK else None
if _fork_server is not None:
    _fork_server.set_forkserver_preload(
        ["uvloop", "supervisor.cli", "supervisor.process", "supervisor.wiring", "supervisor.commands.kafka", __name__]
    )


class Running(Protocol):
    """As much of `asyncio.subprocess.Process` as a process can do that was forked."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, below zero for a signal; None while it runs."""

    def send_signal(self, signal: int) -> None:
        """Send it a signal."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""

    async def wait(self) -> int:
        """Wait until it ends: its exit status."""


class Forked:
    """A forked process that runs `delivery` with these arguments, settings and files for its output."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], out: Path, error: Path) -> None:
        """Starts it. Needs a running event loop, and blocks it until the process is there: milliseconds."""
        assert _fork_server is not None
        # They are there at once, like those of a process that is started in the usual way.
        out.touch()
        error.touch()
        self._process = _fork_server.Process(
            target=_run, args=(list(arguments), dict(environ), str(out), str(error)), daemon=True
        )
        self._process.start()
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._has_ended)

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._ended.set()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, below zero for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, signal: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until it ends: its exit status."""
        await self._ended.wait()
        status = self.returncode
        assert status is not None
        return status


async def spawn(arguments: Sequence[str], environ: Mapping[str, str], out: Path, error: Path, *, fork: bool) -> Running:
    """Start `delivery` with these arguments, nothing on its standard input, and its output in these files."""
    if fork and CAN_FORK:
        return Forked(arguments, environ, out, error)
    with out.open("wb") as stdout, error.open("ab") as stderr:
        return await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, env=environ, stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )


def _run(arguments: list[str], environ: dict[str, str], out: str, error: str) -> None:
    """What the forked process does; ends with SystemExit."""
    from supervisor.cli import main

    written = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    # The same file may be meant, which both append to.
    faults = os.open(error, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, place in enumerate((os.open(os.devnull, os.O_RDONLY), written, faults)):
        if place != number:
            os.dup2(place, number)
            os.close(place)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["delivery", *arguments]
    main()
