"""`delivery dead-letters replay` on real Kafka: what was chosen is sent again, once, whatever happens to the run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from delivery.model import DeadLetterReason, OutgoingRecord
from delivery.policy.event import read_delivery
from delivery.policy.letters import RECEIPT
from supervisor.demo.scripts import always
from tests.acceptance.harness import System, until
from tests.acceptance.letters import MIB, TIMED_OUT, ids, letter, write
from tests.services import TEST_IS_LONG

REPLAY = ("dead-letters", "replay", "--yes")
KILLS = 20 if TEST_IS_LONG else 4
# Enough for a few transactions between two kills.
TO_KILL = KILLS * 1_000


async def topics(system: System, *endpoints: str) -> None:
    """The tenant acme's, large enough for events of 1 MiB."""
    names = [f"{system.prefix}.acme.dead-letters", *(system.queue("acme", name) for name in endpoints)]
    await system.create(*names, configs={"max.message.bytes": "2097152"})


async def queued(system: System, endpoint: str = "billing") -> list[Any]:
    """What has been written to the queue."""
    return await system.read(system.queue("acme", endpoint))


def webhook_ids(records: Sequence[Any]) -> list[str]:
    return [read_delivery(record).event.id for record in records]


@contextlib.asynccontextmanager
async def running(system: System, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replay that is not waited for; killed at the end if it still runs."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("DELIVERY_")} | system.settings
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "supervisor", *REPLAY, *options, env=environ,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def started(process: asyncio.subprocess.Process) -> None:
    """Wait until the run has its producer."""
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), 60)
    assert b"has started" in line, line


