"""What a worker answers over HTTP: livez, readyz, metrics, and how its loops stand."""

from __future__ import annotations

import dataclasses
import hmac
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from supervisor.configuration import HttpListen
from supervisor.version import version
from supervisor.view import WorkerView

SERVICE: Final = "webhook-delivery"
"""How `/livez` names itself, so that `delivery status` shows its token to nobody else."""

# A stopping worker waits no longer than this for a slow reader of its pages.
CLOSE_S: Final = 1.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListenFailed(Exception):
    """The address cannot be listened on; the text names the setting and why."""


class MetricsPage(Protocol):
    """What Prometheus scrapes."""

    @property
    def content_type(self) -> str:
        """The page's media type."""
        ...

    async def page(self) -> bytes:
        """The page as it is now."""
        ...


class Server:
    """Answers until it is closed. `port` is the one that the system chose when the setting says 0."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def close(self) -> None:
        """Stop listening and drop the connections."""
        await self._runner.cleanup()


async def serve(http: HttpListen, view: WorkerView, metrics: MetricsPage) -> Server:
    """Listen and answer. Raises ListenFailed."""
    runner = web.AppRunner(
        application(view, metrics, http.token), access_log=None, handle_signals=False, shutdown_timeout=CLOSE_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, http.host, http.port)
        await site.start()
    except OSError as error:
        await runner.cleanup()
        # The text of asyncio's own error begins with the address once more.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ListenFailed(f"DELIVERY_HTTP__LISTEN: cannot listen on {shown(http.host, http.port)}: {why}") from error
    return Server(runner, runner.addresses[0][1])


def shown(host: str, port: int) -> str:
    """`host:port`, IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def application(view: WorkerView, metrics: MetricsPage, token: str | None) -> web.Application:
    """The four pages. With a token, metrics and status ask for it; a kubelet's probes have none."""
    pages = _Pages(view, metrics)
    app = web.Application(middlewares=[_guard(token)] if token is not None else [])
    app.router.add_get("/livez", pages.livez)
    app.router.add_get("/readyz", pages.readyz)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/status", pages.status)
    return app


def _guard(token: str) -> Any:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in {"/livez", "/readyz"}:
            given = request.headers.get("authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, expected):
                return web.json_response(
                    {"error": "a bearer token is needed"}, status=401, headers={"www-authenticate": "Bearer"}
                )
        return await handler(request)

    return guard


class _Pages:
    def __init__(self, view: WorkerView, metrics: MetricsPage) -> None:
        self._view = view
        self._metrics = metrics
        self._started_at = time.monotonic()

    async def livez(self, _request: web.Request) -> web.Response:
        return _probe([f"{name} has ended" for name in self._view.dead_tasks()])

    async def readyz(self, _request: web.Request) -> web.Response:
        return _probe(list(self._view.not_ready()))

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._metrics.page(), headers={"content-type": self._metrics.content_type})

    async def status(self, _request: web.Request) -> web.Response:
        status: Mapping[str, Any] = {
            "service": SERVICE,
            "version": version(),
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "not_ready": list(self._view.not_ready()),
            "loops": [dataclasses.asdict(loop) for loop in self._view.loops()],
        }
        return web.json_response(status)


def _probe(reasons: list[str]) -> web.Response:
    return web.json_response(
        {"service": SERVICE, "status": "failing" if reasons else "ok", "reasons": reasons},
        status=503 if reasons else 200,
    )
