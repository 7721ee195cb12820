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
from multidict import CIMultiDict
from yarl import URL

from delivery.adapters.head_first import MAX_HEAD_BYTES
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

_READ_BUFFER_BYTES: Final = 65_536
# Names whose servers never answer hold a thread for up to 30 s each.
_RESOLVER_THREADS: Final = 32
_DNS_CACHE_S: Final = 10
_NO_AUTO_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_TOKENS: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]*")
# aiohttp refuses these too, but only when the connection is there.
_BREAK: Final = re.compile(r"[\r\n\0]")
_NO_BODY: Final = httpx.ByteStream(b"")


@dataclasses.dataclass(slots=True, kw_only=True)
class _Lane:
    """What all requests of one way share. The TLS context is made when the first https request needs it."""

    session: aiohttp.ClientSession
    timeout: aiohttp.ClientTimeout
    network: Network
    tls: ssl.SSLContext | None = None
    url_text: str = ""
    url: URL = dataclasses.field(default_factory=URL)

    def target(self, url: httpx.URL) -> URL:
        """The same URL, character by character; nearly always that of the request before."""
        text = str(url)
        if text != self.url_text:
            try:
                self.url = URL(text, encoded=True)
            except ValueError as error:
                raise httpx.UnsupportedProtocol("not a URL that can be sent to") from error
            self.url_text = text
        return self.url


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Shared by all endpoints of a process; make and close it inside the event loop.

    Endpoints share a session, and so a pool of connections, when they allow the same networks and keep connections
    equally long: a connection to an address that one endpoint allows must not carry another endpoint's requests.
    """

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        """`lookup` resolves names; it is called in a thread."""
        self._executor = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")
        self._resolver = ThreadResolver(self._executor, lookup)
        self._contexts = TlsContexts()
        self._lanes: dict[Way, _Lane] = {}
        self._sessions: dict[object, aiohttp.ClientSession] = {}
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
        target, headers = lane.target(request.url), _headers(request)
        try:
            answer = await lane.session.request(
                request.method,
                target,
                headers=headers,
                data=body,
                allow_redirects=False,
                ssl=lane.tls or True,
                proxy=network.proxy,
                timeout=lane.timeout,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _of_exchange(error) from error
        return _response(answer)

    async def aclose(self) -> None:
        """Close every connection."""
        for session in self._sessions.values():
            await session.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _open(self, way: Way) -> _Lane:
        network = way.network
        key = (network.allow_networks, way.keep_alive_s, network.proxy is None)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._session(way)
        # Name resolution, all addresses and the TLS handshake share this time; infinity turns off a rounding up
        # to whole seconds.
        timeout = aiohttp.ClientTimeout(total=None, connect=way.connect_timeout_s, ceil_threshold=float("inf"))
        lane = self._lanes[way] = _Lane(session=session, timeout=timeout, network=network)
        return lane

    def _session(self, way: Way) -> aiohttp.ClientSession:
        keep = {"keepalive_timeout": way.keep_alive_s} if way.keep_alive_s > 0 else {"force_close": True}
        connector = VettingConnector(
            allow_networks=_networks(way.network) if way.network.proxy is None else None,
            resolver=self._resolver,
            ttl_dns_cache=_DNS_CACHE_S,
            limit=0,
            **keep,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_AUTO_HEADERS,
            auto_decompress=False,
            trust_env=False,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
            # The limit is on bytes.
            max_headers=MAX_HEAD_BYTES,
        )


def _headers(request: httpx.Request) -> CIMultiDict[str]:
    try:
        pairs = [(name.decode(), value.decode()) for name, value in request.headers.raw]
    except UnicodeDecodeError as error:
        raise httpx.LocalProtocolError("a header is not UTF-8") from error
    if any(_BREAK.search(text) for pair in pairs for text in pair):
        raise httpx.LocalProtocolError("a header has a line break")
    return CIMultiDict(pairs)


def _networks(network: Network) -> list[IPv4Network | IPv6Network]:
    return [ip_network(text) for text in network.allow_networks]


def _response(answer: aiohttp.ClientResponse) -> httpx.Response:
    headers = answer.raw_headers
    fault = _fault(answer.status, headers)
    if fault:
        answer.close()
        raise httpx.RemoteProtocolError(fault)
    content = answer.content
    stream: httpx.AsyncByteStream
    if content.is_eof() and content.exception() is None:
        # All of it came with the head; the connection is already back in the pool.
        body = content.read_nowait()
        stream = httpx.ByteStream(body) if body else _NO_BODY
    else:
        stream = _Body(answer)
    return httpx.Response(answer.status, headers=list(headers), stream=stream)


def _fault(status: int, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    if status < 200:
        # aiohttp skips interim answers, except 101, which nobody asked for (RFC 9110 §15.2.2).
        return "switched protocols"
    for name, _ in headers:
        # The parser is lenient with answers and takes `broken header: x` for a header (RFC 9112 §5.1).
        if not name or not _TOKENS.fullmatch(name):
            return "illegal header name"
    return None


class _Body(httpx.AsyncByteStream):
    """The rest of an answer's body. Closing it early closes the connection."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise httpx.ReadError("the body broke off") from error

    async def aclose(self) -> None:
        self._answer.close()


def _of_exchange(error: Exception) -> httpx.TransportError:
    """What happened after the connection was there."""
    match error:
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return httpx.UnsupportedProtocol("not a URL that can be sent to")
        case TimeoutError():
            return httpx.ReadTimeout("no answer in time")
        case aiohttp.ClientResponseError():
            return httpx.RemoteProtocolError("not an HTTP answer")
        case aiohttp.ClientConnectionError() | OSError():
            return httpx.ReadError("the connection broke off")
        case _:
            return httpx.RemoteProtocolError("the exchange failed")
