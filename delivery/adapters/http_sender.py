"""Sends one request once, over any httpx transport, and reports what happened."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any, Final

import httpx

from delivery.adapters.http_way import (
    PROGRESS,
    WAY,
    AddressRefused,
    NameNotResolved,
    Progress,
    TlsFailed,
    TlsFilesUnreadable,
    Way,
    detail,
)
from delivery.model import (
    Answer,
    Endpoint,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    Outcome,
    Outgoing,
    Reply,
)
from delivery.ports import Clock

# The head has decided; this much longer is waited for a body, so that its connection can be used again.
BODY_S: Final = 1.0
# The configuration's fault and not the event's: no event may become a dead letter for it.
_URL_REFUSED: Final = NotSent(kind=NotSentKind.ADDRESS_REFUSED, detail="the URL is none that can be sent to")


# The first that fits. Before a connection is there no byte can have left, after that any may have.
_ENDS: Final[tuple[tuple[type[httpx.RequestError], tuple[NoAnswerKind, Outcome]], ...]] = (
    (NameNotResolved, (NoAnswerKind.DNS, Outcome.NOT_STARTED)),
    (TlsFailed, (NoAnswerKind.TLS, Outcome.NOT_STARTED)),
    (httpx.ConnectError, (NoAnswerKind.CONNECT, Outcome.NOT_STARTED)),
    (httpx.ConnectTimeout, (NoAnswerKind.CONNECT, Outcome.NOT_STARTED)),
    (httpx.ProxyError, (NoAnswerKind.CONNECT, Outcome.NOT_STARTED)),
    (httpx.PoolTimeout, (NoAnswerKind.POOL, Outcome.NOT_STARTED)),
    (httpx.TimeoutException, (NoAnswerKind.TIMEOUT, Outcome.UNKNOWN)),
    (httpx.NetworkError, (NoAnswerKind.DROPPED, Outcome.UNKNOWN)),
)
_MALFORMED: Final = (NoAnswerKind.PROTOCOL, Outcome.UNKNOWN)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What all requests of an endpoint share; `endpoint` and `text` tell whether it is still right."""

    endpoint: Endpoint
    text: str
    url: httpx.URL
    way: Way
    timeout: dict[str, float | None]


class HttpSender:
    """Implements `ports.Sender`. `max_answer_bytes` and `excerpt_bytes` are the endpoint's."""

    def __init__(self, transport: httpx.AsyncBaseTransport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._prepared: dict[tuple[str, str], _Prepared] = {}

    async def send(self, endpoint: Endpoint, outgoing: Outgoing, timeout_s: float) -> Reply:
        """POST it once; `timeout_s` bounds everything from name resolution to the last byte of the body.

        A complete head is an answer whatever becomes of the body. Cancelling closes the connection.
        """
        started = self._clock.monotonic()
        if timeout_s <= 0:
            return NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.NOT_STARTED, detail="no time left")
        progress = Progress()
        try:
            request = self._request(endpoint, outgoing, progress)
        except httpx.InvalidURL:
            return _URL_REFUSED
        except (ValueError, TypeError) as error:
            return NotSent(kind=NotSentKind.INVALID_REQUEST, detail=detail(error))
        response: httpx.Response | None = None
        body, whole = bytearray(), False
        try:
            async with asyncio.timeout(timeout_s) as limit:
                response = await self._transport.handle_async_request(request)
                if isinstance(response.stream, httpx.ByteStream):
                    body += b"".join(response.stream)
                    whole = True
                else:
                    whole = await _read(response, limit, body, endpoint.max_answer_bytes)
        except TimeoutError:
            if response is None:
                outcome = Outcome.NOT_STARTED if progress.connecting else Outcome.UNKNOWN
                return self._no_answer(NoAnswerKind.TIMEOUT, outcome, "attempt timeout", started)
        except httpx.RequestError as error:
            return self._failed(error, started)
        return Answer(
            status=response.status_code,
            headers=tuple(response.headers.raw),
            excerpt=bytes(body[: endpoint.excerpt_bytes]),
            cut=not whole or len(body) > endpoint.excerpt_bytes,
            elapsed_s=self._clock.monotonic() - started,
        )

    def _request(self, endpoint: Endpoint, outgoing: Outgoing, progress: Progress) -> httpx.Request:
        prepared = self._prepared.get((endpoint.tenant, endpoint.name))
        if prepared is None or prepared.endpoint is not endpoint or prepared.text != outgoing.url:
            prepared = _prepare(endpoint, outgoing.url)
            self._prepared[endpoint.tenant, endpoint.name] = prepared
        extensions: dict[str, Any] = {WAY: prepared.way, PROGRESS: progress, "timeout": prepared.timeout}
        # Given as a stream, the body costs a third of what `content=` does: httpx adds no headers then.
        stream = httpx.ByteStream(outgoing.body)
        return httpx.Request("POST", prepared.url, headers=outgoing.headers, stream=stream, extensions=extensions)

    def _failed(self, error: httpx.RequestError, started: float) -> Reply:
        why = detail(error)
        match error:
            case AddressRefused():
                return NotSent(kind=NotSentKind.ADDRESS_REFUSED, detail=why)
            case TlsFilesUnreadable():
                return NotSent(kind=NotSentKind.TLS_FILES_UNREADABLE, detail=why)
            case httpx.UnsupportedProtocol():
                return _URL_REFUSED
            case httpx.LocalProtocolError():
                return NotSent(kind=NotSentKind.INVALID_REQUEST, detail=why)
            case _:
                kind, outcome = next((end for kin, end in _ENDS if isinstance(error, kin)), _MALFORMED)
                return self._no_answer(kind, outcome, why, started)

    def _no_answer(self, kind: NoAnswerKind, outcome: Outcome, why: str, started: float) -> NoAnswer:
        return NoAnswer(kind=kind, outcome=outcome, detail=why, elapsed_s=self._clock.monotonic() - started)


def _prepare(endpoint: Endpoint, text: str) -> _Prepared:
    """Raises httpx.InvalidURL."""
    url = httpx.URL(text)
    if url.scheme not in ("http", "https") or not url.raw_host or url.userinfo:
        raise httpx.InvalidURL("needs http or https, a host, and no credentials")
    return _Prepared(
        endpoint=endpoint,
        text=text,
        url=url,
        way=Way(
            network=endpoint.network,
            connect_timeout_s=endpoint.connect_timeout_s,
            # A kept connection that its server has just closed would leave it open whether anything was received.
            keep_alive_s=endpoint.keep_alive_s if endpoint.idempotent else 0.0,
        ),
        timeout={"connect": endpoint.connect_timeout_s, "read": None, "write": None, "pool": None},
    )


async def _read(response: httpx.Response, limit: asyncio.Timeout, body: bytearray, at_most: int) -> bool:
    """Read on until the end, `at_most` bytes or BODY_S; a body that is not read to its end closes its connection.

    Returns whether this is all of it.
    """
    now = asyncio.get_running_loop().time()
    limit.reschedule(min(limit.when() or now, now + BODY_S))
    whole = False
    # Nothing that a body does may change what its head has said.
    with contextlib.suppress(Exception):
        try:
            async for chunk in response.aiter_raw():
                body += chunk[: at_most - len(body)]
                if len(body) >= at_most:
                    break
            else:
                whole = True
        finally:
            await response.aclose()
    return whole
