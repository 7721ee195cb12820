"""The worker's own pages, asked over loopback."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from supervisor.configuration import HttpListen
from supervisor.health import ListenFailed, Server, serve
from supervisor.view import LoopState, LoopStateName, WorkerView

HALTED = LoopState(
    tenant="acme",
    endpoint="billing",
    state=LoopStateName.HALTED,
    reason="rejections",
    detail="5 times 404",
    since=1.0,
    next_start_in_s=9.5,
    streak=5,
    attempts=1,
)


@dataclasses.dataclass
class View:
    dead: Sequence[str] = ()
    unready: Sequence[str] = ()

    def dead_tasks(self) -> Sequence[str]:
        return self.dead

    def not_ready(self) -> Sequence[str]:
        return self.unready

    def loops(self) -> Sequence[LoopState]:
        return [HALTED]


class Metrics:
    content_type = "text/plain; version=0.0.4; charset=utf-8"

    async def page(self) -> bytes:
        return b"delivery_delivered_total 1.0\n"


class Client:
    def __init__(self, session: aiohttp.ClientSession, server: Server) -> None:
        self._session = session
        self.server = server

    async def get(self, path: str, **headers: str) -> tuple[int, Any, str]:
        async with self._session.get(f"http://127.0.0.1:{self.server.port}{path}", headers=headers) as answer:
            body = await (answer.json() if answer.content_type == "application/json" else answer.text())
            return answer.status, body, answer.headers["content-type"]


@pytest.fixture
def view() -> View:
    return View()


@pytest_asyncio.fixture
async def client(view: WorkerView, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    server = await serve(HttpListen(port=0, token=getattr(request, "param", None)), view, Metrics())
    async with aiohttp.ClientSession() as session:
        yield Client(session, server)
    await server.close()


@pytest.mark.asyncio
async def test_a_healthy_worker_lives_and_is_ready(client: Client) -> None:
    for path in ("/livez", "/readyz"):
        status, body, _ = await client.get(path)
        assert (status, body["status"], body["reasons"]) == (200, "ok", [])


@pytest.mark.asyncio
async def test_a_dead_task_makes_livez_red_and_is_named(client: Client, view: View) -> None:
    view.dead = ["commit pump"]
    status, body, _ = await client.get("/livez")
    assert (status, body["reasons"]) == (503, ["commit pump has ended"])
    assert (await client.get("/readyz"))[0] == 200


@pytest.mark.asyncio
async def test_kafka_away_makes_readyz_red_and_leaves_livez_green(client: Client, view: View) -> None:
    view.unready = ["not connected to Kafka"]
    status, body, _ = await client.get("/readyz")
    assert (status, body["reasons"]) == (503, ["not connected to Kafka"])
    assert (await client.get("/livez"))[0] == 200


@pytest.mark.asyncio
async def test_metrics_are_served_with_the_type_that_prometheus_wants(client: Client) -> None:
    assert await client.get("/metrics") == (200, "delivery_delivered_total 1.0\n", Metrics.content_type)


@pytest.mark.asyncio
async def test_the_status_page_shows_the_process_and_its_loops(client: Client) -> None:
    status, body, _ = await client.get("/status")
    assert status == 200
    assert body["pid"] == os.getpid()
    assert body["version"]
    assert body["uptime_s"] >= 0
    assert body["loops"] == [dataclasses.asdict(HALTED)]


@pytest.mark.asyncio
@pytest.mark.parametrize("client", ["t0ken"], indirect=True)
@pytest.mark.parametrize("path", ["/metrics", "/status"])
@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": "t0ken"}])
async def test_with_a_token_metrics_and_status_are_refused_to_who_has_none(
    client: Client, path: str, given: dict[str, str]
) -> None:
    status, body, _ = await client.get(path, **given)
    assert status == 401
    assert "t0ken" not in str(body)


@pytest.mark.asyncio
@pytest.mark.parametrize("client", ["t0ken"], indirect=True)
async def test_with_a_token_probes_stay_open_and_who_has_it_sees_everything(client: Client) -> None:
    for path in ("/livez", "/readyz"):
        assert (await client.get(path))[0] == 200
    for path in ("/metrics", "/status"):
        assert (await client.get(path, authorization="Bearer t0ken"))[0] == 200


@pytest.mark.asyncio
async def test_an_unknown_page_is_not_found(client: Client) -> None:
    assert (await client.get("/"))[0] == 404


@pytest.mark.asyncio
async def test_a_port_in_use_is_refused_with_the_name_of_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed) as failed:
            await serve(HttpListen(port=port), View(), Metrics())
    assert str(failed.value) == f"DELIVERY_HTTP__LISTEN: cannot listen on 127.0.0.1:{port}: Address already in use"


@pytest.mark.asyncio
async def test_a_closed_server_leaves_its_port_to_others() -> None:
    server = await serve(HttpListen(port=0), View(), Metrics())
    await server.close()
    again = await serve(HttpListen(port=server.port), View(), Metrics())
    await again.close()
