"""Where a request may go: the address that is reached decides, whatever the URL looks like."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.policy.address import refusal

PRIVATE_TOO = [ip_network("10.0.0.0/8"), ip_network("fc00::/7"), ip_network("169.254.0.0/16")]


@pytest.mark.parametrize(
    "text",
    [
        *("10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.3.207", "100.64.0.1", "100.127.255.255"),
        *("127.0.0.1", "127.255.255.254", "169.254.1.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
        *("255.255.255.255", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
        *("::1", "fc00::1", "fd12:3456:789a::1", "fe80::1", "fec0::1", "ff02::1", "2001:db8::1", "3fff::1"),
        *("2001:2::1", "2001:10::1", "64:ff9b:1::1", "100::1", "5f00::1", "::7f00:1", "4000::1"),
    ],
)
def test_an_address_that_is_not_globally_reachable_is_refused(text: str) -> None:
    assert refusal(ip_address(text), ()) is not None


@pytest.mark.parametrize(
    "text",
    [
        *("1.1.1.1", "93.184.216.34", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0", "9.255.255.255"),
        *("126.255.255.255", "128.0.0.1", "223.255.255.255", "192.31.196.1", "2606:4700::1111", "2001:4860:4860::8888"),
        *("2a00::1", "2001:200::1"),
    ],
)
def test_a_globally_reachable_address_is_fine(text: str) -> None:
    assert refusal(ip_address(text), ()) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("::ffff:127.0.0.1", id="SS-01-dotted"),
        pytest.param("::ffff:7f00:1", id="SS-01-hex"),
        pytest.param("::ffff:169.254.169.254", id="SS-01-metadata"),
        pytest.param("64:ff9b::127.0.0.1", id="nat64"),
        pytest.param("64:ff9b::10.0.0.1", id="nat64-private"),
        pytest.param("2002:7f00:1::", id="6to4"),
        pytest.param("2002:a9fe:a9fe::1", id="6to4-metadata"),
        pytest.param("2001:0:7f00:1::b8d8:2e1b", id="teredo-server"),
        pytest.param("2001:0:4136:e378:8000:63bf:80ff:fffe", id="teredo-client"),
    ],
)
def test_a_refused_ipv4_address_stays_refused_inside_an_ipv6_address(text: str) -> None:
    assert refusal(ip_address(text), ()) is not None


@pytest.mark.parametrize("text", ["::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"])
def test_a_global_ipv4_address_is_fine_inside_an_ipv6_address(text: str) -> None:
    assert refusal(ip_address(text), ()) is None


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param("2130706433", id="SS-03-decimal"),
        pytest.param("0x7f000001", id="SS-03-hex"),
        pytest.param("0177.0.0.1", id="SS-03-octal"),
        pytest.param("127.1", id="SS-03-short"),
        pytest.param("0", id="SS-06-zero"),
    ],
)
def test_odd_spellings_are_refused_by_the_address_that_the_resolver_makes_of_them(spelling: str) -> None:
    reached = socket.inet_ntoa(socket.inet_aton(spelling))
    assert refusal(ip_address(reached), ()) is not None


@pytest.mark.parametrize(
    "text", [pytest.param("0.0.0.0", id="SS-06-v4"), pytest.param("::", id="SS-06-v6"), pytest.param("0.1.2.3")]
)
def test_unspecified_addresses_are_refused(text: str) -> None:
    assert refusal(ip_address(text), ()) == "unspecified"


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        pytest.param(["93.184.216.34", "::1"], ["93.184.216.34"], id="SS-08-aaaa-loopback"),
        pytest.param(["93.184.216.34", "10.0.0.1"], ["93.184.216.34"], id="SS-08-second-a-private"),
        pytest.param(["10.0.0.1", "::1"], [], id="SS-08-nothing-left"),
    ],
)
def test_of_mixed_answers_only_the_allowed_ones_are_left(answers: list[str], left: list[str]) -> None:
    assert [text for text in answers if refusal(ip_address(text), ()) is None] == left


def test_an_allowed_network_opens_what_it_names_and_nothing_else() -> None:
    assert refusal(ip_address("10.1.2.3"), PRIVATE_TOO) is None
    assert refusal(ip_address("::ffff:10.1.2.3"), PRIVATE_TOO) is None
    assert refusal(ip_address("64:ff9b::10.1.2.3"), PRIVATE_TOO) is None
    assert refusal(ip_address("fd12::1"), PRIVATE_TOO) is None
    assert refusal(ip_address("192.168.0.1"), PRIVATE_TOO) == "private"
    assert refusal(ip_address("::1"), [ip_network("127.0.0.0/8")]) == "loopback"
    assert refusal(ip_address("127.0.0.1"), [ip_network("127.0.0.0/8")]) is None


@pytest.mark.parametrize("text", ["169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200"])
def test_cloud_metadata_is_opened_only_by_a_network_of_exactly_that_address(text: str) -> None:
    address = ip_address(text)
    wide = [ip_network("0.0.0.0/0"), ip_network("::/0"), *PRIVATE_TOO, ip_network("169.254.169.254/31")]
    assert refusal(address, wide) == "cloud metadata"
    assert refusal(address, [ip_network(text)]) is None


def test_metadata_outside_the_private_ranges_is_refused_too() -> None:
    assert refusal(ip_address("168.63.129.16"), ()) == "cloud metadata"


def test_a_mapped_metadata_address_follows_the_rule_of_the_inner_one() -> None:
    mapped = ip_address("::ffff:169.254.169.254")
    assert refusal(mapped, [ip_network("::ffff:0:0/96"), ip_network("169.254.0.0/16")]) == "cloud metadata"
    assert refusal(mapped, [ip_network("169.254.169.254/32")]) is None


@pytest.mark.parametrize("text", ["fe80::1%eth0", "2606:4700::1111%1"])
def test_zone_ids_are_refused_even_when_the_network_is_allowed_ss_11(text: str) -> None:
    assert refusal(ip_address(text), [ip_network("::/0")]) == "zone id"


@given(st.integers(0, 2**32 - 1))
def test_every_way_of_carrying_an_ipv4_address_is_judged_like_the_address(number: int) -> None:
    plain = refusal(IPv4Address(number), PRIVATE_TOO)
    assert refusal(IPv6Address((0xFFFF << 32) | number), PRIVATE_TOO) == plain
    assert refusal(IPv6Address(int(IPv6Network("64:ff9b::/96").network_address) | number), PRIVATE_TOO) == plain
    assert refusal(IPv6Address((0x2002 << 112) | (number << 80)), PRIVATE_TOO) == plain


@given(st.ip_addresses(v=4))
def test_nothing_is_allowed_that_the_standard_library_calls_private(address: IPv4Address) -> None:
    if refusal(address, ()) is None:
        assert not address.is_private
        assert not address.is_multicast
        assert not address.is_reserved


@given(st.ip_addresses(v=6))
def test_ipv6_outside_global_unicast_is_refused_unless_it_carries_an_ipv4_address(address: IPv6Address) -> None:
    if refusal(address, ()) is None:
        carries = address.ipv4_mapped is not None or address in IPv6Network("64:ff9b::/96")
        assert carries or address in IPv6Network("2000::/3")
