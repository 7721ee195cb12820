"""`delivery status` asking workers, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp import web

from supervisor.commands.ask_worker import ask
from supervisor.configuration import HttpListen
from supervisor.health import serve
from supervisor.view import LoopState, LoopStateName

RUNNING = LoopState(tenant="acme", endpoint="billing", state=LoopStateName.RUNNING)


class View:
    def dead_tasks(self) -> Sequence[str]:
        return ()

    def not_ready(self) -> Sequence[str]:
        return ()

    def loops(self) -> Sequence[LoopState]:
        return [RUNNING]


class Metrics:
    content_type = "text/plain"

    async def page(self) -> bytes:
        return b""


@pytest.mark.asyncio
async def test_a_worker_is_asked_with_the_token_and_its_loops_come_back() -> None:
    server = await serve(HttpListen(port=0, token="t0ken"), View(), Metrics())
    answers = await asyncio.to_thread(ask, HttpListen(host="0.0.0.0", port=server.port, token="t0ken"))
    await server.close()
    assert answers.loops()["acme", "billing"]["state"] == "running"


@pytest.mark.asyncio
async def test_a_refused_token_is_told_without_showing_it() -> None:
    server = await serve(HttpListen(port=0, token="t0ken"), View(), Metrics())
    answers = await asyncio.to_thread(ask, HttpListen(port=server.port, token="wr0ng"))
    await server.close()
    assert answers.workers == ()
    assert answers.why == f"the worker at 127.0.0.1:{server.port} refuses DELIVERY_HTTP__TOKEN"


@pytest.mark.asyncio
async def test_nobody_there_is_told_with_the_address() -> None:
    server = await serve(HttpListen(port=0), View(), Metrics())
    await server.close()
    answers = await asyncio.to_thread(ask, HttpListen(port=server.port))
    assert (answers.workers, answers.why) == ((), f"no worker answers at 127.0.0.1:{server.port}")


@pytest.mark.asyncio
async def test_another_program_on_the_port_is_not_shown_the_token() -> None:
    seen: list[tuple[str, bool]] = []

    async def stranger(request: web.Request) -> web.Response:
        seen.append((request.path, "authorization" in request.headers))
        return web.json_response({"service": "another"})

    app = web.Application()
    app.router.add_get("/{path:.*}", stranger)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    answers = await asyncio.to_thread(ask, HttpListen(port=port, token="t0ken"))
    await runner.cleanup()
    assert answers.workers == ()
    assert seen == [("/livez", False)]
