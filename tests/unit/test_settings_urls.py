"""Which URLs an endpoint may have, as far as that can be known before connecting."""

from __future__ import annotations

import pytest

from tests.unit.settings_environment import ENDPOINT, RIGHT, faults_of, only_endpoint

LEAK = "sEcReT"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "https://example.com",
            "https://example.com:8443/a?b=c&d[]=%20",
            "HTTPS://EXAMPLE.com./x",
            "https://8.8.8.8/",
        ),
        *("https://[2606:4700::1111]:443/", "https://a_b.example.com/~x/(y)@z", "https://xn--bcher-kva.example/"),
    ],
)
def test_a_public_https_url_is_taken_as_it_is(url: str) -> None:
    assert only_endpoint({**RIGHT, f"{ENDPOINT}URL": f" {url}\n"}).url == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        pytest.param(f"https://user:pa%40{LEAK}@h/x", "without user name and password", id="LG-04-userinfo"),
        pytest.param(f"http://good.test@127.0.0.1/{LEAK}", "without user name and password", id="SS-11-userinfo"),
        pytest.param(f"http://127.0.0.1#@good.test/{LEAK}", "without a fragment", id="SS-11-fragment"),
        pytest.param("http://[fe80::1%25eth0]/", "without a zone id", id="SS-11-zone"),
        pytest.param("http://[fe80::1%eth0]/", "characters of RFC 3986", id="SS-11-bare-zone"),
        pytest.param(f"ftp://example.com/{LEAK}", "begins with https://", id="scheme"),
        pytest.param(f"example.com/{LEAK}", "begins with https://", id="no-scheme"),
        pytest.param(f"https:///{LEAK}", "with a host", id="no-host"),
        pytest.param("https://:443/", "with a host", id="port-only"),
        pytest.param("https://[::1/", "with a host", id="half-a-bracket"),
        pytest.param("https://[::1]x/", "with a host", id="after-the-bracket"),
        pytest.param("https://[example.com]/", "an IPv6 address in the brackets", id="name-in-brackets"),
        pytest.param("https://a..b/", "single dots", id="empty-label"),
        pytest.param("https://1.2.3.4.5/", "a host that ends in a number is no name", id="five-numbers"),
        pytest.param("https://256.1.1.1/", "a host that ends in a number is no name", id="256"),
        pytest.param("https://h:99999/", "a port from 1 to 65535", id="port-range"),
        pytest.param("https://h:0/", "a port from 1 to 65535", id="port-zero"),
        pytest.param(f"https://h\\@evil/{LEAK}", "characters of RFC 3986", id="backslash"),
        pytest.param(f"https://h/{LEAK} x", "characters of RFC 3986", id="blank"),
        pytest.param("https://h/\tx", "characters of RFC 3986", id="tab"),
        pytest.param("https://h/%zz", "characters of RFC 3986", id="half-encoded"),
        pytest.param("https://bücher.example/", "international names as xn--", id="international"),
        pytest.param("https://h/" + "x" * 5_000, "at most 4,096 characters", id="long"),
        pytest.param(f"https://h:9999/{LEAK}", "needs ALLOW_PORTS=9999 for", id="port"),
        pytest.param(f"http://example.com/{LEAK}?{LEAK}", "needs ALLOW_HTTP=true for", id="http"),
        pytest.param("http://[::ffff:127.0.0.1]/", "ALLOW_NETWORKS=127.0.0.0/8", id="SS-01-dotted"),
        pytest.param("http://[::ffff:7f00:1]", "ALLOW_NETWORKS=127.0.0.0/8", id="SS-01-hex"),
        pytest.param("http://[::ffff:169.254.169.254]", "ALLOW_NETWORKS=169.254.169.254/32", id="SS-01-metadata"),
        pytest.param("http://2130706433/", "ALLOW_NETWORKS=127.0.0.0/8", id="SS-03-decimal"),
        pytest.param("http://0x7f000001/", "ALLOW_NETWORKS=127.0.0.0/8", id="SS-03-hex"),
        pytest.param("http://0177.0.0.1/", "ALLOW_NETWORKS=127.0.0.0/8", id="SS-03-octal"),
        pytest.param("http://127.1/", "ALLOW_NETWORKS=127.0.0.0/8", id="SS-03-short"),
        pytest.param("http://0.0.0.0:8080/", "(unspecified)", id="SS-06-zeros"),
        pytest.param("http://[::]/", "(unspecified)", id="SS-06-v6"),
        pytest.param("http://0/", "(unspecified)", id="SS-06-short"),
        pytest.param("http://[fd12:3456:789a::1]:8080/", "fd12:3456:789a::1/128", id="SS-11-bracketed"),
        pytest.param("https://localhost/", "ALLOW_NETWORKS=127.0.0.0/8", id="localhost"),
        pytest.param("https://a.LocalHost./", "ALLOW_NETWORKS=127.0.0.0/8", id="below-localhost"),
        pytest.param("https://127.0.0.1./", "ALLOW_NETWORKS=127.0.0.0/8", id="final-dot"),
        pytest.param("https://10.1.2.3/", "ALLOW_NETWORKS=10.1.2.3/32", id="private"),
        pytest.param("https://[64:ff9b::7f00:1]/", "cannot be allowed (loopback)", id="nat64"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_path_and_query(url: str, says: str) -> None:
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}URL": url})
    assert fault.startswith(f"{ENDPOINT}URL: ")
    assert says in fault
    assert LEAK not in fault


