"""What each kind of answer, and of none, means: seen at the endpoint and in the dead letter."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import socket
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook

from supervisor.demo.scripts import Act, Asked, Script, Then, always, doing, drop, raw, reply, sequence
from tests.acceptance.harness import SECRET, DeadLetter, System, Worker, free_port, until

ATTEMPTS = 3
QUICK = {"RETRY__MAX_ATTEMPTS": str(ATTEMPTS), "RETRY__BASE_S": "0.05", "RETRY__MIN_429_S": "0.05"}
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


@dataclasses.dataclass(frozen=True)
class Case:
    """`requests` at the endpoint; the dead letter's reason, None for delivered, its status and its error."""

    name: str
    script: Script
    requests: int = 1
    reason: str | None = None
    status: str | None = None
    error: str | None = None


def _delivered(name: str, *statuses: int) -> Iterator[Case]:
    for status in statuses:
        body = b"" if status in (204, 205) else b"thank you"
        yield Case(f"{name}-{status}", always(status, body=body))


def _rejected(name: str, *statuses: int) -> Iterator[Case]:
    for status in statuses:
        yield Case(f"{name}-{status}", always(status), 1, "rejected", str(status))


def _retried(name: str, *statuses: int) -> Iterator[Case]:
    for status in statuses:
        yield Case(f"{name}-{status}", always(status), ATTEMPTS, "exhausted", str(status))


def _raw(name: str, data: bytes, error: str | None = None, then: Then = Then.CLOSE) -> Case:
    if error is None:
        return Case(name, doing(raw(data, then=then)))
    return Case(name, doing(raw(data, then=then)), ATTEMPTS, "exhausted", None, error)


