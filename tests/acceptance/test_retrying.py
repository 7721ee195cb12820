"""What endpoints that fail in a way that time may heal see, and when."""

from __future__ import annotations

import email.utils
import itertools
import time

import pytest

from supervisor.demo.scripts import RESET, Act, Asked, always, doing, reply, sequence
from tests.acceptance.harness import System, until

# RFC 9110 §5.6.7: a date has whole seconds, so an answer may ask for up to one second less than meant.
DATE_S = 3.0


@pytest.mark.asyncio
@pytest.mark.timeout(150)
async def test_an_always_503_endpoint_gets_six_attempts_for_five_events_and_then_a_pause(system: System) -> None:
    path = system.endpoint("acme", "down", system.source("orders"))
    system.server.script(path, always(503))
    await system.create(system.source("orders"))
    worker = await system.run()
    ids = await system.produce(system.source("orders"), [b"{}"] * 8)

    async def failing() -> bool:
        return await worker.state("acme/down") == ("halted", "failing")

    await until(failing, 80, "halted as failing")

    seen = system.server.requests(path)
    assert [s.webhook_id for s in seen] == [event for event in ids[:5] for _ in range(6)]
    assert (len(seen) - 1) / (seen[-1].at - seen[0].at) <= 0.97
    assert system.server.max_in_window(path, 10.0) <= 12
    letters = await system.dead_letters("acme", 5)
    assert [(letter["reason"], letter["attempts"]) for letter in letters] == [("exhausted", "6")] * 5
    assert (await worker.loops())["acme/down"]["detail"] == "503"


@pytest.mark.asyncio
async def test_a_429_with_retry_after_2_is_never_asked_earlier_and_never_dead_lettered(system: System) -> None:
    path = system.endpoint("acme", "busy", system.source("orders"), RETRY__MAX_ATTEMPTS="3", HALT__PAUSE_S="1")
    busy = [reply(429, {"retry-after": "2"})] * 7
    system.server.script(path, sequence([*busy, reply(204)]))
    await system.create(system.source("orders"))
    worker = await system.run()
    ids = await system.produce(system.source("orders"), [b"{}"] * 2)

    await system.server.arrived(path, 9, 60)

    seen = system.server.requests(path)
    gaps = [later.at - earlier.ended_at for earlier, later in itertools.pairwise(seen[:8])]
    assert min(gaps) >= 2.0
    assert [s.webhook_id for s in seen] == [ids[0]] * 8 + [ids[1]]
    assert await system.dead_letters("acme") == []
    assert await worker.metric("delivery_halts_total", endpoint="busy", reason="hold") == 2


def _imf(at: float) -> str:
    return email.utils.formatdate(at, usegmt=True)


def _rfc850(at: float) -> str:
    return time.strftime("%A, %d-%b-%y %H:%M:%S GMT", time.gmtime(at))


def _asctime(at: float) -> str:
    moment = time.gmtime(at)
    return time.strftime(f"%a %b {moment.tm_mday:>2} %H:%M:%S %Y", moment)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "written",
    [
        pytest.param(_imf, id="RA-04-imf-fixdate"),
        pytest.param(_rfc850, id="rfc-850"),
        pytest.param(_asctime, id="RA-06-asctime"),
    ],
)
async def test_retry_after_as_a_date_is_honoured_in_utc(system: System, written: object) -> None:
    assert callable(written)

    def script(asked: Asked) -> Act:
        return reply(503, {"retry-after": written(time.time() + DATE_S)}) if asked.n == 1 else reply(204)

    path = system.endpoint("acme", "dated", system.source("orders"))
    system.server.script(path, script)
    await system.create(system.source("orders"))
    await system.run(TZ="Asia/Tokyo")
    await system.produce(system.source("orders"), [b"{}"])

    await system.server.arrived(path, 2, 20)

    first, second = system.server.requests(path)
    assert DATE_S - 1.0 <= second.at - first.ended_at <= DATE_S + 5.0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("120.5", id="RA-01-decimal"),
        pytest.param("120junk", id="RA-11-trailing-junk"),
        pytest.param("-5", id="negative"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 -0000", id="RA-07-zone"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 GMT", id="past"),
    ],
)
async def test_a_retry_after_that_says_nothing_usable_counts_as_absent(system: System, value: str) -> None:
    path = system.endpoint("acme", "junk", system.source("orders"))
    system.server.script(path, sequence([reply(500, {"retry-after": value}), reply(204)]))
    await system.create(system.source("orders"))
    await system.run()
    await system.produce(system.source("orders"), [b"{}"])

    await system.server.arrived(path, 2, 10)

    first, second = system.server.requests(path)
    assert 0.2 <= second.at - first.ended_at <= 5.0


