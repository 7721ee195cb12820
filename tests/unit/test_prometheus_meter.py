"""The counters behind the metrics page: their names, their labels, and what never becomes one."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from delivery.adapters.prometheus_meter import Gauges, PrometheusMeter
from delivery.attempts import Attempts
from delivery.model import (
    Answer,
    DeadLetterReason,
    DecidedBy,
    Decision,
    Ended,
    Endpoint,
    FanoutResult,
    HaltReason,
    NextStep,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    Outcome,
    Position,
    Reply,
    Sending,
    StatusClass,
    VerdictName,
)
from delivery.policy.recount import ending

SECRET = "tok3n-in-the-path"
ENDPOINT = Endpoint(
    tenant="acme", name="billing", url=f"https://hooks.example.com/{SECRET}", topics=frozenset({"orders"})
)
ALLOWED = {
    "outcome": {outcome.value for outcome in Outcome},
    "status_class": {status.value for status in StatusClass},
    "result": {result.value for result in FanoutResult},
    "tenant": {"acme"},
    "endpoint": {"billing"},
    "topic": {"orders"},
    "reason": {reason.value for reason in [*DeadLetterReason, *HaltReason]},
}
LABEL = re.compile(r'(\w+)="([^"]*)"')


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"tenant": "acme", "endpoint": "billing", **labels})


def told(reply: Reply, *, took_s: float = 0.02, step: NextStep = NextStep.DEAD_LETTER, old_s: float = 1.0) -> Ended:
    """An attempt at an event that was `old_s` old when it began."""
    sending = Sending(
        tenant=ENDPOINT.tenant,
        endpoint=ENDPOINT.name,
        scope=None,
        event_id="msg_1",
        event_time_ms=1_800_000_000_000,
        queue=Position(topic="q", partition=0, offset=1),
        attempt=1,
        requests_before=0,
        started_wall_s=1_800_000_000.0 + old_s,
    )
    return Ended(
        sending=sending,
        took_s=took_s,
        ending=ending(reply),
        verdict=VerdictName.RETRY,
        judged_by=DecidedBy.STATUS_TABLE,
        decision=Decision(step=step, by=DecidedBy.STATUS_TABLE),
    )


def fill(meter: Attempts, replies: list[Reply]) -> None:
    for reply in replies:
        meter.ended(told(reply))


def our_lines(registry: CollectorRegistry) -> list[str]:
    page = generate_latest(registry).decode()
    return [line for line in page.splitlines() if line.startswith("delivery_")]


def test_an_attempt_is_counted_by_outcome_and_status_class() -> None:
    registry = CollectorRegistry()
    dropped = NoAnswer(kind=NoAnswerKind.DROPPED, outcome=Outcome.UNKNOWN)
    fill(PrometheusMeter(registry), [Answer(status=204), Answer(status=200), dropped])
    assert value(registry, "delivery_attempts_total", outcome="confirmed", status_class="2xx") == 2
    assert value(registry, "delivery_attempts_total", outcome="unknown", status_class="dropped") == 1


def test_a_request_that_was_never_made_is_no_attempt_and_one_that_got_no_connection_is() -> None:
    registry = CollectorRegistry()
    refused = NoAnswer(kind=NoAnswerKind.CONNECT, outcome=Outcome.NOT_STARTED)
    fill(PrometheusMeter(registry), [NotSent(kind=NotSentKind.ADDRESS_REFUSED), refused])
    assert value(registry, "delivery_attempts_total", outcome="not_started", status_class="other") is None
    assert value(registry, "delivery_attempts_total", outcome="not_started", status_class="connect") == 1
    assert value(registry, "delivery_attempt_seconds_count") == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("step", NextStep)
def test_an_attempt_whose_event_is_to_be_sent_again_counts_as_retried_under_its_status(
    step: NextStep, status: int
) -> None:
    registry = CollectorRegistry()
    PrometheusMeter(registry).ended(told(Answer(status=status), step=step))
    again = 1 if step in (NextStep.RETRY, NextStep.HOLD) else None
    assert value(registry, "delivery_retries_total", status_class=str(status)) == again
    assert value(registry, "delivery_delivered_total") == (1 if step is NextStep.COMPLETE else 0)


def test_a_delivery_is_as_old_as_its_event_when_the_answer_came_and_never_younger_than_nothing() -> None:
    registry = CollectorRegistry()
    meter = PrometheusMeter(registry)
    meter.ended(told(Answer(status=200), step=NextStep.COMPLETE, took_s=0.5, old_s=2.0))
    assert value(registry, "delivery_end_to_end_seconds_sum") == 2.5
    meter.ended(told(Answer(status=200), step=NextStep.COMPLETE, took_s=0.5, old_s=-60.0))
    assert value(registry, "delivery_end_to_end_seconds_sum") == 2.5
    assert value(registry, "delivery_delivered_total") == 2


@pytest.mark.parametrize(
    ("seconds", "upper", "below"), [(0.1, "0.1", "0.05"), (0.0, "0.005", None), (99.0, "+Inf", "15.0")]
)
def test_a_duration_falls_into_the_first_bucket_that_holds_it(seconds: float, upper: str, below: str | None) -> None:
    registry = CollectorRegistry()
    PrometheusMeter(registry).ended(told(Answer(status=200), took_s=seconds))
    assert value(registry, "delivery_attempt_seconds_bucket", le=upper) == 1
    assert below is None or value(registry, "delivery_attempt_seconds_bucket", le=below) == 0
    assert value(registry, "delivery_attempt_seconds_count") == 1
    assert value(registry, "delivery_attempt_seconds_sum") == seconds


def test_everything_else_is_counted_under_its_name() -> None:
    registry = CollectorRegistry()
    meter = PrometheusMeter(registry)
    meter.dead_letter(ENDPOINT, DeadLetterReason.REJECTED)
    meter.halt(ENDPOINT, HaltReason.REJECTIONS)
    meter.left_out(ENDPOINT, 3)
    meter.fanned_out(FanoutResult.QUEUED, 7)
    meter.lost("orders", 5)
    assert value(registry, "delivery_dead_letters_total", reason="rejected") == 1
    assert value(registry, "delivery_halts_total", reason="rejections") == 1
    assert value(registry, "delivery_left_out_headers_total") == 3
    assert registry.get_sample_value("delivery_fanout_events_total", {"result": "queued"}) == 7
    assert registry.get_sample_value("delivery_fanout_events_total", {"result": "unqueueable"}) == 0
    assert registry.get_sample_value("delivery_lost_to_retention_total", {"topic": "orders"}) == 5


@pytest.mark.parametrize("records", [pytest.param(1000, id="MX-01")])
def test_a_thousand_records_make_no_series_of_their_own_and_show_no_url(records: int) -> None:
    registry = CollectorRegistry()
    meter = PrometheusMeter(registry)
    meter.ended(told(Answer(status=204), step=NextStep.COMPLETE))
    before = len(our_lines(registry))
    for number in range(records):
        answer = Answer(status=204, excerpt=b"id-%d" % number)
        meter.ended(told(answer, step=NextStep.COMPLETE, took_s=number / 1000))
    page = "\n".join(our_lines(registry))
    assert len(our_lines(registry)) == before
    assert SECRET not in page
    assert "example.com" not in page
    assert "://" not in page


@pytest.mark.parametrize("statuses", [pytest.param(range(100, 1000), id="MX-04")])
def test_label_values_come_from_closed_sets_whatever_the_endpoint_answers(statuses: range) -> None:
    registry = CollectorRegistry()
    meter = PrometheusMeter(registry)
    fill(meter, [Answer(status=status) for status in statuses])
    fill(meter, [NoAnswer(kind=k, outcome=Outcome.UNKNOWN, detail="ssl: host 10.1.2.3 said no") for k in NoAnswerKind])
    for reason in HaltReason:
        meter.halt(ENDPOINT, reason)
    for letter in DeadLetterReason:
        meter.dead_letter(ENDPOINT, letter)
    meter.lost("orders", 1)
    found = {pair for line in our_lines(registry) for pair in LABEL.findall(line)}
    assert {(name, text) for name, text in found if name != "le" and text not in ALLOWED[name]} == set()
    assert value(registry, "delivery_attempts_total", outcome="confirmed", status_class="other") is not None


def test_gauges_are_asked_at_each_scrape_and_one_state_of_a_loop_is_one() -> None:
    registry = CollectorRegistry()
    meter = PrometheusMeter(registry)
    lag = {("acme", "billing"): 4}
    meter.watch(
        Gauges(
            states=("running", "halted"),
            loop_states=lambda: {("acme", "billing"): "halted"},
            assignments=lambda: {"delivery": 3},
            redis_up=lambda: True,
            kafka_member=lambda: {"webhooks.delivery": True, "webhooks.fanout": False},
            queue_lag=lambda: lag,
            oldest_event_age_s=lambda: {("acme", "billing"): 12.5},
            buffered_bytes=lambda: 10,
            dead_letters_pending=lambda: {"acme": 7},
            oldest_dead_letter_age_s=lambda: {"acme": 90.5},
        )
    )
    assert value(registry, "delivery_loop_state", state="halted") == 1
    assert value(registry, "delivery_loop_state", state="running") == 0
    assert registry.get_sample_value("delivery_kafka_member", {"group": "webhooks.delivery"}) == 1
    assert registry.get_sample_value("delivery_kafka_member", {"group": "webhooks.fanout"}) == 0
    assert registry.get_sample_value("delivery_redis_up") == 1
    assert registry.get_sample_value("delivery_buffered_bytes", {}) == 10
    assert value(registry, "delivery_oldest_event_age_seconds") == 12.5
    assert registry.get_sample_value("delivery_dead_letters_pending", {"tenant": "acme"}) == 7
    assert registry.get_sample_value("delivery_oldest_dead_letter_age_seconds", {"tenant": "acme"}) == 90.5
    lag["acme", "billing"] = 3
    assert value(registry, "delivery_queue_lag") == 3


def test_an_endpoint_has_no_series_before_something_happened_there() -> None:
    registry = CollectorRegistry()
    PrometheusMeter(registry)
    assert not [line for line in our_lines(registry) if "acme" in line]
