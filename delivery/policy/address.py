"""Which addresses a request may be sent to.

Endpoint URLs come from people outside, so a URL must not become a way into the inside (server-side request
forgery). Only the address that is really connected to counts, never the text of the URL. The table is that of
the IANA special-purpose address registries (RFC 6890), written out because `ipaddress.is_global` gives other
answers in other Python versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
NetworkRange = IPv4Network | IPv6Network

_V4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), why)
    for network, why in (
        ("0.0.0.0/8", "unspecified"),  # RFC 1122 3.2.1.3; Linux connects 0.0.0.0 to the local host
        ("10.0.0.0/8", "private"),  # RFC 1918
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),  # RFC 6598
        ("127.0.0.0/8", "loopback"),  # RFC 1122
        ("169.254.0.0/16", "link-local"),  # RFC 3927
        ("192.0.0.0/24", "reserved"),  # RFC 6890, protocol assignments
        ("192.0.2.0/24", "reserved"),  # RFC 5737, documentation, also the next two
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),  # RFC 7526, former 6to4 relays
        ("198.18.0.0/15", "reserved"),  # RFC 2544, benchmarks
        ("224.0.0.0/4", "multicast"),  # RFC 5771
        ("240.0.0.0/4", "reserved"),  # RFC 1112, broadcast included
    )
)
_V6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), why)
    for network, why in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fc00::/7", "private"),  # RFC 4193
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),  # RFC 3879, former site-local
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),  # RFC 2928, protocol assignments; Teredo is judged before
        ("2001:db8::/32", "reserved"),  # RFC 3849, documentation
        ("3fff::/20", "reserved"),  # RFC 9637, documentation
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")  # RFC 4291 2.4: all that was ever handed out as global unicast
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052
# What hands out credentials to whoever can reach it. Azure's and Oracle's lie outside the link-local range.
_METADATA: frozenset[Address] = frozenset(
    (
        IPv4Address("169.254.169.254"),  # AWS, Google, Azure, Oracle, DigitalOcean, OpenStack and others
        IPv4Address("169.254.170.2"),  # AWS ECS task credentials
        IPv4Address("169.254.170.23"),  # AWS EKS pod identity
        IPv4Address("169.254.42.42"),  # Scaleway
        IPv4Address("169.254.0.23"),  # Tencent
        IPv4Address("100.100.100.200"),  # Alibaba
        IPv4Address("168.63.129.16"),  # Azure platform
        IPv4Address("192.0.0.192"),  # Oracle, former
        IPv6Address("fd00:ec2::254"),  # AWS
        IPv6Address("fd00:ec2::23"),  # AWS EKS pod identity
        IPv6Address("fd20:ce::254"),  # Google
        IPv6Address("fd00:42::42"),  # Scaleway
        IPv6Address("fe80::a9fe:a9fe"),  # OpenStack
    )
)


def refusal(address: Address, allow_networks: Sequence[NetworkRange]) -> str | None:
    """Say why `address` may not be connected to; None when it may.

    It may when it is globally reachable, or in a network that the operator allows. Addresses of cloud metadata
    services need a network of exactly that one address. IPv6 forms that carry an IPv4 address (mapped, NAT64,
    6to4, Teredo) are judged by what they carry, also against the allowed networks.
    """
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return "zone id"
        carried = _carried(address)
        if carried:
            return next((why for inner in carried if (why := refusal(inner, allow_networks))), None)
    if address in _METADATA:
        return None if _named_exactly(address, allow_networks) else "cloud metadata"
    if any(address in network for network in allow_networks):
        return None
    return _special(address)


def _carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    # Teredo names its relay server and its client (RFC 4380 4): packets go to either.
    return address.teredo or ()


def _named_exactly(address: Address, allow_networks: Sequence[NetworkRange]) -> bool:
    return any(network.num_addresses == 1 and address in network for network in allow_networks)


def _special(address: Address) -> str | None:
    if isinstance(address, IPv4Address):
        return next((why for network, why in _V4 if address in network), None)
    found = next((why for network, why in _V6 if address in network), None)
    return found if found or address in _GLOBAL_V6 else "reserved"