def test_one_line_tells_all_that_a_local_url_needs() -> None:
    environ = {**RIGHT, f"{ENDPOINT}URL": "http://127.0.0.1:9999/hook"}
    (fault,) = faults_of(environ)
    assert "ALLOW_HTTP=true, ALLOW_PORTS=9999, ALLOW_NETWORKS=127.0.0.0/8" in fault
    allowed = {"ALLOW_HTTP": "true", "ALLOW_PORTS": "9999", "ALLOW_NETWORKS": "127.0.0.0/8"}
    assert faults_of({**environ, **{f"DELIVERY_DEFAULTS__{name}": value for name, value in allowed.items()}}) == ()


def test_what_is_allowed_already_stays_in_the_proposal() -> None:
    allowed = {f"{ENDPOINT}ALLOW_PORTS": "8000", f"{ENDPOINT}ALLOW_NETWORKS": "10.0.0.0/8"}
    (fault,) = faults_of({**RIGHT, **allowed, f"{ENDPOINT}URL": "https://127.0.0.1:9999/"})
    assert "ALLOW_PORTS=8000,9999, ALLOW_NETWORKS=10.0.0.0/8,127.0.0.0/8" in fault


@pytest.mark.parametrize("networks", [pytest.param(" 192.168.3.207 ,10.1.0.0/16 ", id="SS-13")])
def test_networks_are_trimmed_and_take_addresses_too(networks: str) -> None:
    environ = {**RIGHT, f"{ENDPOINT}ALLOW_NETWORKS": networks}
    assert only_endpoint(environ).network.allow_networks == ("192.168.3.207/32", "10.1.0.0/16")
    for host in ("192.168.3.207", "10.1.255.1"):
        assert faults_of({**environ, f"{ENDPOINT}URL": f"https://{host}/"}) == ()
    for host in ("192.168.3.208", "10.2.0.1", "169.254.169.254"):
        assert len(faults_of({**environ, f"{ENDPOINT}URL": f"https://{host}/"})) == 1


@pytest.mark.parametrize("networks", [pytest.param(" hooks.internal , 192.168.3.207 ,10.1.0.0/16 ", id="SS-13")])
def test_a_host_name_is_no_network(networks: str) -> None:
    # The case allows hosts by name. Here only the address that is reached decides, and a name can be given another.
    (fault,) = faults_of({**RIGHT, f"{ENDPOINT}ALLOW_NETWORKS": networks})
    assert fault.startswith(f"{ENDPOINT}ALLOW_NETWORKS: expected networks or addresses")


@pytest.mark.parametrize("address", [pytest.param("169.254.169.254", id="SS-13"), "100.100.100.200", "[fd00:ec2::254]"])
def test_a_metadata_address_must_be_named_alone(address: str) -> None:
    environ = {**RIGHT, f"{ENDPOINT}URL": f"https://{address}/"}
    (fault,) = faults_of({**environ, f"{ENDPOINT}ALLOW_NETWORKS": "0.0.0.0/0,::/0"})
    assert "cloud metadata" in fault
    assert faults_of({**environ, f"{ENDPOINT}ALLOW_NETWORKS": address.strip("[]")}) == ()