@contextlib.asynccontextmanager
async def written(system: System, *, committed: bool = False) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Asks how far the queue of `billing` is written, open transactions included unless `committed`."""
    level = "read_committed" if committed else "read_uncommitted"
    consumer = AIOKafkaConsumer(bootstrap_servers=system.bootstrap, enable_auto_commit=False, isolation_level=level)
    await consumer.start()
    place = TopicPartition(system.queue("acme", "billing"), 0)

    async def end() -> int:
        return int((await consumer.end_offsets([place]))[place])

    try:
        yield end
    finally:
        await consumer.stop()


@pytest.mark.asyncio
async def test_dl09_exactly_the_chosen_ones_arrive_once_in_order_and_a_second_run_adds_nothing(system: System) -> None:
    billing = system.endpoint("acme", "billing", system.source("orders"))
    crm = system.endpoint("acme", "crm", system.source("orders"))
    system.server.script(billing, always(204))
    await topics(system, "billing", "crm")
    await system.create(system.source("orders"))
    await system.run()
    reasons = [
        {"reply": 404},
        {"reply": 422},
        {"reply": 503, "reason": DeadLetterReason.EXHAUSTED},
        {"reply": TIMED_OUT, "reason": DeadLetterReason.EXHAUSTED},
        {"reply": 404, "endpoint": "crm"},
    ]
    made = [letter(system, n, value=b'{"n": %d}' % n, **reasons[n % 5]) for n in range(1_000)]  # type: ignore[arg-type]
    await write(system, made)
    wanted = [f"msg_{n}" for n in range(0, 1_000, 5)]
    chosen = ("--endpoint", "billing", "--status", "404")

    status, out, _ = await system.command("dead-letters", "replay", "--dry-run", *chosen)
    assert (status, out) == (0, "acme: 200 would be sent again: billing 200\n")
    assert (await system.command("dead-letters", "replay", *chosen))[0] == 1, "it asks, and nobody answers"
    assert await queued(system) == []

    status, out, _ = await system.command(*REPLAY, *chosen)
    assert (status, out) == (0, "acme: 200 sent again: billing 200\n")
    await system.all_arrived(billing, wanted)
    status, out, _ = await system.command(*REPLAY, *chosen)
    assert (status, out) == (0, "acme: 0 sent again\n")
    assert webhook_ids(await queued(system)) == wanted
    assert system.server.order(billing) == wanted
    assert [seen.body for seen in system.server.requests(billing)] == [b'{"n": %d}' % n for n in range(0, 1_000, 5)]
    assert system.server.order(crm) == []

    assert (await system.command(*REPLAY, *chosen, "--replayed"))[0] == 2, "only with --again"
    status, out, _ = await system.command(*REPLAY, *chosen, "--again", "--limit", "3")
    assert (status, out) == (0, "acme: 3 sent again: billing 3\n")
    await system.server.arrived(billing, 203, 20)
    assert system.server.order(billing) == wanted + wanted[:3]


@pytest.mark.asyncio
async def test_dl09_of_two_at_once_the_later_takes_over_and_each_event_is_queued_once(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await topics(system, "billing")
    made = [letter(system, n) for n in range(300)]
    await write(system, made)
    async with running(system, "--rate", "20") as earlier, written(system) as end:
        await started(earlier)

        async def some() -> bool:
            return await end() >= 20

        await until(some, 30, "the earlier one has begun")
        status, out, _ = await system.command(*REPLAY)
        _, said = await asyncio.wait_for(earlier.communicate(), 30)
    assert (status, earlier.returncode) == (0, 1)
    assert b"a later replay of acme has taken over; this one ended after" in said
    assert webhook_ids(await queued(system)) == ids(made, "webhook-id")
    rest = int(out.split()[1])
    assert 0 < rest < 300, "it goes on where the earlier one was stopped"


@pytest.mark.asyncio
@pytest.mark.timeout(900 if TEST_IS_LONG else 240)
async def test_killed_again_and_again_every_event_is_queued_once_and_live_ones_wait_15_s_at_most(
    system: System,
) -> None:
    path = system.endpoint("acme", "billing", system.source("orders"))
    beside = system.endpoint("acme", "live", system.source("orders"))
    for one in (path, beside):
        system.server.script(one, always(204))
    await topics(system, "billing", "live")
    await system.create(system.source("orders"))
    await system.run()
    made = [letter(system, n, endpoint="live" if n % 100 == 0 else "billing") for n in range(TO_KILL)]
    await write(system, made)
    chance = random.Random(6)
    freed: list[float] = []
    caught, stall_s = 0, 0.0

    async def live() -> None:
        """An event every 50 ms for the endpoint whose queue the replay writes to, too."""
        while True:
            await system.produce(system.source("orders"), [b"{}"])
            await asyncio.sleep(0.05)

    writing = asyncio.create_task(live())
    try:
        async with written(system) as end, written(system, committed=True) as stable:
            for kill in range(KILLS):
                enough = await end() + chance.randrange(1, TO_KILL // KILLS)
                async with running(system) as process:
                    await started(process)
                    began = time.monotonic()
                    await system.server.arrived(beside, system.server.count(beside) + 1, 10)
                    freed.append(time.monotonic() - began)
                    if kill % 2:
                        await until(lambda b=enough: _beyond(end, b, process), 60, "some are written")  # type: ignore[misc]
                    else:
                        caught += await _caught(process, end, stable, enough)
                    process.kill()
                    await process.wait()
                if kill == 0:
                    # Nobody helps: Kafka ends the transaction.
                    killed = time.monotonic()
                    await system.server.arrived(beside, system.server.count(beside) + 20, 30)
                    stall_s = _longest_gap_s(system, beside, killed)
        status, _, error = await system.command(*REPLAY)
        assert status == 0, error
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    assert caught, "at least one was killed in the middle of a transaction"
    assert stall_s <= 18
    # Kafka itself takes 3 to 13 s; one look may meet a machine that is busy.
    assert sorted(freed)[-2] <= 2.5, "the next run's start ends what the killed one left open"
    replayed = [read_delivery(record) for endpoint in ("billing", "live") for record in await queued(system, endpoint)]
    found = [delivery.event.id for delivery in replayed if delivery.replay_of is not None]
    expected = ids([m for m in made if m.headers], "webhook-id")
    assert sorted(found) == sorted(expected), "each once"
    order = [name for name in found if int(name[4:]) % 100]
    assert order == [name for name in expected if int(name[4:]) % 100], "and in order"
    receipts = [dict(r.headers).get(RECEIPT) for r in await system.read(made[0].topic)]
    assert sorted(r.decode() for r in receipts if r) == sorted(ids(made))


async def _caught(
    process: asyncio.subprocess.Process,
    end: Callable[[], Awaitable[int]],
    stable: Callable[[], Awaitable[int]],
    enough: int,
) -> bool:
    """Hold the run in the middle of a transaction behind this offset; False when it ended before."""
    while process.returncode is None:
        if await end() < enough:
            await asyncio.sleep(0)
            continue
        process.send_signal(signal.SIGSTOP)
        if await end() > await stable():
            return True
        process.send_signal(signal.SIGCONT)
        enough = await end() + 1
    return False


async def _beyond(end: Callable[[], Awaitable[int]], offset: int, process: asyncio.subprocess.Process) -> bool:
    return process.returncode is not None or await end() >= offset


def _longest_gap_s(system: System, path: str, since: float) -> float:
    times = [since, *(seen.at for seen in system.server.requests(path) if seen.at > since)]
    return max(later - before for before, later in itertools.pairwise(times))


@pytest.mark.asyncio
async def test_dl10_an_endpoint_that_is_still_dead_makes_new_letters_that_name_the_first(system: System) -> None:
    path = system.endpoint("acme", "billing", system.source("orders"))
    system.server.script(path, always(404))
    await topics(system, "billing")
    await system.create(system.source("orders"))
    await system.run()
    made = [letter(system, n, headers=(("trace", b"1"),)) for n in range(7)]
    await write(system, made)
    firsts = ids(made)

    status, out, _ = await system.command(*REPLAY)
    assert (status, out) == (0, "acme: 7 sent again: billing 7\n"), "it does not read what comes of it"
    found = [one for one in await system.dead_letters("acme", 21, 40) if one.get("id")][7:]
    assert [one["replay-of"] for one in found] == firsts
    assert [(one["replays"], one["attempts"], one["status"]) for one in found] == [("1", "1", "404")] * 7
    assert system.server.max_in_window(path, 9.5) <= 5, "at the pace of a dead endpoint"

    status, out, _ = await system.command(*REPLAY, "--limit", "1")
    assert (status, out) == (0, "acme: 1 sent again: billing 1\n")
    last = (await system.dead_letters("acme", 23, 40))[-1]
    assert (last["replay-of"], last["replays"], last["webhook-id"]) == (firsts[0], "2", "msg_0")
    assert len(last.headers) == len(found[0].headers), "no larger than the one before"
    _, shown, _ = await system.command("dead-letters", "show", firsts[0])
    assert "sent again at" in shown
    assert last["id"] in shown


@pytest.mark.asyncio
async def test_dl14_attempts_begin_anew_after_a_replay(system: System) -> None:
    path = system.endpoint("acme", "billing", system.source("orders"), RETRY__MAX_ATTEMPTS="2", RETRY__BASE_S="0.05")
    system.server.script(path, always(500))
    await topics(system, "billing")
    await system.create(system.source("orders"))
    await system.run()
    sent = await system.produce(system.source("orders"), [b"{}"])
    first = (await system.dead_letters("acme", 1))[0]
    assert (first["reason"], first["attempts"]) == ("exhausted", "2")

    assert (await system.command(*REPLAY))[0] == 0
    again = (await system.dead_letters("acme", 3, 30))[-1]
    assert (again["reason"], again["attempts"], again["replays"]) == ("exhausted", "2", "1")
    assert again["id"] != first["id"] == again["replay-of"]
    assert system.server.order(path) == sent * 4


def every_kind(system: System) -> list[OutgoingRecord]:
    """Bodies and headers of every kind, all of them expired."""
    cloud = (("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t"))
    kinds: list[dict[str, Any]] = [
        {"value": b""},
        {"value": None, "headers": cloud},
        {"value": None, "headers": cloud, "key": None},
        {"value": os.urandom(MIB)},
        {"value": bytes(range(256))},
        {"value": b"\xff\xfe\x00", "key": b""},
        {"value": b"{}", "key": None},
        {"value": b"{}", "headers": (("twice", b"1"), ("twice", b"2"), ("twice", b"1"))},
        {"value": b"{}", "headers": (("name-\u00e9\u4e2d", b"\xc3\xa9"), ("raw", b"\xff"), ("null", None), ("", b""))},
        {"value": b"{}", "headers": (("original-delivery-x", b"1"), ("content-type", b"text/plain"))},
    ]
    return [
        letter(system, n, reason=DeadLetterReason.EXPIRED, reply=503, **kind)  # a time in 2023
        for n, kind in enumerate(kinds)
    ]


@pytest.mark.asyncio
async def test_expired_events_of_every_kind_come_back_byte_for_byte_and_are_delivered(system: System) -> None:
    path = system.endpoint("acme", "billing", system.source("orders"), MAX_AGE_S="60")
    system.server.script(path, always(204))
    await topics(system, "billing")
    await system.create(system.source("orders"))
    await system.run()
    made = every_kind(system)
    await write(system, made)

    status, _, error = await system.command(*REPLAY, "--reason", "expired")
    assert status == 0, error
    await system.all_arrived(path, ids(made, "webhook-id"))
    found = await queued(system)
    for before, record in zip(made, found, strict=True):
        expected = b"" if before.value is None and before.key is None else before.value
        assert (record.key, record.value) == (before.key, expected)
        foreign = [header for header in record.headers if not header[0].startswith("delivery-")]
        assert foreign == [header for header in before.headers if not header[0].startswith("dead-letter-")]
    assert system.server.order(path) == ids(made, "webhook-id"), "delivered, although their time is long ago"
    assert [seen.body for seen in system.server.requests(path)] == [before.value or b"" for before in made]
    assert len(await system.dead_letters("acme")) == 2 * len(made), "letters and receipts, no new letter"


@pytest.mark.asyncio
async def test_a_removed_endpoints_letters_are_refused_or_go_elsewhere(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    system.endpoint("acme", "crm", system.source("orders"))
    await topics(system, "billing", "crm")
    made = [letter(system, n, endpoint="old" if n % 2 else "billing") for n in range(6)]
    await write(system, made)

    status, out, error = await system.command(*REPLAY)
    assert (status, out) == (2, "")
    assert "letters of endpoints that acme does not have any more: old 3" in error
    assert await queued(system) == [], "nothing is sent, not even what could be"
    assert (await system.command(*REPLAY, "--to", "crm"))[0] == 2, "only with its tenant"
    assert (await system.command(*REPLAY, "--to", "old", "--tenant", "acme"))[0] == 2

    status, out, _ = await system.command(*REPLAY, "--endpoint", "old", "--tenant", "acme", "--to", "crm")
    assert (status, out) == (0, "acme: 3 sent again: crm 3\n")
    assert webhook_ids(await queued(system, "crm")) == ["msg_1", "msg_3", "msg_5"]
    assert (await system.command(*REPLAY))[:2] == (0, "acme: 3 sent again: billing 3\n")


@pytest.mark.asyncio
async def test_a_removed_endpoint_of_one_tenant_is_told_before_anything_of_another_is_sent(system: System) -> None:
    for tenant in ("acme", "zoo"):
        system.endpoint(tenant, "billing", system.source("orders"))
    await topics(system, "billing")
    await system.create(f"{system.prefix}.zoo.dead-letters", system.queue("zoo", "billing"))
    await write(system, [letter(system, 1), letter(system, 2, tenant="zoo", endpoint="old")])

    status, out, error = await system.command(*REPLAY)
    assert (status, out) == (2, "")
    assert "letters of endpoints that zoo does not have any more: old 1" in error
    assert await queued(system) == [], "acme comes first, and waits for the answer about zoo"
    assert (await system.command(*REPLAY, "--tenant", "acme"))[:2] == (0, "acme: 1 sent again: billing 1\n")


@pytest.mark.asyncio
async def test_letters_of_unknown_outcome_are_sent_only_when_that_is_said(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await topics(system, "billing")
    unknown = {"reply": TIMED_OUT, "reason": DeadLetterReason.EXHAUSTED}
    made = [letter(system, n, **(unknown if n % 2 else {})) for n in range(6)]  # type: ignore[arg-type]
    await write(system, [*made, made[0]])

    status, out, _ = await system.command(*REPLAY)
    assert status == 0
    assert out.splitlines()[0] == "acme: 3 sent again: billing 3"
    assert "3 left out, since the receiver may have acted on them: --outcome unknown" in out
    status, out, _ = await system.command(*REPLAY, "--outcome", "unknown")
    assert (status, out) == (0, "acme: 3 sent again: billing 3\n")
    assert webhook_ids(await queued(system)) == [f"msg_{n}" for n in (0, 2, 4, 1, 3, 5)]


@pytest.mark.asyncio
async def test_interrupted_it_stops_after_the_batch_and_goes_on_when_it_is_run_again(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await topics(system, "billing")
    made = [letter(system, n) for n in range(200)]
    await write(system, made)
    async with running(system, "--rate", "20") as process, written(system) as end:
        await started(process)

        async def some() -> bool:
            return await end() >= 30

        await until(some, 30, "some are sent")
        process.send_signal(signal.SIGINT)
        out, said = await asyncio.wait_for(process.communicate(), 20)
    sent = int(out.split()[1])
    assert process.returncode == 1
    assert b"Run the same command again to go on" in said
    records = await queued(system)
    assert len(records) == sent < 200
    took_s = (records[-1].timestamp - records[0].timestamp) / 1000
    assert sent <= 20 * took_s + 20, "the rate was kept"
    assert (await system.command(*REPLAY))[:2] == (0, f"acme: {200 - sent} sent again: billing {200 - sent}\n")
    assert webhook_ids(await queued(system)) == ids(made, "webhook-id")


@pytest.mark.asyncio
async def test_frozen_for_longer_than_its_transaction_may_last_it_ends_and_nothing_is_queued_twice(
    system: System,
) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await topics(system, "billing")
    made = [letter(system, n) for n in range(4_000)]
    await write(system, made)
    async with running(system) as process, written(system) as end, written(system, committed=True) as stable:
        await started(process)
        assert await _caught(process, end, stable, 600)

        async def ended() -> bool:
            return await end() == await stable()

        await until(ended, 20, "Kafka has ended the transaction")
        process.send_signal(signal.SIGCONT)
        out, said = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, out) == (1, b"")
    assert b"of 4000 events of acme: Kafka: " in said
    assert b"taken over" not in said, "nobody else was there"
    sent = len(await queued(system))
    assert 0 < sent < 4_000
    rest = 4_000 - sent
    assert (await system.command(*REPLAY))[:2] == (0, f"acme: {rest} sent again: billing {rest}\n")
    assert webhook_ids(await queued(system)) == ids(made, "webhook-id")


@pytest.mark.asyncio
async def test_on_a_terminal_it_asks_with_the_counts_and_shows_how_far_it_is(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await topics(system, "billing")
    await write(system, [letter(system, n) for n in range(40)])
    terminal, its_end = os.openpty()
    environ = {k: v for k, v in os.environ.items() if not k.startswith("DELIVERY_")} | system.settings
    environ |= {"TERM": "xterm", "COLUMNS": "100"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "supervisor", "dead-letters", "replay", "--rate", "20", env=environ,
        stdin=its_end, stdout=asyncio.subprocess.PIPE, stderr=its_end,
    )  # fmt: skip
    os.close(its_end)
    os.write(terminal, b"y\n")
    shown = b""
    # The terminal ends with an error when the last program that has it has ended.
    with contextlib.suppress(OSError):
        while part := await asyncio.to_thread(os.read, terminal, 4_096):
            shown += part
    os.close(terminal)
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    assert b"About 40 events go into their queues. Go on?" in shown
    assert re.search(rb"acme.*\d+/40.*\d+/s.*0:00:0\d", shown), shown
    assert out == b"acme: 40 to send again, about: billing 40\nacme: 40 sent again: billing 40\n"


@pytest.mark.asyncio
async def test_receipts_behind_somebody_elses_open_transaction_are_waited_for(system: System) -> None:
    """Readers end before a transaction that is open: a run that did not wait would send everything again."""
    system.endpoint("acme", "billing", system.source("orders"))
    await topics(system, "billing")
    made = [letter(system, n) for n in range(20)]
    await write(system, made)
    fanout = AIOKafkaProducer(
        bootstrap_servers=system.bootstrap, transactional_id=f"{system.prefix}.fanout.orders.0", acks="all"
    )
    await fanout.start()
    try:
        async with running(system, "--rate", "2") as first, written(system) as end:
            await started(first)

            async def one() -> bool:
                return await end() > 0

            await until(one, 30, "the first event is queued")
            await fanout.begin_transaction()
            await fanout.send_and_wait(made[0].topic, b"", headers=[("dead-letter-id", b"dl_late")], partition=0)
            await asyncio.wait_for(first.communicate(), 30)
        assert first.returncode == 0
        async with running(system) as second:
            await started(second)
            pending = (await system.command("dead-letters", "list"))[1].partition(" pending")[0]
            assert 1 <= int(pending) <= 20, "without waiting it does not see the receipts behind the transaction"
            await fanout.abort_transaction()
            out, _ = await asyncio.wait_for(second.communicate(), 30)
        assert (second.returncode, out) == (0, b"acme: 0 sent again\n")
    finally:
        await fanout.stop()
    assert webhook_ids(await queued(system)) == ids(made, "webhook-id")