@pytest.mark.asyncio
async def test_ra03_retry_after_zero_is_no_hot_loop(system: System) -> None:
    path = system.endpoint("acme", "zero", system.source("orders"))
    system.server.script(path, always(429, {"retry-after": "0"}))
    await system.create(system.source("orders"))
    await system.run()
    await system.produce(system.source("orders"), [b"{}"])

    await system.server.arrived(path, 4, 20)

    assert system.server.max_in_window(path, 10.0) <= 5


@pytest.mark.asyncio
async def test_nw02_a_lost_answer_is_sent_again_with_the_same_id_and_bytes(system: System) -> None:
    path = system.endpoint("acme", "flaky", system.source("orders"))
    system.server.script(path, sequence([RESET, reply(204)]))
    await system.create(system.source("orders"))
    worker = await system.run()
    ids = await system.produce(system.source("orders"), [b'{"a":1}'])

    await system.server.arrived(path, 2, 10)

    first, second = system.server.requests(path)
    assert [first.webhook_id, second.webhook_id] == [ids[0]] * 2
    assert first.body == second.body

    async def counted() -> bool:
        return await worker.metric("delivery_delivered_total", endpoint="flaky") == 1

    await until(counted, 5, "counted once as delivered")


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_rx01_a_redirect_is_not_followed(system: System, status: int) -> None:
    path = system.endpoint("acme", "moved", system.source("orders"), RETRY__MAX_ATTEMPTS="2")
    system.server.script(path, always(status, {"location": system.server.url("/final")}))
    system.server.script("/final", always(200))
    await system.create(system.source("orders"))
    await system.run()
    await system.produce(system.source("orders"), [b"{}"])

    letters = await system.dead_letters("acme", 1)

    assert (letters[0]["reason"], letters[0]["status"], letters[0]["attempts"]) == ("exhausted", str(status), "2")
    assert system.server.count("/final") == 0


@pytest.mark.asyncio
async def test_or01_a_record_that_fails_twice_is_not_overtaken(system: System) -> None:
    path = system.endpoint("acme", "slow", system.source("orders"))
    system.server.script(path, sequence([reply(204), reply(503), reply(503), reply(204)]))
    await system.create(system.source("orders"))
    await system.run()
    ids = await system.produce(system.source("orders"), [b"1", b"2", b"3"])

    await system.server.arrived(path, 5, 15)

    assert system.server.order(path) == [ids[0], ids[1], ids[1], ids[1], ids[2]]


@pytest.mark.asyncio
async def test_ra08_a_far_future_hint_stops_neither_the_neighbours_nor_a_sigterm(system: System) -> None:
    path = system.endpoint("acme", "later", system.source("orders"))
    beside = system.endpoint("acme", "healthy", system.source("orders"))
    system.server.script(path, doing(reply(429, {"retry-after": "86400"})))
    system.server.script(beside, always(204))
    await system.create(system.source("orders"))
    worker = await system.run()
    await system.produce(system.source("orders"), [b"{}"])
    await system.server.arrived(path, 1, 10)

    await system.produce(system.source("orders"), [b"{}"] * 20)
    await system.server.arrived(beside, 21, 10)
    loop = (await worker.loops())["acme/later"]
    assert loop["state"] == "waiting"
    assert 3500 <= loop["next_start_in_s"] <= 3700, "capped at an hour, and its spread"
    asked = time.monotonic()
    assert await worker.stop() == 0

    assert time.monotonic() - asked < 10.0, "SD-01: a drain would take 20 s"
    assert await system.committed("delivery", system.queue("acme", "later")) == 0
