"""aiohttp's connector, changed: addresses are vetted, names are resolved in own threads, errors tell their phase."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from delivery.adapters.head_first import HeadFirst
from delivery.adapters.http_way import AddressRefused, NameNotResolved, Progress, TlsFailed
from delivery.policy.address import NetworkRange, refusal

if TYPE_CHECKING:
    from aiohttp.client import ClientTimeout
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
Lookup = Callable[[str, int], Sequence[AddressInfo]]
"""Blocking; takes host and port, answers like `socket.getaddrinfo`, raises OSError."""

CURRENT: Final[contextvars.ContextVar[Progress]] = contextvars.ContextVar("progress")


def system_lookup(host: str, port: int) -> Sequence[AddressInfo]:
    """Ask the system's resolver for both address families, as far as this machine has them."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


class ThreadResolver(AbstractResolver):
    """Resolves in threads of its own.

    The event loop's own lookups share a pool with everything else (with uvloop four threads for the whole
    process), where a few names whose servers never answer would stop every other lookup.
    """

    def __init__(self, executor: Executor, lookup: Lookup) -> None:
        self._executor = executor
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return at least one address. Raises OSError."""
        try:
            infos = await asyncio.get_running_loop().run_in_executor(self._executor, self._lookup, host, port)
        except UnicodeError as error:
            # An empty or overlong label: no name of that form can exist.
            raise socket.gaierror(socket.EAI_NONAME, "not a host name") from error
        found = [
            ResolveResult(
                hostname=host,
                host=_numeric(address),
                port=port,
                family=info_family,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for info_family, _, proto, _, address in infos
            if family in (socket.AF_UNSPEC, info_family)
        ]
        if not found:
            # aiohttp takes an empty list for granted to be impossible.
            raise socket.gaierror(socket.EAI_NONAME, "no addresses")
        return found

    async def close(self) -> None:
        """Leave the threads to whoever made them."""


def _numeric(address: tuple[Any, ...]) -> str:
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{scope}" if scope else str(address[0])


class _RefusedError(OSError):
    """An OSError, so that the connector goes on with the next address."""


class VettingConnector(aiohttp.TCPConnector):
    """Raises httpx's errors for everything that happens before a connection is there: no byte had left then."""

    def __init__(self, *, allow_networks: Sequence[NetworkRange] | None, **kwargs: Any) -> None:
        """`allow_networks` as for `refusal`; None vets nothing (the way to a proxy that the operator named)."""
        self._allowed = allow_networks
        super().__init__(socket_factory=None if allow_networks is None else self._socket, **kwargs)
        # There is no argument for it.
        self._factory = cast("functools.partial[ResponseHandler]", functools.partial(HeadFirst, loop=self._loop))

    def _socket(self, info: AddressInfo) -> socket.socket:
        """Make a socket for the very address that is connected to next, if it may be."""
        family, kind, proto, _, address = info
        progress = CURRENT.get()
        why = _refused(_numeric(address), self._allowed or ())
        if why:
            progress.refused = why
            raise _RefusedError(why)
        progress.tried = True
        return socket.socket(family, kind, proto)

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        """Take a connection from the pool or make one. Raises httpx errors of the connect phase."""
        progress = CURRENT.get()
        try:
            connection = await super().connect(req, traces, timeout)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _of_connecting(error, progress) from error
        progress.connecting = False
        return connection


def _of_connecting(error: Exception, progress: Progress) -> httpx.TransportError:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return NameNotResolved("name resolution failed")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return TlsFailed("TLS handshake failed")
        case aiohttp.InvalidURL():
            return AddressRefused("not a canonical IPv4 address")
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return httpx.ProxyError("the proxy gave no connection")
        case _ if progress.refused is not None and not progress.tried:
            return AddressRefused(progress.refused)
        case _:
            return httpx.ConnectError("no connection")


def literal_refusal(host: str, allow_networks: Sequence[NetworkRange]) -> str | None:
    """Judge a URL's host when it is an address, in any spelling that a resolver takes for one; names are fine."""
    with contextlib.suppress(ValueError):
        return refusal(ipaddress.ip_address(host.strip("[]")), allow_networks)
    with contextlib.suppress(OSError):
        return refusal(ipaddress.IPv4Address(socket.inet_aton(host)), allow_networks)
    return "not an address" if ":" in host else None


def _refused(address: str, allow_networks: Sequence[NetworkRange]) -> str | None:
    try:
        return refusal(ipaddress.ip_address(address), allow_networks)
    except ValueError:
        return "not an address"
