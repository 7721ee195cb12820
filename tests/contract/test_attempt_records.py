"""What is told of attempts and decisions: by real loops, in virtual time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from delivery.model import (
    Answer,
    Answering,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    OnExhausted,
    Outcome,
    Quota,
    Rate,
    Reply,
    RetryLimits,
    SharedLimits,
    SigningKey,
)
from delivery.policy.orders import Order, Orders
from delivery.policy.plain_record import KEYS, plain
from tests.contract.loop_kit import LoopKit
from tests.fakes import endpoint, queued
from tests.virtual_time import EPOCH_S, in_virtual_time, others, time_passes

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"

OK, NOT_FOUND, BUSY = (Answer(status=status) for status in (204, 404, 503))
TIMED_OUT = NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.UNKNOWN, detail="attempt timeout")
ONCE = RetryLimits(max_attempts=1)


def answer(status: int, **headers: str) -> Answer:
    return Answer(status=status, headers=tuple((k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()))


THROTTLED = answer(429, retry_after="300")


# Whoever keeps records reads them by these names.
ALL_KEYS = (
    "phase", "tenant", "endpoint", "scope", "webhook_id", "queue", "event_time", "attempt", "requests_before",
    "waited_for", "started_at", "at", "took_s", "status", "status_class", "failure", "detail", "outcome", "verdict",
    "judged_by", "next", "reason", "decided_by", "wait_s", "wait_source", "missing",
)  # fmt: skip


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as logged:
        yield logged


def told(kit: LoopKit, phase: str = "") -> list[dict[str, Any]]:
    """The records so far, as an audit would keep them."""
    records = [json.loads(json.dumps(plain(record))) for record in kit.meter.records]
    return [record for record in records if phase in ("", record["phase"])]


def picked(record: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(record[name] for name in names)


async def play(kit: LoopKit, seconds: float = 0.0) -> None:
    """One run of the loop for this long, or to its end."""
    running = kit.start()
    await others()
    await time_passes(seconds)
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_delivery_is_told_before_its_first_byte_and_after_its_answer_and_not_logged(
    logs: list[MutableMapping[str, Any]],
) -> None:
    async def slow() -> Reply:
        assert [record["phase"] for record in told(kit)] == ["sending"]
        await asyncio.sleep(0.25)
        return OK

    kit = LoopKit(slow, count=1, of=endpoint(shared=SharedLimits(scope="acme/api")))
    await play(kit, 1)
    sending, ended = told(kit)
    assert sending == dict.fromkeys(KEYS) | {
        "phase": "sending",
        "tenant": "acme",
        "endpoint": "billing",
        "scope": "acme/api",
        "webhook_id": "msg_0",
        "queue": "p.acme.billing.queue/0/0",
        "event_time": "2027-01-15T08:00:00.000Z",
        "attempt": 1,
        "requests_before": 0,
        "started_at": "2027-01-15T08:16:40.000Z",
        "at": "2027-01-15T08:16:40.000Z",
        "missing": [],
    }
    assert ended == sending | {
        "phase": "ended",
        "at": "2027-01-15T08:16:40.250Z",
        "took_s": 0.25,
        "status": 204,
        "status_class": "2xx",
        "outcome": "confirmed",
        "verdict": "delivered",
        "judged_by": "status_table",
        "next": "complete",
        "decided_by": "status_table",
    }
    assert logs == []


@pytest.mark.parametrize(
    ("reply", "retry", "wait_s", "source"),
    [
        (BUSY, RetryLimits(), 0.2, "backoff"),
        (BUSY, RetryLimits(schedule_s=(7.0,)), 7.0, "schedule"),
        (answer(500, retry_after="9"), RetryLimits(), 9.0, "retry_after"),
        (answer(503, ratelimit='"a";r=0;t=12'), RetryLimits(), 12.0, "limit_headers"),
        (answer(429), RetryLimits(), 1.0, "min_429"),
        (answer(503, retry_after="1"), RetryLimits(base_s=3.0), 3.0, "backoff"),
        (TIMED_OUT, RetryLimits(), 0.2, "backoff"),
    ],
)
@in_virtual_time
async def test_a_retry_says_how_long_it_waits_and_who_named_that(
    reply: Reply, retry: RetryLimits, wait_s: float, source: str
) -> None:
    kit = LoopKit(reply, OK, count=1, retry=retry)
    await play(kit, 20)
    first, second = told(kit, "ended")
    assert picked(first, "verdict", "next", "decided_by", "reason") == ("retry", "retry", "retry_limits", None)
    assert picked(first, "wait_s", "wait_source") == (wait_s, source)
    assert picked(second, "attempt", "requests_before", "next", "wait_s") == (2, 1, "complete", None)
    assert kit.sender.sent[1].at - kit.sender.sent[0].at == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("reply", "changes", "judged_by", "end"),
    [
        (NOT_FOUND, {}, "status_table", ("dead_letter", "rejected", "status_table")),
        (BUSY, {"statuses": {503: Answering.REJECTED}}, "statuses", ("dead_letter", "rejected", "statuses")),
        (answer(302), {"statuses": {302: Answering.DELIVERED}}, "statuses", ("complete", None, "statuses")),
        (
            NOT_FOUND,
            {"statuses": {404: Answering.RETRY}, "retry": ONCE},
            "statuses",
            ("dead_letter", "exhausted", "retry_limits"),
        ),
        (THROTTLED, {"retry": ONCE, "hold_max_s": -1.0}, "status_table", ("hold", "hold", "on_exhausted")),
        (
            BUSY,
            {"retry": ONCE, "on_exhausted": OnExhausted.HOLD},
            "status_table",
            ("hold", "hold", "on_exhausted"),
        ),
        (TIMED_OUT, {"deadline_s": 0.1}, "no_answer", ("dead_letter", "expired", "deadline_s")),
        (TIMED_OUT, {"max_age_s": 1000.1}, "no_answer", ("dead_letter", "expired", "max_age_s")),
        (TIMED_OUT, {"max_age_s": 1000.15, "deadline_s": 0.1}, "no_answer", ("dead_letter", "expired", "deadline_s")),
        (NotSent(kind=NotSentKind.ADDRESS_REFUSED), {}, "configuration", ("halt", "cannot_send", "configuration")),
        (NotSent(kind=NotSentKind.INVALID_REQUEST), {}, "request", ("dead_letter", "unsendable", "request")),
    ],
)
@in_virtual_time
async def test_an_end_says_who_judged_it_what_comes_next_and_who_says_so(
    reply: Reply, changes: dict[str, Any], judged_by: str, end: tuple[str, str | None, str]
) -> None:
    kit = LoopKit(reply, count=1, **changes)
    await play(kit)
    (ended,) = told(kit, "ended")
    assert ended["judged_by"] == judged_by
    assert picked(ended, "next", "reason", "decided_by") == end
    assert [picked(one, "next", "reason", "decided_by") for one in told(kit, "decided")] == (
        [] if end[0] == "complete" else [("halt" if end[0] == "hold" else end[0], *end[1:])]
    )


@in_virtual_time
async def test_an_expired_event_says_which_wait_was_too_long_for_it() -> None:
    kit = LoopKit(THROTTLED, count=1, deadline_s=60.0)
    await play(kit)
    (ended,) = told(kit, "ended")
    assert picked(ended, "reason", "decided_by", "wait_s", "wait_source") == (
        "expired", "deadline_s", 300.0, "retry_after",
    )  # fmt: skip


@in_virtual_time
async def test_a_hold_that_has_lasted_too_long_is_decided_by_its_limit() -> None:
    kit = LoopKit(BUSY, count=1, retry=ONCE, on_exhausted=OnExhausted.HOLD, hold_max_s=5.0)
    await kit.run()
    await time_passes(10)
    await play(kit)
    held, ended = told(kit, "ended")
    assert picked(held, "attempt", "requests_before", "next") == (1, 0, "hold")
    assert picked(ended, "attempt", "requests_before", "reason", "decided_by") == (1, 1, "exhausted", "hold_max_s")


@in_virtual_time
async def test_a_cancelled_event_is_told_as_the_operators_decision(logs: list[MutableMapping[str, Any]]) -> None:
    kit = LoopKit(TIMED_OUT, OK, count=1, retry=RetryLimits(base_s=30.0))
    running = kit.start()
    await others()
    order = Order(position=0, at_ms=int(EPOCH_S * 1000), by="ann", below=1)
    kit.tenure.obey(Orders(cancel_all=order))
    await time_passes(1)
    kit.tenure.stop()
    await running
    assert [record["next"] for record in told(kit, "ended")] == ["retry"]
    (decided,) = told(kit, "decided")
    assert picked(decided, "next", "reason", "decided_by") == ("dead_letter", "cancelled", "order")
    assert picked(decided, "webhook_id", "attempt", "requests_before", "outcome") == ("msg_0", 1, 1, "unknown")
    assert decided["missing"] == ["answer"], "whether it was received is still not known"
    assert [line["event"] for line in logs] == ["attempt", "dead letter"]
    assert picked(dict(logs[1]), "reason", "decided_by", "log_level") == ("cancelled", "order", "info")


@in_virtual_time
async def test_a_halt_between_two_events_names_none_and_one_with_an_event_in_hand_names_it() -> None:
    kit = LoopKit(NOT_FOUND, count=6)
    await kit.run()
    halt = told(kit, "decided")[-1]
    assert picked(halt, "next", "reason", "decided_by", "wait_s", "wait_source") == (
        "halt", "rejections", "halt_after", 10.0, "halt_pause",
    )  # fmt: skip
    assert picked(halt, "webhook_id", "queue", "attempt") == (None, None, None)
    kit = LoopKit(OK, count=2, of=endpoint(shared=SharedLimits(quota=Quota(requests=1, window_s=60.0))))
    await kit.run()
    halt = told(kit, "decided")[-1]
    assert picked(halt, "next", "reason", "decided_by", "wait_source") == ("halt", "quota", "quota", "own_limit")
    assert picked(halt, "webhook_id", "attempt", "requests_before") == ("msg_1", 0, 0)


@in_virtual_time
async def test_a_hold_pauses_as_long_as_the_endpoint_asks_for() -> None:
    kit = LoopKit(THROTTLED, count=1, retry=ONCE)
    await kit.run()
    assert picked(told(kit, "decided")[-1], "reason", "wait_s", "wait_source") == ("hold", 300.0, "in_force")


@in_virtual_time
async def test_a_request_says_which_limit_of_ours_it_had_to_wait_for() -> None:
    kit = LoopKit(OK, count=3, of=endpoint(shared=SharedLimits(rate=Rate(per_s=1.0, burst=1))))
    await play(kit, 5)
    assert [record["waited_for"] for record in told(kit, "sending")] == [None, "rate", "rate"]


@in_virtual_time
async def test_what_is_not_known_is_named_as_missing() -> None:
    kit = LoopKit(Answer(status=204, cut=True), count=1)
    await play(kit)
    assert told(kit, "ended")[0]["missing"] == ["answer_body"]
    kit = LoopKit(TIMED_OUT, OK, count=1)
    kit.tenure.suspect = True
    await play(kit, 5)
    assert [record["missing"] for record in told(kit, "sending")] == [["earlier_end"]] * 2
    assert [record["missing"] for record in told(kit, "ended")] == [["answer", "earlier_end"], ["earlier_end"]]


@in_virtual_time
async def test_a_request_that_is_cut_off_has_a_beginning_and_no_end() -> None:
    async def never() -> Reply:
        await time_passes(3600)
        return OK

    kit = LoopKit(never, count=1)
    running = kit.start()
    await others()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [record["phase"] for record in told(kit)] == ["sending"]


@in_virtual_time
async def test_no_record_and_no_line_holds_a_url_a_secret_or_anything_of_a_body(
    logs: list[MutableMapping[str, Any]],
) -> None:
    secret = "tok3n"
    loud = Answer(
        status=404, headers=((b"location", f"https://{secret}/".encode()),), excerpt=secret.encode(), cut=True
    )
    kit = LoopKit(
        TIMED_OUT,
        loud,
        count=0,
        of=endpoint(
            url=f"https://{secret}.example/{secret}?{secret}",
            headers=(("authorization", secret),),
            secrets=(SigningKey(key=secret.encode() * 8),),
        ),
    )
    kit.reader.add(queued(0, value=secret.encode(), key=secret.encode()))
    await play(kit, 5)
    assert [record["phase"] for record in told(kit)] == ["sending", "ended", "sending", "ended", "decided"]
    assert secret not in json.dumps(told(kit)) + repr(kit.meter.records) + repr(logs)
    assert "://" not in json.dumps(told(kit))


@in_virtual_time
async def test_every_record_has_the_same_keys_and_they_are_these() -> None:
    kit = LoopKit(TIMED_OUT, NOT_FOUND, count=2)
    await play(kit, 5)
    assert {record["phase"] for record in told(kit)} == {"sending", "ended", "decided"}
    for record in told(kit):
        assert list(record) == [*ALL_KEYS]


@in_virtual_time
async def test_the_line_in_the_documentation_is_the_one_that_is_logged(logs: list[MutableMapping[str, Any]]) -> None:
    async def throttled() -> Reply:
        await asyncio.sleep(0.034)
        return THROTTLED

    kit = LoopKit(TIMED_OUT, throttled, count=1)
    await play(kit, 1)
    example = (
        OPERATIONS.read_text().partition("### The record of an attempt")[2].partition("    {")[2].partition("}")[0]
    )
    assert json.loads("{" + example + "}") == {name: value for name, value in logs[1].items() if name != "log_level"}


def test_every_field_of_a_record_is_described() -> None:
    table = OPERATIONS.read_text().partition("### The record of an attempt")[2].partition("| --- |")[2]
    first_cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.count("|") > 2)
    assert re.findall(r"`(\w+)`", first_cells) == [name for name in ALL_KEYS if name != "phase"]
