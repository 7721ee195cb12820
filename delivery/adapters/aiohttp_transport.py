"""An httpx transport over aiohttp: httpx's requests, responses and errors at a quarter of its CPU time.

It sends what it is given and nothing else: no cookies, redirects, decompression, environment proxies or headers of
its own besides Host (and Content-Length where the request says none), and it never sends anything twice.
"""

from __future__ import annotations

import dataclasses
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

import aiohttp
import httpx
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from delivery.adapters.exchange import Answered, Target, exchange
from delivery.adapters.http_way import PROGRESS, WAY, AddressRefused, Progress, Way
from delivery.adapters.tls_contexts import TlsContexts
from delivery.adapters.vetting_connector import (
    CURRENT,
    Lookup,
    ThreadResolver,
    VettingConnector,
    literal_refusal,
    system_lookup,
)
from delivery.model import Network

# Names whose servers never answer hold a thread for up to 30 s each.
_RESOLVER_THREADS: Final = 32
_DNS_CACHE_S: Final = 10
_TOKENS: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]*")
_NO_BODY: Final = httpx.ByteStream(b"")


@dataclasses.dataclass(slots=True, kw_only=True)
class _Lane:
    """What all requests of one way share. The TLS context is made when the first https request needs it."""

    connector: VettingConnector
    timeout: aiohttp.ClientTimeout
    network: Network
    tls: ssl.SSLContext | None = None
    known: tuple[str, str] = ("", "")
    aim: Target | None = None

    def target(self, request: httpx.Request) -> Target:
        """The same URL, character by character; nearly always that of the request before."""
        wanted = (request.method, str(request.url))
        if self.aim is None or wanted != self.known:
            try:
                self.aim = Target(request.method, URL(wanted[1], encoded=True), self.tls, self.network.proxy)
            except (ValueError, aiohttp.InvalidURL) as error:
                raise httpx.UnsupportedProtocol("not a URL that can be sent to") from error
            self.known = wanted
        return self.aim


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Shared by all endpoints of a process; make and close it inside the event loop.

    Endpoints share a pool of connections when they allow the same networks and keep connections
    equally long: a connection to an address that one endpoint allows must not carry another endpoint's requests.
    """

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        """`lookup` resolves names; it is called in a thread."""
        self._executor = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")
        self._resolver = ThreadResolver(self._executor, lookup)
        self._contexts = TlsContexts()
        self._lanes: dict[Way, _Lane] = {}
        self._connectors: dict[object, VettingConnector] = {}
        self._default = Way(network=Network(), connect_timeout_s=5.0, keep_alive_s=4.0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it once and return when the head of the answer is complete.

        Raises httpx errors: `ConnectError` and its kin, `ConnectTimeout`, `ProxyError`, `LocalProtocolError` and
        `TlsFilesUnreadable` only when no byte of the request has left, `ReadError` and `RemoteProtocolError` when
        some may have.
        """
        way = request.extensions.get(WAY, self._default)
        progress = request.extensions.get(PROGRESS) or Progress()
        progress.connecting = True
        CURRENT.set(progress)
        lane = self._lanes.get(way) or self._open(way)
        network = lane.network
        if request.url.scheme == "https" and lane.tls is None:
            lane.tls = await self._contexts.of(network)
        if network.proxy is not None and (why := literal_refusal(request.url.raw_host.decode(), _networks(network))):
            raise AddressRefused(why)
        body = b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else await request.aread()
        try:
            answer = await exchange(lane.connector, lane.target(request), request.headers.raw, body, lane.timeout)
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            raise _of_exchange(error) from error
        return _response(answer)

    async def aclose(self) -> None:
        """Close every connection."""
        for connector in self._connectors.values():
            await connector.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _open(self, way: Way) -> _Lane:
        network = way.network
        key = (network.allow_networks, way.keep_alive_s, network.proxy is None)
        connector = self._connectors.get(key)
        if connector is None:
            connector = self._connectors[key] = self._connector(way)
        # Name resolution, all addresses and the TLS handshake share this time; infinity turns off a rounding up
        # to whole seconds.
        timeout = aiohttp.ClientTimeout(total=None, connect=way.connect_timeout_s, ceil_threshold=float("inf"))
        lane = self._lanes[way] = _Lane(connector=connector, timeout=timeout, network=network)
        return lane

    def _connector(self, way: Way) -> VettingConnector:
        keep = {"keepalive_timeout": way.keep_alive_s} if way.keep_alive_s > 0 else {"force_close": True}
        return VettingConnector(
            allow_networks=_networks(way.network) if way.network.proxy is None else None,
            resolver=self._resolver,
            ttl_dns_cache=_DNS_CACHE_S,
            limit=0,
            **keep,
        )


def _networks(network: Network) -> list[IPv4Network | IPv6Network]:
    return [ip_network(text) for text in network.allow_networks]


def _response(answer: Answered) -> httpx.Response:
    status, headers = answer.message.code, answer.message.raw_headers
    fault = _fault(status, headers)
    if fault:
        answer.connection.close()
        raise httpx.RemoteProtocolError(fault)
    content = answer.content
    stream: httpx.AsyncByteStream
    if content.is_eof() and content.exception() is None:
        # All of it came with the head; the connection is already back in the pool.
        body = content.read_nowait()
        stream = httpx.ByteStream(body) if body else _NO_BODY
    else:
        stream = _Body(answer)
    return httpx.Response(status, headers=list(headers), stream=stream)


def _fault(status: int, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    if status < 200:
        # Interim answers are skipped, except 101, which nobody asked for (RFC 9110 §15.2.2).
        return "switched protocols"
    for name, _ in headers:
        # The parser is lenient with answers and takes `broken header: x` for a header (RFC 9112 §5.1).
        if not name or not _TOKENS.fullmatch(name):
            return "illegal header name"
    return None


class _Body(httpx.AsyncByteStream):
    """The rest of an answer's body. Closing it early closes the connection."""

    def __init__(self, answer: Answered) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise httpx.ReadError("the body broke off") from error

    async def aclose(self) -> None:
        self._answer.connection.close()


def _of_exchange(error: Exception) -> httpx.TransportError:
    """What happened after the connection was there."""
    match error:
        case TimeoutError():
            return httpx.ReadTimeout("no answer in time")
        case HttpProcessingError():
            return httpx.RemoteProtocolError("not an HTTP answer")
        case aiohttp.ClientConnectionError() | OSError():
            return httpx.ReadError("the connection broke off")
        case _:
            return httpx.RemoteProtocolError("the exchange failed")
