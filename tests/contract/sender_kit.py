"""What the sender's tests share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from delivery.adapters.aiohttp_transport import AiohttpTransport
from delivery.adapters.http_sender import HttpSender
from delivery.adapters.vetting_connector import AddressInfo, Lookup, system_lookup
from delivery.model import Answer, Endpoint, Network, NoAnswer, NotSent, Outcome, Outgoing, Reply

LOOPBACK = ("127.0.0.1/32",)
HEADERS = (
    (b"webhook-id", b"evt_1"),
    (b"webhook-timestamp", b"1700000000"),
    (b"webhook-signature", b"v1,c2lnbmF0dXJl"),
    (b"content-type", b"application/json"),
)
BODY = b'{"a":1}'


class WallClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


def endpoint(url: str, *, network: Network | None = None, **more: Any) -> Endpoint:
    network = network or Network(allow_networks=LOOPBACK, allow_http=True)
    return Endpoint(tenant="acme", name="billing", url=url, topics=frozenset(), network=network, **more)


def outgoing(url: str, body: bytes = BODY, headers: tuple[tuple[bytes, bytes], ...] = HEADERS) -> Outgoing:
    return Outgoing(url=url, headers=headers, body=body)


@contextlib.asynccontextmanager
async def real_sender(lookup: Lookup = system_lookup) -> AsyncIterator[HttpSender]:
    transport = AiohttpTransport(lookup)
    try:
        yield HttpSender(transport, WallClock())
    finally:
        await transport.aclose()


async def send_once(to: Endpoint, *, timeout_s: float = 5.0, lookup: Lookup = system_lookup) -> Reply:
    async with real_sender(lookup) as sender:
        return await sender.send(to, outgoing(to.url), timeout_s)


def answers(*results: Sequence[str] | OSError) -> Lookup:
    """A resolver that gives one result after the other; the last one stays."""
    left = list(results)

    def lookup(_host: str, port: int) -> Sequence[AddressInfo]:
        result = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(result, OSError):
            raise result
        return [_info(address, port) for address in result]

    return lookup


def _info(address: str, port: int) -> AddressInfo:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """What is waited for happens at a socket, which raises no event."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def what(answer: Reply) -> tuple[str, Outcome | None]:
    """The essence of a reply: status or kind, and outcome."""
    match answer:
        case Answer():
            return str(answer.status), Outcome.CONFIRMED
        case NoAnswer():
            return answer.kind, answer.outcome
        case NotSent():
            return answer.kind, None
