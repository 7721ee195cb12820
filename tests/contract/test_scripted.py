"""The instrument that everything else is measured with."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import DROP, HANG, Asked, after, always, doing, flaky, reply, sequence

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


async def post(server: ScriptedServer, path: str, webhook_id: str = "evt_1", body: bytes = b"{}") -> bytes:
    """The whole answer, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nWebhook-Id: {webhook_id}\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


async def test_each_request_gets_what_its_number_on_the_path_says(server: ScriptedServer) -> None:
    server.script("/a", sequence([reply(500), DROP, reply(200, {"x": "y"}, b"hi")]))
    got = [await post(server, "/a?query") for _ in range(4)]
    assert [answer.split(b" ", 2)[1:2] for answer in got] == [[b"500"], [], [b"200"], [b"200"]]
    assert got[2].endswith(b"x: y\r\ncontent-length: 2\r\n\r\nhi")
    assert [seen.status for seen in server.requests("/a")] == [500, 0, 200, 200]


async def test_a_request_is_remembered_as_it_came(server: ScriptedServer) -> None:
    server.script("/a", always(204))
    await post(server, "/a", "evt_7", b"body")
    [seen] = server.requests("/a")
    assert (seen.webhook_id, seen.body, seen.size, seen.header("HOST")) == ("evt_7", b"body", 4, "x")
    assert 0 <= seen.ended_at - seen.at < 1


async def test_a_request_is_counted_when_it_arrives_and_not_when_it_is_answered(server: ScriptedServer) -> None:
    server.script("/a", doing(HANG))
    waiting = asyncio.create_task(post(server, "/a"))
    await server.arrived("/a", 1)
    assert server.requests("/a")[0].ended_at == float("inf")
    server.drop_connections()
    with pytest.raises(ConnectionResetError):
        await waiting


async def test_ids_order_and_duplicates(server: ScriptedServer) -> None:
    server.script("/a", always(204))
    server.script("/b", always(204))
    for path, webhook_id in (("/a", "1"), ("/a", "2"), ("/a", "1"), ("/b", "2")):
        await post(server, path, webhook_id)
    assert server.order("/a") == ["1", "2", "1"]
    assert server.ids() == ["1", "2"]
    assert server.duplicates("/a") == {"1": 2}
    assert server.duplicates() == {"1": 2}, "the same id on two paths is no duplicate"


async def test_windows_are_half_open(server: ScriptedServer) -> None:
    server.script("/a", always(204))
    for _ in range(4):
        await post(server, "/a")
    times = [seen.at for seen in server.requests("/a")]
    assert server.max_in_window("/a", times[-1] - times[0]) <= 3
    assert server.max_in_window("/a", times[-1] - times[0] + 1e-6) == 4
    assert server.max_in_window("/a", min(b - a for a, b in pairwise(times))) == 1


async def test_requests_at_once_are_counted(server: ScriptedServer) -> None:
    server.script("/a", after(0.2, 204))
    await asyncio.gather(*(post(server, "/a") for _ in range(3)))
    await post(server, "/a")
    assert server.max_at_once("/a") == 3


async def test_flaky_answers_are_the_same_in_every_run_and_have_their_shares() -> None:
    def statuses() -> list[int]:
        script = flaky("seed", [(0.25, reply(500)), (0.08, reply(429))])
        return [script(Asked("/a", n, 1, b"", b"")).status for n in range(4000)]

    first = statuses()
    assert first == statuses()
    assert 0.22 < first.count(500) / 4000 < 0.28
    assert 0.06 < first.count(429) / 4000 < 0.10


async def test_as_a_process_it_answers_by_name_and_tells_what_it_saw() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "supervisor.demo.scripted", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int((await process.stdout.readline()).split()[1])

        def ask(path: str) -> tuple[int, bytes]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read()

        for path in ("/ok/1", "/201/x", "/after-0.01/y"):
            assert (await asyncio.to_thread(ask, path))[0] in (201, 204)
        stats = json.loads((await asyncio.to_thread(ask, "/__stats"))[1])
        assert stats["total"] == 3
        assert len(json.loads((await asyncio.to_thread(ask, "/__seen?path=/ok/1"))[1])) == 1
        await asyncio.to_thread(ask, "/__reset")
        assert json.loads((await asyncio.to_thread(ask, "/__stats"))[1])["total"] == 0
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
