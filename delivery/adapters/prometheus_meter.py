"""What happens, as Prometheus reads it: counters that the loops fill, and gauges that are asked at each scrape."""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from delivery.model import (
    DeadLetterReason,
    Decided,
    Ended,
    Endpoint,
    FanoutResult,
    HaltReason,
    NextStep,
    NotSentKind,
    Outcome,
    Sending,
    StatusClass,
)

# Up to the default time limit of an attempt (15 s); an endpoint with a longer one ends in +Inf.
ATTEMPT_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)
# From a healthy delivery over one that was tried again (6.2 s) and a long halt (300 s) to a day's backlog.
END_TO_END_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 86_400.0)

Name = tuple[str, str]
"""Tenant and endpoint: the only names that become label values, and both come from the settings."""

_NAME: Final = ("tenant", "endpoint")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What is asked at each scrape, on the event loop, and has to be answered from memory.

    `loop_states` names one of `states` for each endpoint that this worker knows, `kafka_member` says for each group
    whether the membership is proven, `assignments` how many it has got, `redis_up` is None where there is no Redis,
    `queue_lag` counts the records that wait, `oldest_event_age_s` leaves out where it is not known. The two of dead
    letters are by tenant, of those that this worker counts for.
    """

    states: tuple[str, ...]
    loop_states: Callable[[], Mapping[Name, str]]
    kafka_member: Callable[[], Mapping[str, bool]]
    redis_up: Callable[[], bool] | None
    assignments: Callable[[], Mapping[str, int]]
    queue_lag: Callable[[], Mapping[Name, int]]
    oldest_event_age_s: Callable[[], Mapping[Name, float]]
    buffered_bytes: Callable[[], int]
    dead_letters_pending: Callable[[], Mapping[str, int]]
    oldest_dead_letter_age_s: Callable[[], Mapping[str, float]]


class _Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Name) -> None:
        bounds = [*map(str, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, itertools.accumulate(self._counts), strict=True)), self._sum)


class _Counted:
    """Everything that is counted of one endpoint."""

    __slots__ = ("attempt_s", "attempts", "dead_letters", "delivered", "end_to_end_s", "halts", "left_out", "retries")

    def __init__(self) -> None:
        self.attempts: dict[tuple[Outcome, StatusClass], int] = defaultdict(int)
        self.attempt_s = _Histogram(ATTEMPT_BUCKETS_S)
        self.delivered = 0
        self.end_to_end_s = _Histogram(END_TO_END_BUCKETS_S)
        self.retries: dict[StatusClass, int] = defaultdict(int)
        self.dead_letters: dict[DeadLetterReason, int] = defaultdict(int)
        self.halts: dict[HaltReason, int] = defaultdict(int)
        self.left_out = 0


class PrometheusMeter:
    """`delivery.ports.Meter`, `delivery.attempts.Attempts`, and the page that Prometheus scrapes.

    One thread counts, so plain numbers do: prometheus_client's own counters take a lock each, four times per
    delivery. Label values are the settings' names and members of closed enumerations, nothing else.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """`registry` defaults to one of its own; never the one that prometheus_client shares within the process."""
        self._registry = registry = CollectorRegistry() if registry is None else registry
        self._counted: dict[Name, _Counted] = defaultdict(_Counted)
        # There from the start, so that the first one that is counted shows as an increase.
        self._fanned_out = dict.fromkeys(FanoutResult, 0)
        self._lost: dict[str, int] = defaultdict(int)
        self._gauges: Gauges | None = None
        self._asked: list[Metric] | None = None
        registry.register(self)
        ProcessCollector(registry=registry)

    def watch(self, gauges: Gauges) -> None:
        """Ask these at every scrape from now on."""
        self._gauges = gauges

    async def page(self) -> bytes:
        """The page as it is now. Made in a thread: at 1,000 endpoints that takes half a second."""
        self._asked = _asked(self._gauges)
        return await asyncio.to_thread(generate_latest, self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry. What the loops are changing meanwhile is copied first, each time in one step."""
        counted = list(self._counted.items())
        yield from _counters(counted)
        yield from _histograms(counted)
        fanned_out = CounterMetricFamily(
            "delivery_fanout_events", "Source records dealt with, by what became of them", labels=["result"]
        )
        for result, count in list(self._fanned_out.items()):
            fanned_out.add_metric([result.value], count)
        yield fanned_out
        lost = CounterMetricFamily(
            "delivery_lost_to_retention", "Records that were deleted before they were read", labels=["topic"]
        )
        for topic, count in list(self._lost.items()):
            lost.add_metric([topic], count)
        yield lost
        yield from _asked(self._gauges) if self._asked is None else self._asked

    def sending(self, record: Sending) -> None:
        """Counted when it has ended."""

    def ended(self, record: Ended) -> None:
        """One attempt ended. One without a request, for a reason that is ours, is none."""
        sent, end = record.sending, record.ending
        counted = self._counted[sent.tenant, sent.endpoint]
        if not isinstance(end.failure, NotSentKind):
            counted.attempts[end.outcome, end.status_class] += 1
            counted.attempt_s.observe(record.took_s)
        match record.decision.step:
            case NextStep.COMPLETE:
                counted.delivered += 1
                counted.end_to_end_s.observe(max(0.0, record.ended_wall_s - sent.event_time_ms / 1000))
            case NextStep.RETRY | NextStep.HOLD:
                counted.retries[end.status_class] += 1
            case NextStep.DEAD_LETTER | NextStep.HALT:
                pass
            case _ as never:
                assert_never(never)

    def decided(self, record: Decided) -> None:
        """Dead letters and halts are counted where they are made: not all of them are a loop's."""

    def dead_letter(self, endpoint: Endpoint, reason: DeadLetterReason) -> None:
        """One dead letter was acknowledged by Kafka."""
        self._counted[endpoint.tenant, endpoint.name].dead_letters[reason] += 1

    def halt(self, endpoint: Endpoint, reason: HaltReason) -> None:
        """A loop ended by rule or crashed."""
        self._counted[endpoint.tenant, endpoint.name].halts[reason] += 1

    def left_out(self, endpoint: Endpoint, count: int) -> None:
        """Forwarded header values that could not be sent as HTTP."""
        self._counted[endpoint.tenant, endpoint.name].left_out += count

    def fanned_out(self, result: FanoutResult, count: int) -> None:
        """Source records were dealt with."""
        self._fanned_out[result] += count

    def lost(self, topic: str, count: int) -> None:
        """Records that retention took before they were read."""
        self._lost[topic] += count


def _counters(counted: Iterable[tuple[Name, _Counted]]) -> Iterator[Metric]:
    attempts = CounterMetricFamily(
        "delivery_attempts", "Requests that ended, by what is known of them", labels=[*_NAME, "outcome", "status_class"]
    )
    delivered = CounterMetricFamily("delivery_delivered", "Events that the endpoint confirmed", labels=_NAME)
    retries = CounterMetricFamily("delivery_retries", "Attempts scheduled again", labels=[*_NAME, "status_class"])
    dead_letters = CounterMetricFamily("delivery_dead_letters", "Dead letters written", labels=[*_NAME, "reason"])
    halts = CounterMetricFamily("delivery_halts", "Ends of an endpoint's loop, by reason", labels=[*_NAME, "reason"])
    left_out = CounterMetricFamily(
        "delivery_left_out_headers", "Forwarded headers that no HTTP header can carry", labels=_NAME
    )
    for name, one in counted:
        for (outcome, status_class), count in list(one.attempts.items()):
            attempts.add_metric([*name, outcome.value, status_class.value], count)
        delivered.add_metric(name, one.delivered)
        for status_class, count in list(one.retries.items()):
            retries.add_metric([*name, status_class.value], count)
        for letter, count in list(one.dead_letters.items()):
            dead_letters.add_metric([*name, letter.value], count)
        for halt, count in list(one.halts.items()):
            halts.add_metric([*name, halt.value], count)
        left_out.add_metric(name, one.left_out)
    yield from (attempts, delivered, retries, dead_letters, halts, left_out)


def _histograms(counted: Iterable[tuple[Name, _Counted]]) -> Iterator[Metric]:
    attempt_s = HistogramMetricFamily("delivery_attempt_seconds", "How long a request took", labels=_NAME)
    end_to_end_s = HistogramMetricFamily(
        "delivery_end_to_end_seconds", "From the source record's time to the confirmation", labels=_NAME
    )
    for name, one in counted:
        one.attempt_s.add_to(attempt_s, name)
        one.end_to_end_s.add_to(end_to_end_s, name)
    yield from (attempt_s, end_to_end_s)


def _asked(gauges: Gauges | None) -> list[Metric]:
    if gauges is None:
        return []
    states = GaugeMetricFamily("delivery_loop_state", "1 for the state that the loop is in", labels=[*_NAME, "state"])
    for name, current in gauges.loop_states().items():
        for state in gauges.states:
            states.add_metric([*name, state], float(state == current))
    member = GaugeMetricFamily("delivery_kafka_member", "1 while the membership is proven", labels=["group"])
    for group, proven in gauges.kafka_member().items():
        member.add_metric([group], float(proven))
    redis = GaugeMetricFamily("delivery_redis_up", "1 while Redis answers and takes writes")
    if gauges.redis_up is not None:
        redis.add_metric([], float(gauges.redis_up()))
    rebalances = CounterMetricFamily("delivery_rebalances", "Assignments that this worker got", labels=["group"])
    for group, count in gauges.assignments().items():
        rebalances.add_metric([group], count)
    lag = GaugeMetricFamily("delivery_queue_lag", "Records that wait in the endpoint's queue", labels=_NAME)
    for name, count in gauges.queue_lag().items():
        lag.add_metric(name, count)
    oldest = GaugeMetricFamily(
        "delivery_oldest_event_age_seconds", "Age of the oldest event that is not settled, 0 without one", labels=_NAME
    )
    for name, age_s in gauges.oldest_event_age_s().items():
        oldest.add_metric(name, age_s)
    buffered = GaugeMetricFamily("delivery_buffered_bytes", "Size of the records read ahead")
    buffered.add_metric([], gauges.buffered_bytes())
    return [states, member, redis, rebalances, lag, oldest, buffered, *_letters(gauges)]


def _letters(gauges: Gauges) -> Iterator[Metric]:
    pending = GaugeMetricFamily(
        "delivery_dead_letters_pending", "Dead letters that have not been sent again", labels=["tenant"]
    )
    for tenant, count in gauges.dead_letters_pending().items():
        pending.add_metric([tenant], count)
    oldest = GaugeMetricFamily(
        "delivery_oldest_dead_letter_age_seconds", "Age of the oldest of them, 0 without one", labels=["tenant"]
    )
    for tenant, age_s in gauges.oldest_dead_letter_age_s().items():
        oldest.add_metric([tenant], age_s)
    yield from (pending, oldest)
