"""TLS: verified always, and a failure of it is a network failure."""

from __future__ import annotations

import datetime
import ssl
import time
from pathlib import Path

import pytest
import trustme

from delivery.model import Answer, Network, NoAnswer, NoAnswerKind, NotSent, NotSentKind, Outcome
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import always
from tests.contract.sender_kit import LOOPBACK, answers, endpoint, outgoing, real_sender, send_once

pytestmark = pytest.mark.asyncio
NAME = "hooks.test"
HERE = answers(["127.0.0.1"])


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(ca: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(path)
    return str(path)


def serving(certificate: trustme.LeafCert, *, clients: trustme.CA | None = None) -> ScriptedServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    server = ScriptedServer(tls=context)
    server.script("/hook", always(204))
    return server


def network(ca_file: str | None, cert_file: str | None = None) -> Network:
    return Network(allow_networks=LOOPBACK, ca_file=ca_file, client_cert_file=cert_file)


def assert_tls_failure(answer: object) -> NoAnswer:
    assert isinstance(answer, NoAnswer), answer
    assert (answer.kind, answer.outcome) == (NoAnswerKind.TLS, Outcome.NOT_STARTED)
    return answer


async def test_a_good_certificate_delivers_by_name(ca: trustme.CA, ca_file: str) -> None:
    async with serving(ca.issue_cert(NAME)) as server:
        answer = await send_once(endpoint(server.url("/hook", NAME), network=network(ca_file)), lookup=HERE)
        assert isinstance(answer, Answer)
        assert server.requests()[0].header("host") == f"{NAME}:{server.port}"


async def test_an_expired_certificate_is_a_network_failure_until_it_is_renewed_tl_01(
    ca: trustme.CA, ca_file: str
) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = ca.issue_cert(NAME, not_before=yesterday - datetime.timedelta(days=1), not_after=yesterday)
    async with real_sender(HERE) as sender:
        async with serving(expired) as server:
            port = server.port
            to = endpoint(server.url("/hook", NAME), network=network(ca_file))
            for _ in range(3):
                why = assert_tls_failure(await sender.send(to, outgoing(to.url), 5.0)).detail
                assert why == "TlsFailed: certificate has expired"
            assert server.count() == 0
        renewed = serving(ca.issue_cert(NAME))
        await renewed.start(port)
        try:
            assert isinstance(await sender.send(to, outgoing(to.url), 5.0), Answer)
        finally:
            await renewed.stop()


async def test_a_certificate_for_another_name_is_a_tls_failure(ca: trustme.CA, ca_file: str) -> None:
    async with serving(ca.issue_cert("other.test")) as server:
        answer = await send_once(endpoint(server.url("/hook", NAME), network=network(ca_file)), lookup=HERE)
        assert assert_tls_failure(answer).detail == "TlsFailed: Hostname mismatch"
        assert server.count() == 0


async def test_a_certificate_of_an_unknown_authority_is_a_tls_failure(ca: trustme.CA) -> None:
    async with serving(ca.issue_cert(NAME)) as server:
        assert_tls_failure(await send_once(endpoint(server.url("/hook", NAME), network=network(None)), lookup=HERE))
        assert server.count() == 0


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_an_old_protocol_version_is_not_spoken(ca: trustme.CA, ca_file: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    ca.issue_cert(NAME).configure_cert(context)
    async with ScriptedServer(tls=context) as server:
        answer = await send_once(endpoint(server.url("/hook", NAME), network=network(ca_file)), lookup=HERE)
        assert isinstance(answer, NoAnswer)
        assert answer.outcome is Outcome.NOT_STARTED
        assert server.count() == 0


async def test_a_handshake_that_never_ends_is_not_started() -> None:
    async with ScriptedServer() as plain:
        to = endpoint(f"https://127.0.0.1:{plain.port}/hook", connect_timeout_s=0.2)
        answer = await send_once(to)
        assert isinstance(answer, NoAnswer)
        assert (answer.kind, answer.outcome) == (NoAnswerKind.CONNECT, Outcome.NOT_STARTED)


async def test_a_client_certificate_is_shown_to_who_asks(ca: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    cert_file = tmp_path / "client.pem"
    ca.issue_cert("client.test").private_key_and_cert_chain_pem.write_to_path(cert_file)
    async with serving(ca.issue_cert(NAME), clients=ca) as server:
        url = server.url("/hook", NAME)
        assert isinstance(await send_once(endpoint(url, network=network(ca_file, str(cert_file))), lookup=HERE), Answer)
        without = await send_once(endpoint(url, network=network(ca_file)), lookup=HERE)
        assert isinstance(without, NoAnswer)
        assert server.count() == 1


@pytest.mark.parametrize("which", ["ca", "certificate"])
@pytest.mark.parametrize("content", [None, "nonsense"])
async def test_files_that_cannot_be_read_are_our_fault_until_they_can(
    ca: trustme.CA, ca_file: str, tmp_path: Path, which: str, content: str | None
) -> None:
    file = tmp_path / "secret-name.pem"
    if content is not None:
        file.write_text(content)
    files = network(str(file)) if which == "ca" else network(ca_file, str(file))
    async with serving(ca.issue_cert(NAME)) as server, real_sender(HERE) as sender:
        to = endpoint(server.url("/hook", NAME), network=files)
        answer = await sender.send(to, outgoing(to.url), 5.0)
        assert isinstance(answer, NotSent)
        assert answer.kind is NotSentKind.TLS_FILES_UNREADABLE
        assert server.count() == 0
        (ca.cert_pem if which == "ca" else ca.issue_cert("client.test").private_key_and_cert_chain_pem).write_to_path(
            file
        )
        assert isinstance(await sender.send(to, outgoing(to.url), 5.0), Answer)


async def test_a_thousand_endpoints_share_one_context_me_01() -> None:
    async with real_sender() as sender:
        started = time.process_time()
        for n in range(1000):
            to = endpoint(f"https://127.0.0.1:9/{n}", network=Network(allow_networks=LOOPBACK))
            assert isinstance(await sender.send(to, outgoing(to.url), 5.0), NoAnswer)
        assert time.process_time() - started < 5
