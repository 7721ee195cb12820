"""aiohttp's side of a connection, taught that a complete head is an answer and that heads have a limit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

if TYPE_CHECKING:
    import asyncio

    from aiohttp.http_parser import RawResponseMessage
    from aiohttp.streams import StreamReader

MAX_HEAD_BYTES: Final = 65_536

_HEAD_END: Final = re.compile(rb"\n\r?\n")


class HeadFirst(ResponseHandler):
    """Gives the parser each head apart from what follows it, and nothing that follows an answer.

    The parser throws a head away when the body's first bytes, in the same read, are not well-formed chunks: a
    confirmed delivery would look like a malformed answer. It limits single headers, but not all of them together.
    And it takes whatever comes over an idle connection for the answer to the next request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._head_left = MAX_HEAD_BYTES
        self._answered = False
        self._before = b""

    def set_response_params(self, **params: Any) -> None:
        """Begin a new answer."""
        self._head_left = MAX_HEAD_BYTES
        self._answered = False
        self._before = b""
        super().set_response_params(**params)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Note when a head is the final one; the parser calls this for each."""
        self._answered = self._answered or data[0].code >= 200
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Take what was read; interim answers (RFC 9110 §15.2) are heads too and count towards the limit."""
        while data and self._between_bodies():
            if self._answered:
                self._close()
                return
            found = _HEAD_END.search(self._before + data)
            end = found.end() - len(self._before) if found else len(data)
            self._head_left -= end
            if self._head_left < 0:
                self._close()
                self.set_exception(HttpProcessingError(code=400, message="head too large"))
                return
            # A head's end may be spread over two reads.
            self._before = b"" if found else (self._before + data)[-2:]
            head, data = data[:end], data[end:]
            super().data_received(head)
            if self.transport is None or self.transport.is_closing():
                return
        if data:
            super().data_received(data)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """End the body too: after malformed chunks nobody else does, and its reader would wait for nothing."""
        super().set_exception(exc, exc_cause or exc)
        payload = self._payload
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(ClientPayloadError("malformed body"))

    def _between_bodies(self) -> bool:
        return self._parser is not None and (self._payload is None or self._payload.is_eof())

    def _close(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.close()
