"""What the sender tells its transport about a request, and what the transport may answer besides a response.

httpx has one `ConnectError` for every way of not getting a connection; the verdict on an attempt needs to know
which, and whether bytes may have left. Any other httpx transport works too: it ignores `Way` and `Progress`.
"""

from __future__ import annotations

import dataclasses
import errno
import socket
import ssl
from typing import Final

import httpx

from delivery.model import Network

WAY: Final = "way"
PROGRESS: Final = "progress"
"""Keys of `httpx.Request.extensions`."""

MAX_DETAIL: Final = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Way:
    """How requests of one endpoint travel. Compared by identity, so that looking up its session costs nothing."""

    network: Network
    connect_timeout_s: float
    keep_alive_s: float


class Progress:
    """How far one request has come; the transport writes it, the sender reads it when time is up.

    `connecting` is true while certainly no byte of the request has left. `tried` and `refused` are about the
    addresses of the connection being made: whether one was tried, and why the last refused one was.
    """

    __slots__ = ("connecting", "refused", "tried")

    def __init__(self) -> None:
        self.connecting = False
        self.tried = False
        self.refused: str | None = None


class AddressRefused(httpx.ConnectError):
    """Every address of the host is one that this endpoint must not be sent to. The text says why, not which."""


class NameNotResolved(httpx.ConnectError):
    """The host's name has no address now, for whatever reason."""


class TlsFailed(httpx.ConnectError):
    """The TLS handshake failed: certificate, protocol version or cipher."""


class TlsFilesUnreadable(httpx.TransportError):
    """The CA bundle, client certificate or key cannot be read or makes no sense. The text says which one."""


def detail(error: BaseException) -> str:
    """Say in at most 200 characters what went wrong, without any text that could hold a part of the URL."""
    if isinstance(error, AddressRefused | TlsFilesUnreadable):
        return str(error)[:MAX_DETAIL]
    name = type(error).__name__
    why = _cause(error)
    return (f"{name}: {why}" if why else name)[:MAX_DETAIL]


def _cause(error: BaseException) -> str | None:
    """The innermost code among the causes, else the class of the innermost cause."""
    code: str | None = None
    name: str | None = None
    cause = error.__cause__
    while cause is not None:
        code = _code(cause) or code
        name = type(cause).__name__
        cause = cause.__cause__
    return code or name


def _code(error: BaseException) -> str | None:
    match error:
        case ssl.SSLError():
            # aiohttp's errors are of this class too, but have nothing in it. "Hostname mismatch, certificate is not
            # valid for …": what follows the comma is the host.
            why = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            return str(why).partition(",")[0] if why else None
        case socket.gaierror():
            return _GAI_NAMES.get(error.errno or 0, str(error.errno))
        case OSError() if error.errno:
            return errno.errorcode.get(error.errno, str(error.errno))
        case _:
            return None


_GAI_NAMES: Final = {getattr(socket, name): name for name in dir(socket) if name.startswith("EAI_")}
