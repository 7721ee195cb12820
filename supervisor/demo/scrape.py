"""What the demo reads from the worker's metrics page, as Prometheus would."""

from __future__ import annotations

import re

import aiohttp

from supervisor.worker import Worker

_QUEUED = re.compile(r'^delivery_fanout_events_total\{result="queued"\} ([0-9.]+)$', re.MULTILINE)
_HALTS = re.compile(r'^delivery_halts_total\{[^}]*endpoint="([^"]+)"[^}]*\} ([0-9.]+)$', re.MULTILINE)


async def queued(worker: Worker) -> int:
    """How many queue records fan-out has written."""
    found = _QUEUED.search(await _page(worker))
    return int(float(found[1])) if found is not None else 0


async def halts(worker: Worker) -> dict[str, int]:
    """The halts of each endpoint."""
    counted: dict[str, int] = {}
    for endpoint, count in _HALTS.findall(await _page(worker)):
        counted[endpoint] = counted.get(endpoint, 0) + int(float(count))
    return counted


async def _page(worker: Worker) -> str:
    url = f"http://127.0.0.1:{worker.port}/metrics"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session, session.get(url) as answer:
        return await answer.text()