CASES = [
    *_delivered("st-01", 200, 201, 202, 204, 205, 206, 207, 226, 299),
    *_retried("st-03", 520, 521, 522, 523, 524, 525, 526, 527, 530, 598, 599),
    # The shared recommendation is to reject these; here only what an endpoint has understood is rejected.
    *_retried("st-05", 402, 406, 411, 412, 416, 417, 418, 421, 423, 424, 426, 428, 431, 451, 499),
    *_rejected("st-05", 400, 404, 405, 410, 413, 414, 415, 422),
    *_retried("st-06", 403, 401),
    *_rejected("st-13", 501),
    *_retried("st-13", 500, 502, 504, 505, 507, 508, 510, 511),
    *_retried("unknown", 304, 408, 409, 425, 600, 999),
    _raw("st-11-103", EARLY_HINTS + NO_CONTENT, then=Then.KEEP),
    _raw("st-11-103-twice", EARLY_HINTS + EARLY_HINTS + NO_CONTENT, then=Then.KEEP),
    _raw("st-11-100", CONTINUE + NO_CONTENT, then=Then.KEEP),
    _raw("st-12-100", CONTINUE, "dropped"),
    _raw("st-12-101", b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "protocol"),
    _raw("rb-01-length", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc"),
    _raw("rb-01-chunked", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    _raw("rb-05-header", b"HTTP/1.1 200 OK\r\nbroken header: : x\r\ncontent-length: 0\r\n\r\n", "protocol"),
    _raw("rb-05-not-http", b"SSH-2.0-OpenSSH_9.6\r\n", "protocol"),
    Case("no-answer", drop(), ATTEMPTS, "exhausted", None, "dropped"),
]


def _faults(case: Case, requests: int, letters: dict[str, DeadLetter]) -> Iterator[str]:
    letter = letters.get(case.name)
    if requests != case.requests:
        yield f"{case.name}: {requests} requests instead of {case.requests}"
    found = None if letter is None else (letter["reason"], letter.get("status"), int(letter["attempts"]))
    expected = None if case.reason is None else (case.reason, case.status, case.requests)
    if found != expected:
        yield f"{case.name}: {found} instead of {expected}"
    if letter is not None and case.error is not None and not letter["error"].startswith(case.error):
        yield f"{case.name}: error {letter['error']!r} instead of {case.error!r}"


@pytest.mark.asyncio
@pytest.mark.timeout(150)
async def test_every_kind_of_answer_means_what_the_table_says(system: System) -> None:
    topic = system.source("orders")
    paths = {case.name: system.endpoint("acme", case.name, topic, **QUICK) for case in CASES}
    for case in CASES:
        system.server.script(paths[case.name], case.script)
    await system.create(topic)
    worker = await system.run()
    (event,) = await system.produce(topic, [b"{}"])
    dead = [case for case in CASES if case.reason is not None]

    letters = {letter["endpoint"]: letter for letter in await system.dead_letters("acme", len(dead), 60)}

    async def counted() -> bool:
        return await worker.metric("delivery_delivered_total") == len(CASES) - len(dead)

    await until(counted, 10, "delivered, all that are to be")
    wrong = [fault for case in CASES for fault in _faults(case, system.server.count(paths[case.name]), letters)]
    assert wrong == []
    assert set(system.server.order()) == {event}
    assert {letter["webhook-id"] for letter in letters.values()} == {event}
    states = {label: (loop["state"], loop["reason"]) for label, loop in (await worker.loops()).items()}
    assert set(states.values()) == {("running", "")}, "one failed event halts nobody"


@pytest.mark.asyncio
async def test_st06_a_403_is_tried_to_its_limit_which_a_restart_does_not_forget(system: System) -> None:
    path = system.endpoint("acme", "a", system.source("orders"), RETRY__SCHEDULE="0.2s,1s")
    system.server.script(path, always(403))
    await system.create(system.source("orders"))
    worker = await system.run()
    (event,) = await system.produce(system.source("orders"), [b"{}"])
    await system.server.arrived(path, 2, 15)
    assert await worker.stop() == 0

    await system.run()
    letter = (await system.dead_letters("acme", 1))[0]

    assert (letter["reason"], letter["status"], letter["attempts"]) == ("exhausted", "403", "3")
    assert set(system.server.order(path)) == {event}
    assert system.server.count(path) == 3


@pytest.mark.asyncio
async def test_ra13_a_hint_counts_on_every_retried_status_and_on_no_rejected_one(system: System) -> None:
    topic = system.source("orders")
    retried = [system.endpoint("acme", f"s{status}", topic) for status in (503, 500, 408, 425, 403)]
    for path in retried:
        hint = reply(int(path.rpartition("/s")[2]), {"retry-after": "2"})
        system.server.script(path, sequence([hint, reply(204)]))
    rejected = system.endpoint("acme", "s400", topic)
    system.server.script(rejected, always(400, {"retry-after": "20"}))
    await system.create(topic)
    await system.run()
    started = time.monotonic()
    await system.produce(topic, [b"{}"])

    assert (await system.dead_letters("acme", 1))[0]["status"] == "400"
    assert time.monotonic() - started < 15, "no delay before the dead letter"
    for path in retried:
        await system.server.arrived(path, 2, 10)
        first, second = system.server.requests(path)
        assert 2.0 <= second.at - first.ended_at < 6.0, "without the hint it would have been a tenth of that"


@pytest.mark.asyncio
async def test_rx04_a_302_without_location_fails_like_any_other_and_five_such_events_halt(system: System) -> None:
    path = system.endpoint("acme", "a", system.source("orders"), **QUICK)
    system.server.script(path, always(302))
    await system.create(system.source("orders"))
    worker = await system.run()
    await system.produce(system.source("orders"), [b"{}"] * 6)

    async def failing() -> bool:
        return await worker.state("acme/a") == ("halted", "failing")

    await until(failing, 20, "halted as failing")
    assert (await worker.loops())["acme/a"]["detail"] == "3xx"
    assert system.server.count(path) == 5 * ATTEMPTS
    assert [letter["status"] for letter in await system.dead_letters("acme", 5)] == ["302"] * 5


def _resident_kib(worker: Worker) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.asyncio
async def test_rb03_a_huge_answer_is_read_no_further_than_its_limit(system: System) -> None:
    size = 50 * 1_048_576
    head = b"HTTP/1.1 500 Sorry\r\ncontent-length: %d\r\n\r\n" % size
    block = b"x" * 65_536

    def script(_asked: Asked) -> Act:
        return Act(status=500, data=head, pieces=lambda: iter([block] * (size // len(block))))

    path = system.endpoint("acme", "a", system.source("orders"), HALT__AFTER_FAILING="100", **QUICK)
    system.server.script(path, script)
    await system.create(system.source("orders"))
    worker = await system.run()
    await system.produce(system.source("orders"), [b"{}"])
    first = (await system.dead_letters("acme", 1))[0]
    before = _resident_kib(worker)

    await system.produce(system.source("orders"), [b"{}"] * 10)
    letters = await system.dead_letters("acme", 11, 60)

    assert first["response"] == "x" * 1024
    assert [letter["status"] for letter in letters] == ["500"] * 11
    assert _resident_kib(worker) - before < 8 * 1024, "KiB, after 30 more answers of 50 MiB"


@pytest.mark.asyncio
async def test_rb07_bytes_that_are_no_text_in_an_answer_break_nothing(system: System) -> None:
    answer = (
        b"HTTP/1.1 500 Erreur \xe9t\xe9\r\nX-Err: \xe9\r\nRetry-After: 12\xe9\r\nX-Request-Id: r\xe9f\r\n"
        b"Content-Length: 6\r\n\r\n\xe9t\xe9\x00\x1b\n"
    )
    path = system.endpoint("acme", "a", system.source("orders"), **QUICK)
    system.server.script(path, doing(Act(status=500, data=answer)))
    await system.create(system.source("orders"))
    worker = await system.run()
    await system.produce(system.source("orders"), [b"{}"])

    letter = (await system.dead_letters("acme", 1))[0]

    assert (letter["status"], letter["attempts"], letter["reason"]) == ("500", str(ATTEMPTS), "exhausted")
    assert letter["response"] == "\ufffdt\ufffd\ufffd\ufffd "
    assert letter["receiver-ref"].startswith("r")
    assert "UnicodeError" not in worker.logged()
    assert "crashed" not in worker.logged()


@pytest.mark.asyncio
async def test_nw01_a_connection_that_the_server_closed_costs_no_event(system: System) -> None:
    """One endpoint closes right after each answer, one when the second request on a connection has arrived."""

    def second_is_lost(asked: Asked) -> Act:
        return reply(204) if asked.on_connection == 1 else Act(then=Then.CLOSE)

    topic = system.source("orders")
    closing, losing = system.endpoint("acme", "closing", topic), system.endpoint("acme", "losing", topic)
    system.server.script(closing, doing(reply(204, then=Then.CLOSE)))
    system.server.script(losing, second_is_lost)
    await system.create(topic)
    worker = await system.run()
    ids: list[str] = []

    def arrived() -> bool:
        return system.server.ids(closing) == system.server.ids(losing) == ids

    for _ in range(4):
        ids += await system.produce(topic, [b"{}"])
        await until(arrived, 10, "arrived")
        await asyncio.sleep(0.2)  # the closing of the connection arrives

    async def counted() -> bool:
        return await worker.metric("delivery_delivered_total") == 8

    await until(counted, 10, "all delivered")
    assert system.server.order(closing) == ids
    again = system.server.duplicates(losing)
    assert set(again.values()) <= {2}
    assert await system.dead_letters("acme") == []


@pytest.mark.asyncio
async def test_nw06_nw07_a_name_that_does_not_resolve_is_a_failure_and_never_a_refused_address(system: System) -> None:
    port = free_port()
    url = f"http://does-not-exist.invalid:{port}/"
    system.endpoint("acme", "a", system.source("orders"), URL=url, ALLOW_PORTS=str(port), **QUICK)
    await system.create(system.source("orders"))
    worker = await system.run()
    await system.produce(system.source("orders"), [b"{}"])

    letter = (await system.dead_letters("acme", 1, 40))[0]

    assert (letter["reason"], letter["fault"], letter["outcome"]) == ("exhausted", "endpoint", "not_started")
    assert letter["error"].startswith("dns")
    assert letter["attempts"] == str(ATTEMPTS)
    assert await worker.metric("delivery_halts_total") == 0
    assert "cannot_send" not in worker.logged()


def _inside_name() -> str:
    """A name that is no address and resolves to one that is not public."""
    for name in (socket.gethostname(), "localhost.localdomain", "ip6-localhost", "ip6-loopback"):
        try:
            found = socket.getaddrinfo(name, 80, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except OSError:
            continue
        if found and not any(ip_address(entry[4][0]).is_global for entry in found):
            return name
    pytest.skip("no name on this machine resolves to an address that is not public")


@pytest.mark.asyncio
async def test_a_name_that_leads_inside_halts_the_endpoint_and_dead_letters_nothing(system: System) -> None:
    name = _inside_name()
    url = f"http://{name}:{system.server.port}/hook"
    path = system.endpoint("acme", "a", system.source("orders"), URL=url, ALLOW_NETWORKS="none", HALT__PAUSE_S="1")
    beside = system.endpoint("acme", "b", system.source("orders"))
    system.server.script("/hook", always(204))
    system.server.script(beside, always(204))
    await system.create(system.source("orders"))
    worker = await system.run()
    ids = await system.produce(system.source("orders"), [b"{}"] * 3)
    await system.server.arrived(beside, 3, 15)

    async def again() -> bool:
        return await worker.metric("delivery_halts_total", endpoint="a", reason="cannot_send") >= 3

    await until(again, 15, "halted, and looked again after each pause")
    loop = (await worker.loops())["acme/a"]
    assert loop["attempts"] == 0
    assert system.server.count("/hook") == 0
    assert await system.dead_letters("acme") == []
    assert await worker.metric("delivery_attempts_total", endpoint="a") == 0
    assert await worker.stop() == 0

    assert path == "/acme/a"
    system.settings["DELIVERY_TENANTS__ACME__ENDPOINTS__A__ALLOW_NETWORKS"] = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12"
    if ip_address(socket.gethostbyname(name)).is_loopback:
        await system.run()
        await system.server.arrived("/hook", 3, 15)
        assert system.server.order("/hook") == ids


@pytest.mark.asyncio
async def test_rb09_of_an_answer_a_dead_letter_keeps_little_or_nothing_and_the_log_nothing(system: System) -> None:
    topic = system.source("orders")
    body = b"\x1b[31mpassword=hunter2 " + b"z" * 1_048_576
    for name, kept in (("usual", "1024"), ("little", "10"), ("none", "0")):
        path = system.endpoint("acme", name, topic, EXCERPT_BYTES=kept, **QUICK)
        system.server.script(path, always(500, {"x-request-id": "r-1"}, body))
    await system.create(topic)
    worker = await system.run(DELIVERY_LOG__LEVEL="debug")
    await system.produce(topic, [b"{}"])

    letters = {letter["endpoint"]: letter for letter in await system.dead_letters("acme", 3)}

    assert len(letters["usual"]["response"].encode()) <= 1024
    assert "\x1b" not in letters["usual"]["response"]
    assert letters["little"]["response"].encode() == "\ufffd[31mpas".encode()[:10]
    assert (letters["none"].get("response"), letters["none"].get("receiver-ref")) == (None, None)
    shown = worker.logged() + (await worker.get("/metrics"))[1] + (await worker.get("/status"))[1]
    assert "hunter2" not in shown


@pytest.mark.asyncio
async def test_ra14_a_quota_without_hints_costs_no_event(system: System) -> None:
    """The case's quota of 750 in a minute, with a window of 5 s: 429 without Retry-After once it is spent."""
    window_s, quota, events = 5.0, 40, 100
    started = time.monotonic()
    taken: dict[int, int] = {}

    def script(_asked: Asked) -> Act:
        window = int((time.monotonic() - started) / window_s)
        taken[window] = taken.get(window, 0) + 1
        return reply(204) if taken[window] <= quota else reply(429)

    path = system.endpoint("acme", "a", system.source("orders"))
    system.server.script(path, script)
    await system.create(system.source("orders"))
    await system.run()
    ids = await system.produce(system.source("orders"), [b"{}"] * events)

    await until(lambda: len(system.server.ids(path)) == events, 60, "all were asked for")

    assert system.server.ids(path) == ids
    refused = [seen for seen in system.server.requests(path) if seen.status == 429]
    assert 1 <= len(refused) <= 5 * (int((time.monotonic() - started) / window_s) + 1), "waits grow"
    assert await system.dead_letters("acme") == []


@pytest.mark.asyncio
async def test_sg04_sg05_sg08_each_attempt_is_signed_anew_by_all_secrets_under_one_id(system: System) -> None:
    old = "whsec_" + base64.b64encode(b"the old key, as long as the new.").decode()
    path = system.endpoint(
        "acme", "a", system.source("orders"), SECRETS=f"{SECRET},{old}", RETRY__SCHEDULE="1100ms,1100ms"
    )
    system.server.script(path, sequence([reply(503), reply(503), reply(204)]))
    await system.create(system.source("orders"))
    await system.run()
    (event,) = await system.produce(system.source("orders"), [b'{"a": 1}'])

    await system.server.arrived(path, 3, 20)

    seen = system.server.requests(path)
    assert [one.webhook_id for one in seen] == [event] * 3
    assert len({one.timestamp for one in seen}) == 3
    assert len({one.signature for one in seen}) == 3
    for one in seen:
        headers = {name.lower(): value for name, value in one.headers}
        first, second = one.signature.split(" ")
        for secret, signature in ((SECRET, first), (old, second)):
            Webhook(secret).verify(one.body, headers)
            Webhook(secret).verify(one.body, headers | {"webhook-signature": signature})
