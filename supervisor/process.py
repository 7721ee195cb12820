"""A worker as a process: signals, event loop, exit status."""

from __future__ import annotations

import asyncio
import gc
import signal

import structlog

from supervisor.configuration import Configuration
from supervisor.wiring import build
from supervisor.worker import Worker

log = structlog.get_logger(__name__)


async def _run(worker: Worker) -> int:
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    return await worker.run(stop, hurry)


def _spare_what_stays() -> None:
    """Take modules and settings out of garbage collection, and collect less often.

    A full collection walks all of them and stops the event loop meanwhile. What a delivery leaves behind is freed by
    reference counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)


def run(configuration: Configuration) -> int:
    """Run a worker in this process until SIGTERM or SIGINT. Returns the exit status."""
    for warning in configuration.warnings:
        log.warning("settings", detail=warning)

    async def main() -> int:
        worker = build(configuration)
        _spare_what_stays()
        return await _run(worker)

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())
