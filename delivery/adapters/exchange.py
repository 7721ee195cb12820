"""One request over a connection of aiohttp's pool, and the head of its answer.

aiohttp's connector and parser are used as they are; its `ClientSession` is not. For each request that makes a task,
three timers, several maps of headers and a response that can do everything, which is half of the CPU time of a
delivery; here a request is the bytes that are written.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import aiohttp
import httpx
from yarl import URL

from delivery.adapters.head_first import MAX_HEAD_BYTES
from delivery.adapters.vetting_connector import VettingConnector

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from aiohttp.http_parser import RawResponseMessage
    from aiohttp.streams import StreamReader

_READ_BUFFER_BYTES: Final = 65_536
_BREAKS: Final = "\r\n\0"
_SWITCHING_PROTOCOLS: Final = 101

Headers = Sequence[tuple[bytes, bytes]]


class Target:
    """Where requests with one method and URL go; what is the same in all of them is made once."""

    __slots__ = ("host", "place", "start")

    def __init__(self, method: str, url: URL, tls: ssl.SSLContext | None, proxy: str | None) -> None:
        """Raises aiohttp.InvalidURL or ValueError when nothing can be sent there."""
        through = None if proxy is None else URL(proxy)
        # Never sent itself: it tells the connector where to connect, and how.
        self.place = aiohttp.ClientRequest(method, url, loop=asyncio.get_running_loop(), ssl=tls or True, proxy=through)
        absolute = through is not None and url.scheme == "http"
        # RFC 9112 §3.2: only a proxy that reads the request gets the URL as a whole.
        form = str(url.with_fragment(None)) if absolute else url.raw_path_qs
        self.start = [f"{self.place.method} {form} HTTP/1.1".encode()]
        self.host = f"Host: {self.place.headers['Host']}".encode()
        if absolute and through is not None and through.user is not None:
            credentials = aiohttp.encode_basic_auth(through.user, through.password or "")
            self.start.append(f"Proxy-Authorization: {credentials}".encode())

    def head(self, headers: Headers, length: int, *, close: bool) -> bytes:
        """The bytes before the body. Raises httpx.LocalProtocolError."""
        names = {name.lower() for name, _ in headers}
        if b"transfer-encoding" in names:
            raise httpx.LocalProtocolError("the body has a known length")
        lines = self.start.copy()
        if b"host" not in names:
            lines.append(self.host)
        lines += [b"%b: %b" % header for header in headers]
        if b"content-length" not in names:
            lines.append(b"Content-Length: %d" % length)
        if close and b"connection" not in names:
            lines.append(b"Connection: close")
        try:
            text = b"".join(lines).decode()
        except UnicodeDecodeError as error:
            raise httpx.LocalProtocolError("a header is not UTF-8") from error
        if any(character in text for character in _BREAKS):
            raise httpx.LocalProtocolError("a header has a line break")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """A complete head. Its connection goes back to the pool when `content` is at its end, unless closed before."""

    message: RawResponseMessage
    content: StreamReader
    connection: Connection


async def exchange(
    connector: VettingConnector, target: Target, headers: Headers, body: bytes, timeout: aiohttp.ClientTimeout
) -> Answered:
    """Send it once and wait for the final head. Raises httpx's errors of the connect phase, later aiohttp's."""
    head = target.head(headers, len(body), close=connector.force_close)
    connection = await connector.connect(target.place, [], timeout)
    try:
        protocol = _write(connection, head, body)
        message, content = await protocol.read()
        while message.code < 200 and message.code != _SWITCHING_PROTOCOLS:
            message, content = await protocol.read()
    except BaseException:
        connection.close()
        raise
    content.on_eof(functools.partial(_leave, connection))
    return Answered(message, content, connection)


def _write(connection: Connection, head: bytes, body: bytes) -> ResponseHandler:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None or transport.is_closing():
        # Nothing has been written: a kept connection that its server has just closed.
        raise httpx.ConnectError("the connection was closed before the request")
    protocol.set_response_params(
        auto_decompress=False,
        read_bufsize=_READ_BUFFER_BYTES,
        max_line_size=MAX_HEAD_BYTES,
        max_field_size=MAX_HEAD_BYTES,
        # The limit is on bytes.
        max_headers=MAX_HEAD_BYTES,
    )
    transport.writelines((head, body))
    return protocol


def _leave(connection: Connection) -> None:
    """Give it back, except with a part of the request still unsent: who answered early may never read the rest."""
    transport = connection.transport
    if transport is None or transport.get_write_buffer_size():
        connection.close()
    else:
        connection.release()
