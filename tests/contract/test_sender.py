"""What every sender reports, whatever carries the bytes: the same cases over a mock of httpx and over the network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import httpx
import pytest
import pytest_asyncio

from delivery.adapters.http_sender import HttpSender
from delivery.adapters.http_way import AddressRefused, NameNotResolved, TlsFailed, TlsFilesUnreadable
from delivery.model import Answer, NoAnswer, NoAnswerKind, NotSent, NotSentKind, Outcome, Reply
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import HANG, Act, Then, doing, reply
from tests.contract.sender_kit import BODY, HEADERS, WallClock, endpoint, outgoing, real_sender, until


class Wire(Protocol):
    """A sender, and an endpoint that does one thing and remembers requests as (headers, body)."""

    sender: HttpSender

    def url(self, path: str) -> str: ...
    def does(self, act: Act) -> None: ...
    def requests(self) -> list[tuple[dict[str, str], bytes]]: ...


class MockWire:
    def __init__(self) -> None:
        self.sender = HttpSender(httpx.MockTransport(self._answer), WallClock())
        self._act = reply(204)
        self._seen: list[tuple[dict[str, str], bytes]] = []

    def url(self, path: str) -> str:
        return f"http://mock.test{path}"

    def does(self, act: Act) -> None:
        self._act = act

    def requests(self) -> list[tuple[dict[str, str], bytes]]:
        return self._seen

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self._seen.append((dict(request.headers), await request.aread()))
        if self._act.then is Then.HANG:
            await asyncio.Event().wait()
        head, _, body = self._act.data.partition(b"\r\n\r\n")
        lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        headers = [(name, value.strip()) for name, _, value in lines]
        return httpx.Response(self._act.status, headers=headers, stream=Streamed(body))


class Streamed(httpx.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), 1000):
            yield self._body[start : start + 1000]


class RealWire:
    def __init__(self, server: ScriptedServer, sender: HttpSender) -> None:
        self.sender = sender
        self._server = server

    def url(self, path: str) -> str:
        return self._server.url(path)

    def does(self, act: Act) -> None:
        self._server.script("/hook", doing(act))

    def requests(self) -> list[tuple[dict[str, str], bytes]]:
        return [({name.lower(): value for name, value in s.headers}, s.body) for s in self._server.requests("/hook")]


@pytest_asyncio.fixture(params=["mock", "network"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    if request.param == "mock":
        yield MockWire()
        return
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedServer())
        yield RealWire(server, await stack.enter_async_context(real_sender()))


async def send(wire: Wire, act: Act, timeout_s: float = 5.0, **settings: Any) -> Reply:
    wire.does(act)
    to = endpoint(wire.url("/hook"), **settings)
    return await wire.sender.send(to, outgoing(to.url), timeout_s)


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [200, 202, 204, 226, 301, 304, 400, 404, 410, 429, 500, 503, 599, 600, 999])
async def test_a_status_is_reported_as_it_is(wire: Wire, status: int) -> None:
    answer = await send(wire, reply(status))
    assert isinstance(answer, Answer)
    assert answer.status == status
    assert answer.elapsed_s >= 0


@pytest.mark.asyncio
async def test_headers_are_reported_as_bytes_in_order_with_repeats(wire: Wire) -> None:
    act = Act(
        status=429, data=b"HTTP/1.1 429 X\r\nRetry-After: 2\r\nretry-after: 3\r\nX: \xe9\r\ncontent-length: 0\r\n\r\n"
    )
    answer = await send(wire, act)
    assert isinstance(answer, Answer)
    assert [(n.lower(), v) for n, v in answer.headers][:3] == [
        (b"retry-after", b"2"),
        (b"retry-after", b"3"),
        (b"x", b"\xe9"),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(("size", "keep", "kept"), [(500, 1024, 500), (5000, 1024, 1024), (5000, 0, 0), (0, 1024, 0)])
async def test_the_excerpt_is_the_beginning_of_the_body_and_bounded_rb_09(
    wire: Wire, size: int, keep: int, kept: int
) -> None:
    body = bytes(i % 251 for i in range(size))
    answer = await send(wire, reply(500, body=body), excerpt_bytes=keep)
    assert isinstance(answer, Answer)
    assert answer.excerpt == body[:kept]


@pytest.mark.asyncio
async def test_exactly_what_was_given_is_sent(wire: Wire) -> None:
    await send(wire, reply(204))
    [(headers, body)] = wire.requests()
    assert body == BODY
    given = {name.decode(): value.decode() for name, value in HEADERS}
    assert headers.items() >= given.items()
    assert headers.keys() - given.keys() <= {"host", "content-length"}


@pytest.mark.asyncio
async def test_an_endpoint_that_never_answers_ends_at_the_deadline_with_an_unknown_outcome(wire: Wire) -> None:
    answer = await send(wire, HANG, timeout_s=0.5)
    assert isinstance(answer, NoAnswer)
    assert (answer.kind, answer.outcome) == (NoAnswerKind.TIMEOUT, Outcome.UNKNOWN)
    assert 0.5 <= answer.elapsed_s < 5


@pytest.mark.asyncio
@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_nothing_is_sent_when_no_time_is_left(wire: Wire, timeout_s: float) -> None:
    answer = await send(wire, reply(204), timeout_s=timeout_s)
    assert isinstance(answer, NoAnswer)
    assert (answer.kind, answer.outcome) == (NoAnswerKind.TIMEOUT, Outcome.NOT_STARTED)
    assert wire.requests() == []


@pytest.mark.asyncio
async def test_a_cancelled_attempt_stays_cancelled(wire: Wire) -> None:
    task = asyncio.create_task(send(wire, HANG))
    await until(lambda: bool(wire.requests()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["ftp://a.test/x", "http://user:pw@a.test/x", "http:///x", "hook", "http://a.test:x/"])
async def test_a_url_that_cannot_be_sent_to_is_our_fault_and_is_not_shown(wire: Wire, url: str) -> None:
    to = endpoint(url)
    answer = await wire.sender.send(to, outgoing(url), 1.0)
    assert isinstance(answer, NotSent)
    assert answer.kind is NotSentKind.ADDRESS_REFUSED
    assert url not in answer.detail


S, U = Outcome.NOT_STARTED, Outcome.UNKNOWN


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (NameNotResolved("x"), NoAnswerKind.DNS, S),
        (TlsFailed("x"), NoAnswerKind.TLS, S),
        (httpx.ConnectError("x"), NoAnswerKind.CONNECT, S),
        (httpx.ConnectTimeout("x"), NoAnswerKind.CONNECT, S),
        (httpx.ProxyError("x"), NoAnswerKind.CONNECT, S),
        (httpx.PoolTimeout("x"), NoAnswerKind.POOL, S),
        (httpx.ReadTimeout("x"), NoAnswerKind.TIMEOUT, U),
        (httpx.WriteTimeout("x"), NoAnswerKind.TIMEOUT, U),
        (httpx.ReadError("x"), NoAnswerKind.DROPPED, U),
        (httpx.WriteError("x"), NoAnswerKind.DROPPED, U),
        (httpx.CloseError("x"), NoAnswerKind.DROPPED, U),
        (httpx.RemoteProtocolError("x"), NoAnswerKind.PROTOCOL, U),
        (httpx.DecodingError("x"), NoAnswerKind.PROTOCOL, U),
        (AddressRefused("loopback"), NotSentKind.ADDRESS_REFUSED, None),
        (TlsFilesUnreadable("x"), NotSentKind.TLS_FILES_UNREADABLE, None),
        (httpx.LocalProtocolError("x"), NotSentKind.INVALID_REQUEST, None),
        (httpx.UnsupportedProtocol("x"), NotSentKind.ADDRESS_REFUSED, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_each_error_of_a_transport_has_its_kind_and_outcome(
    error: Exception, kind: NoAnswerKind | NotSentKind, outcome: Outcome | None
) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error from OSError(104, "at https://a.test/secret-path?secret")

    answer = await HttpSender(httpx.MockTransport(fail), WallClock()).send(
        endpoint("https://a.test/secret-path?secret"), outgoing("https://a.test/secret-path?secret"), 1.0
    )
    assert isinstance(answer, NoAnswer | NotSent)
    assert answer.kind is kind
    assert getattr(answer, "outcome", None) is outcome
    assert "secret" not in repr(answer)
    assert len(answer.detail) <= 200


@pytest.mark.asyncio
async def test_a_changed_endpoint_of_the_same_name_goes_to_its_new_url(wire: Wire) -> None:
    await send(wire, reply(204))
    to = endpoint(wire.url("/elsewhere"))
    await wire.sender.send(to, outgoing(to.url), 5.0)
    assert isinstance(await send(wire, reply(204)), Answer)
