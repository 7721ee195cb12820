"""Addresses that must not be reached, whatever the URL or the resolver says."""

from __future__ import annotations

import pytest

from delivery.model import Network, NoAnswer, NotSent, NotSentKind, Outcome
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import always
from tests.contract.sender_kit import LOOPBACK, answers, endpoint, outgoing, real_sender, send_once, what

pytestmark = pytest.mark.asyncio

LITERALS = [
    *(pytest.param(f"http://{host}/", id=f"SS-01-{host}") for host in ("[::ffff:127.0.0.1]", "[::ffff:7f00:1]")),
    pytest.param("http://[::ffff:169.254.169.254]/", id="SS-01-metadata"),
    *(
        pytest.param(f"http://{host}/", id=f"SS-03-{host}")
        for host in ("2130706433", "0x7f000001", "0177.0.0.1", "127.1")
    ),
    *(pytest.param(f"http://{host}/", id=f"SS-06-{host}") for host in ("0.0.0.0:8080", "[::]", "0")),
    *(pytest.param(f"http://{host}/", id=f"SS-11-{host}") for host in ("[fd12:3456:789a::1]:8080", "[fe80::1%25eth0]")),
    pytest.param("http://good.test@127.0.0.1/", id="SS-11-userinfo"),
    pytest.param("http://127.0.0.1#@good.test/", id="SS-11-fragment"),
    pytest.param("http://127.0.0.1/", id="loopback"),
    pytest.param("http://localhost/", id="localhost"),
    pytest.param("http://169.254.169.254/latest/meta-data/", id="metadata"),
]


@pytest.mark.parametrize("url", LITERALS)
async def test_an_address_inside_is_refused_however_it_is_written(url: str) -> None:
    answer = await send_once(endpoint(url, network=Network(allow_http=True)))
    assert what(answer) == (NotSentKind.ADDRESS_REFUSED, None)
    assert isinstance(answer, NotSent)
    assert "127" not in answer.detail


async def test_the_address_that_is_connected_to_is_the_one_that_was_judged_ss_07() -> None:
    async with ScriptedServer() as server:
        server.script("/hook", always(204))
        to = endpoint(server.url("/hook", host="good.test"), network=Network(allow_http=True))
        for lookup in (answers(["127.0.0.1"]), answers(["93.184.216.34"], ["127.0.0.1"])):
            async with real_sender(lookup) as sender:
                for _ in range(2):
                    answer = await sender.send(to, outgoing(to.url), 0.3)
                    assert isinstance(answer, NotSent | NoAnswer)
        assert server.count() == 0


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(["127.0.0.2", "127.0.0.1"], id="SS-08-second-allowed"),
        pytest.param(["::1", "127.0.0.1"], id="SS-08-aaaa-forbidden"),
    ],
)
async def test_of_mixed_addresses_only_allowed_ones_are_connected_to(found: list[str]) -> None:
    async with ScriptedServer() as server:
        server.script("/hook", always(204))
        to = endpoint(server.url("/hook", host="good.test"))
        assert what(await send_once(to, lookup=answers(found))) == ("204", Outcome.CONFIRMED)


async def test_when_only_forbidden_addresses_are_left_nothing_is_sent_ss_08() -> None:
    async with ScriptedServer() as server:
        to = endpoint(server.url("/hook", host="good.test"))
        answer = await send_once(to, lookup=answers(["127.0.0.2", "::1", "10.0.0.1"]))
        assert what(answer) == (NotSentKind.ADDRESS_REFUSED, None)


async def test_an_endpoint_never_uses_a_connection_that_another_was_allowed_to_make() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", always(204))
        allowed = endpoint(server.url("/hook"), network=Network(allow_networks=LOOPBACK))
        other = endpoint(server.url("/hook"), network=Network())
        assert what(await sender.send(allowed, outgoing(allowed.url), 5.0)) == ("204", Outcome.CONFIRMED)
        assert what(await sender.send(other, outgoing(other.url), 5.0)) == (NotSentKind.ADDRESS_REFUSED, None)
        assert server.count() == 1
