"""Connections: lost, stale, refused, unresolved, and which of them may have carried a request."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from delivery.adapters.vetting_connector import AddressInfo
from delivery.model import Network, NoAnswer, NoAnswerKind, NotSentKind, Outcome
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import DROP, HANG, RESET, Act, Asked, Then, always, doing, reply, sequence
from tests.contract.sender_kit import answers, endpoint, outgoing, real_sender, send_once, until, what

pytestmark = pytest.mark.asyncio
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
NOWHERE = 9  # the discard port, where nothing listens


DROPPED = (NoAnswerKind.DROPPED, Outcome.UNKNOWN)
NOT_RESOLVED = (NoAnswerKind.DNS, Outcome.NOT_STARTED)
NOT_CONNECTED = (NoAnswerKind.CONNECT, Outcome.NOT_STARTED)


@pytest.mark.parametrize("act", [pytest.param(DROP, id="NW-02-close"), pytest.param(RESET, id="NW-02-reset")])
async def test_a_request_that_was_read_and_not_answered_is_unknown_and_not_sent_again(act: Act) -> None:
    async with ScriptedServer() as server:
        server.script("/hook", doing(act))
        assert what(await send_once(endpoint(server.url("/hook")))) == DROPPED
        assert server.count() == 1


@pytest.mark.parametrize("act", [pytest.param(DROP, id="NW-01-close"), pytest.param(RESET, id="NW-01-reset")])
async def test_a_kept_connection_that_breaks_at_its_second_request_is_not_retried(act: Act) -> None:
    def second_breaks(asked: Asked) -> Act:
        return act if asked.on_connection == 2 else reply(204)

    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", second_breaks)
        to = endpoint(server.url("/hook"))
        got = [what(await sender.send(to, outgoing(to.url), 5.0)) for _ in range(3)]
        assert got == [("204", Outcome.CONFIRMED), DROPPED, ("204", Outcome.CONFIRMED)]
        assert [seen.connection for seen in server.requests()] == [1, 1, 2]


@pytest.mark.parametrize("then", [Then.CLOSE, Then.RESET])
async def test_on_connections_closed_while_idle_no_request_arrives_twice_nw_01(then: Then) -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", doing(Act(status=204, data=NO_CONTENT, then=then)))
        to = endpoint(server.url("/hook"))
        for n in range(200):
            answer = await sender.send(to, outgoing(to.url, headers=((b"webhook-id", b"evt_%d" % n),)), 5.0)
            assert what(answer) in (("204", Outcome.CONFIRMED), DROPPED)
        assert server.duplicates() == {}


async def test_a_connection_is_not_used_beyond_its_keep_alive_nw_01() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", always(204))
        to = endpoint(server.url("/hook"), keep_alive_s=0.2)
        for pause_s in (0.0, 0.0, 0.3):
            await asyncio.sleep(pause_s)
            await sender.send(to, outgoing(to.url), 5.0)
        assert [seen.connection for seen in server.requests()] == [1, 1, 2]


async def test_without_keep_alive_each_request_has_its_own_connection() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", always(204))
        to = endpoint(server.url("/hook"), keep_alive_s=0.0)
        for _ in range(2):
            await sender.send(to, outgoing(to.url), 5.0)
        assert [(seen.connection, seen.header("connection")) for seen in server.requests()] == [
            (1, "close"),
            (2, "close"),
        ]


async def test_what_must_not_arrive_twice_has_a_connection_of_its_own_whatever_others_keep() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", always(204))
        kept, once = endpoint(server.url("/hook")), endpoint(server.url("/hook"), idempotent=False)
        for to in (kept, once, kept, once):
            await sender.send(to, outgoing(to.url), 5.0)
        assert [seen.connection for seen in server.requests()] == [1, 2, 1, 3]


async def test_many_requests_at_once_do_not_wait_for_each_other() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        gate = asyncio.Event()
        server.script("/hook", doing(reply(204, wait=gate)))
        to = endpoint(server.url("/hook"))
        sending = [asyncio.create_task(sender.send(to, outgoing(to.url), 10.0)) for _ in range(200)]
        await server.arrived("/hook", 200)
        gate.set()
        assert {what(answer) for answer in await asyncio.gather(*sending)} == {("204", Outcome.CONFIRMED)}


async def test_cancelling_closes_the_connection() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", doing(HANG))
        to = endpoint(server.url("/hook"))
        task = asyncio.create_task(sender.send(to, outgoing(to.url), 10.0))
        await server.arrived("/hook", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not server.open)


async def test_a_closed_port_is_not_started() -> None:
    answer = await send_once(endpoint(f"http://127.0.0.1:{NOWHERE}/secret-path?key=1"))
    assert what(answer) == NOT_CONNECTED
    assert isinstance(answer, NoAnswer)
    assert answer.detail == "ConnectError: ECONNREFUSED"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        pytest.param(socket.gaierror(socket.EAI_AGAIN, "try again"), "EAI_AGAIN", id="NW-06"),
        pytest.param(socket.gaierror(socket.EAI_NONAME, "unknown"), "EAI_NONAME", id="NW-07-nxdomain"),
        pytest.param([], "EAI_NONAME", id="NW-07-no-records"),
    ],
)
async def test_a_name_that_does_not_resolve_is_retried_and_never_called_refused(
    failure: OSError | Sequence[str], code: str
) -> None:
    async with ScriptedServer() as server, real_sender(answers(failure, failure, ["127.0.0.1"])) as sender:
        server.script("/hook", always(204))
        to = endpoint(server.url("/hook", host="hooks.test"))
        got = [await sender.send(to, outgoing(to.url), 5.0) for _ in range(3)]
        assert [what(answer) for answer in got] == [NOT_RESOLVED, NOT_RESOLVED, ("204", Outcome.CONFIRMED)]
        assert isinstance(got[0], NoAnswer)
        assert got[0].detail == f"NameNotResolved: {code}"
        assert server.requests()[0].header("host") == f"hooks.test:{server.port}"


@pytest.mark.parametrize("host", ["a..test", "a" * 64 + ".test", "xn--" + "a" * 70])
async def test_a_name_that_cannot_exist_does_not_resolve(host: str) -> None:
    assert what(await send_once(endpoint(f"http://{host}/"))) in (NOT_RESOLVED, (NotSentKind.ADDRESS_REFUSED, None))


@pytest.mark.parametrize(
    ("connect_timeout_s", "timeout_s", "kind"), [(0.1, 5.0, NoAnswerKind.CONNECT), (5.0, 0.1, NoAnswerKind.TIMEOUT)]
)
async def test_time_that_ran_out_while_resolving_is_not_started(
    connect_timeout_s: float, timeout_s: float, kind: NoAnswerKind
) -> None:
    release = threading.Event()

    def never(_host: str, _port: int) -> Sequence[AddressInfo]:
        release.wait(10)
        return []

    started = time.monotonic()
    try:
        to = endpoint("http://hooks.test/", connect_timeout_s=connect_timeout_s)
        assert what(await send_once(to, timeout_s=timeout_s, lookup=never)) == (kind, Outcome.NOT_STARTED)
    finally:
        release.set()
    assert time.monotonic() - started < 2


async def test_names_that_hang_do_not_hold_up_other_endpoints() -> None:
    release = threading.Event()

    def slow_for_some(host: str, port: int) -> Sequence[AddressInfo]:
        if host.startswith("slow"):
            release.wait(10)
        return answers(["127.0.0.1"])(host, port)

    async with ScriptedServer() as server, real_sender(slow_for_some) as sender:
        server.script("/hook", always(204))
        slow = [endpoint(server.url("/hook", host=f"slow{n}.test")) for n in range(16)]
        sending = [asyncio.create_task(sender.send(to, outgoing(to.url), 5.0)) for to in slow]
        await asyncio.sleep(0)
        try:
            to = endpoint(server.url("/hook", host="quick.test"))
            assert what(await sender.send(to, outgoing(to.url), 2.0)) == ("204", Outcome.CONFIRMED)
        finally:
            release.set()
            await asyncio.gather(*sending)


async def test_the_next_address_is_tried_when_the_first_does_not_answer() -> None:
    async with ScriptedServer() as server:
        server.script("/hook", always(204))
        network = Network(allow_networks=("127.0.0.0/8",), allow_http=True)
        to = endpoint(server.url("/hook", host="hooks.test"), network=network)
        answer = await send_once(to, lookup=answers(["127.0.0.2", "127.0.0.1"]))
        assert what(answer) == ("204", Outcome.CONFIRMED)
        assert server.count() == 1


PROXIES = {
    name: f"{scheme}://127.0.0.1:{NOWHERE}"
    for name, scheme in (
        ("HTTP_PROXY", "http"),
        ("http_proxy", "http"),
        ("HTTPS_PROXY", "http"),
        ("all_proxy", "socks5"),
    )
} | {"ALL_PROXY": f"socks5://127.0.0.1:{NOWHERE}"}
SEND = """
import asyncio, json, sys
from tests.contract.sender_kit import endpoint, send_once
answer = asyncio.run(send_once(endpoint(sys.argv[1])))
print(json.dumps(repr(answer)))
"""


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(PROXIES, id="NW-09"),
        pytest.param(PROXIES | {"NO_PROXY": "10.0.0.0/8,::1,*.svc", "no_proxy": "10.0.0.0/8,::1,*.svc"}, id="NW-11"),
    ],
)
async def test_proxies_in_the_environment_are_ignored(environment: dict[str, str]) -> None:
    async with ScriptedServer() as server:
        server.script("/hook", always(204))
        run = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", SEND, server.url("/hook")],
            env={**os.environ, **environment},
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert "status=204" in json.loads(run.stdout)
        assert server.count("/hook") == 1


async def test_the_endpoints_own_proxy_is_used_and_its_address_needs_no_leave() -> None:
    async with ScriptedServer() as proxy:
        proxy.script("http://hooks.test/hook", always(204))
        to = endpoint("http://hooks.test/hook", network=Network(allow_http=True, proxy=proxy.url("")))
        assert what(await send_once(to)) == ("204", Outcome.CONFIRMED)
        inside = endpoint("http://127.1/hook", network=Network(allow_http=True, proxy=proxy.url("")))
        assert what(await send_once(inside)) == (NotSentKind.ADDRESS_REFUSED, None)
        assert proxy.count() == 1


@pytest.mark.parametrize("act", [DROP, RESET, reply(502), reply(407)])
async def test_a_proxy_that_gives_no_tunnel_is_not_started(act: Act) -> None:
    async with ScriptedServer() as proxy:
        proxy.script("hooks.test:443", sequence([act]))
        to = endpoint("https://hooks.test/hook", network=Network(proxy=proxy.url("")))
        assert what(await send_once(to)) == NOT_CONNECTED


async def test_a_proxy_that_is_away_is_not_started() -> None:
    to = endpoint("http://hooks.test/hook", network=Network(proxy=f"http://user:pass@127.0.0.1:{NOWHERE}"))
    answer = await send_once(to)
    assert what(answer) == NOT_CONNECTED
    assert "pass" not in repr(answer)
