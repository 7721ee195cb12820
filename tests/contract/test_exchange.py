"""The bytes of a request on its connection: head, proxy, and what becomes of a connection that was answered early."""

from __future__ import annotations

import asyncio
import base64
import socket
from ipaddress import ip_network
from typing import Any

import aiohttp
import httpx
import pytest
from yarl import URL

from delivery.adapters.exchange import Target, exchange
from delivery.adapters.http_way import Progress
from delivery.adapters.vetting_connector import CURRENT, VettingConnector
from delivery.model import Network, NotSent, NotSentKind, Outcome
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import always
from tests.contract.sender_kit import BODY, HEADERS, endpoint, outgoing, real_sender, what

pytestmark = pytest.mark.asyncio
CREDENTIALS = "Basic " + base64.b64encode(b"us er:pa:ss").decode()
# More than the kernel's buffers of both sides hold.
LARGE = 16 * 1_048_576


def with_credentials(url: str) -> str:
    return url.replace("http://", "http://us%20er:pa%3Ass@")


async def test_a_request_is_host_and_the_given_headers_in_their_order_and_nothing_else() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", always(204))
        to = endpoint(server.url("/hook?a=b%20c"))
        given = (*HEADERS, (b"content-length", b"%d" % len(BODY)))
        await sender.send(to, outgoing(to.url, headers=given), 5.0)
        (seen,) = server.requests()
        assert seen.head.split(b"\r\n")[0] == b"POST /hook?a=b%20c HTTP/1.1"
        assert seen.headers == [
            ("Host", f"127.0.0.1:{server.port}"),
            *((name.decode(), value.decode()) for name, value in given),
        ]
        assert seen.body == BODY


class ClosingConnector(VettingConnector):
    """Gives connections that are being closed: the other side has just done so, and nobody has noticed yet."""

    async def connect(self, *arguments: Any) -> Any:
        connection = await super().connect(*arguments)
        assert connection.transport is not None
        connection.transport.close()
        return connection


async def test_nw_01_a_connection_that_is_closed_before_a_byte_was_written_has_not_started_anything() -> None:
    async with ScriptedServer() as server:
        CURRENT.set(Progress())
        connector = ClosingConnector(allow_networks=[ip_network("127.0.0.1/32")])
        target = Target("POST", URL(server.url("/hook")), None, None)
        # The sender makes `not_started` of this error.
        with pytest.raises(httpx.ConnectError, match="before the request"):
            await exchange(connector, target, HEADERS, BODY, aiohttp.ClientTimeout(total=5))
        await connector.close()
        assert server.count() == 0


async def test_a_missing_content_length_is_added() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", always(204))
        to = endpoint(server.url("/hook"))
        await sender.send(to, outgoing(to.url), 5.0)
        assert server.requests()[0].header("content-length") == str(len(BODY))


async def test_a_request_that_claims_another_framing_is_not_sent() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        to = endpoint(server.url("/hook"))
        answer = await sender.send(to, outgoing(to.url, headers=((b"Transfer-Encoding", b"chunked"),)), 5.0)
        assert isinstance(answer, NotSent)
        assert answer.kind is NotSentKind.INVALID_REQUEST
        assert server.connections == 0


async def test_a_plain_request_carries_the_proxys_credentials_every_time() -> None:
    async with ScriptedServer() as proxy, real_sender() as sender:
        proxy.script("http://hooks.test/hook", always(204))
        network = Network(allow_http=True, proxy=with_credentials(proxy.url("")))
        to = endpoint("http://hooks.test/hook", network=network)
        for _ in range(2):
            assert what(await sender.send(to, outgoing(to.url), 5.0)) == ("204", Outcome.CONFIRMED)
        assert [seen.header("proxy-authorization") for seen in proxy.requests()] == [CREDENTIALS] * 2
        assert [seen.header("host") for seen in proxy.requests()] == ["hooks.test"] * 2


async def test_a_tunnel_is_asked_for_with_the_proxys_credentials_every_time() -> None:
    async with ScriptedServer() as proxy, real_sender() as sender:
        proxy.script("hooks.test:443", always(403))
        to = endpoint("https://hooks.test/hook", network=Network(proxy=with_credentials(proxy.url(""))))
        for _ in range(2):
            await sender.send(to, outgoing(to.url), 5.0)
        assert [seen.header("proxy-authorization") for seen in proxy.requests()] == [CREDENTIALS] * 2


class _AnswersUnread(asyncio.Protocol):
    """Answers after the first bytes, and reads no further."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, _data: bytes) -> None:
        self._transport.pause_reading()
        self._transport.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")


async def test_a_connection_that_was_answered_before_the_request_was_out_is_not_used_again() -> None:
    made: list[_AnswersUnread] = []

    def make() -> _AnswersUnread:
        made.append(_AnswersUnread())
        return made[-1]

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        listening.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(make, sock=listening)
        async with server, real_sender() as sender:
            to = endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/hook")
            for _ in range(2):
                answer = await sender.send(to, outgoing(to.url, body=b"x" * LARGE), 5.0)
                assert what(answer) == ("413", Outcome.CONFIRMED)
        assert len(made) == 2
