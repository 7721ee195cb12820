"""An endpoint's URL: what it must look like, and what its host and port still need to be allowed.

Names are judged again when connecting, by the address that is reached; here, what can be known at the start.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Any

from delivery.policy.address import refusal
from supervisor.settings.faults import expected

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NetworkRange = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = frozenset({80, 443, 8080, 8443})
LONGEST = 4_096

# RFC 3986 §2: unreserved and reserved characters and percent-encoding. Whatever parsers read in different ways
# (backslashes, blanks, control characters, characters beyond ASCII) is not in it.
_CHARACTERS = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(#.*)?")
_HOST_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
# WHATWG URL, "ends in a number": such a host is an IPv4 address or nothing.
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")

# RFC 6761 §6.3: such names always mean the own machine.
_LOCALHOST = re.compile(r"(?:.*\.)?localhost\.?", re.IGNORECASE)
_LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a URL leads. `address` is None for a name that only resolving tells more about."""

    secure: bool
    host: str
    port: int
    address: Address | None


def url(value: Any) -> str:
    """A URL that can be used, as it was given."""
    text = value.strip() if isinstance(value, str) else ""
    target_of(text)
    return text


def target_of(text: str) -> Target:
    """Take a URL apart. Raises `expected(…)`, whose text has nothing of path, query or user information."""
    if not _CHARACTERS.fullmatch(text) or len(text) > LONGEST:
        raise expected(
            f"expected a URL like https://example.com/hooks, at most {LONGEST:,} characters of RFC 3986 "
            "(others percent-encoded, international names as xn--…)"
        )
    match = _URL.fullmatch(text)
    if match is None or (scheme := match[1].lower()) not in {"https", "http"}:
        raise expected("expected a URL that begins with https:// (or http:// with ALLOW_HTTP=true)")
    authority = match[2]
    if "@" in authority:
        raise expected("expected a URL without user name and password: put them in HEADERS, as authorization")
    if match[4] is not None:
        raise expected("expected a URL without a fragment (#…): it would never be sent")
    if "%" in authority:
        raise expected("expected a host without a zone id or percent-encoding")
    parts = _HOST_PORT.fullmatch(authority)
    if parts is None or not parts[1]:
        raise expected("expected a URL with a host, like https://example.com/hooks")
    secure = scheme == "https"
    port = int(parts[2]) if parts[2] else 443 if secure else 80
    if not 1 <= port <= 65_535:
        raise expected("expected a port from 1 to 65535")
    return Target(secure=secure, host=parts[1], port=port, address=_address_of(parts[1]))


def _address_of(host: str) -> Address | None:
    """The address that a host spells, in every way that the system's resolver takes (`127.1`, `0x7f000001`)."""
    if host.startswith("["):
        try:
            return ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise expected("expected an IPv6 address in the brackets") from None
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise expected("expected a host name of letters, digits, '-', '_' and single dots, or an address")
    if not _NUMERIC.fullmatch(host):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.removesuffix(".")))
    except OSError:
        raise expected("expected a host name or an address: a host that ends in a number is no name") from None


def missing(text: str, *, allow_http: bool, allow_ports: frozenset[int], allow_networks: Sequence[str]) -> str | None:
    """What the operator must allow before this URL can be used, all of it at once; None when nothing is missing."""
    target = target_of(text)
    settings: list[str] = []
    reasons: list[str] = []
    if not target.secure and not allow_http:
        settings.append("ALLOW_HTTP=true")
        reasons.append("http:// is not encrypted")
    if target.port not in PORTS | allow_ports:
        settings.append(f"ALLOW_PORTS={','.join(str(port) for port in sorted(allow_ports | {target.port}))}")
        reasons.append(f"port {target.port} is none of {', '.join(str(port) for port in sorted(PORTS))}")
    address = ipaddress.IPv4Address("127.0.0.1") if _LOCALHOST.fullmatch(target.host) else target.address
    networks = [ipaddress.ip_network(network) for network in allow_networks]
    if address is not None and (why := refusal(address, networks)):
        needed = _network_of(address)
        if refusal(address, [*networks, needed]):
            return f"expected another host: its address cannot be allowed ({why})"
        settings.append(f"ALLOW_NETWORKS={','.join([*allow_networks, str(needed)])}")
        reasons.append(f"its address is not public ({why})")
    if not settings:
        return None
    return f"needs {', '.join(settings)} for this endpoint, its tenant or all: {'; '.join(reasons)}"


def _network_of(address: Address) -> NetworkRange:
    """The smallest network to allow for an address; loopback addresses are all one machine."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return ipaddress.IPv6Network(address)
        address = address.ipv4_mapped
    return _LOOPBACK if address in _LOOPBACK else ipaddress.IPv4Network(address)
