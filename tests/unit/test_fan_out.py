"""How many source records become one transaction."""

from __future__ import annotations

import dataclasses

import pytest

from delivery.model import Endpoint, Headers
from delivery.naming import queue_topic
from delivery.policy.fan_out import MOST_WRITE_BYTES, MOST_WRITES, FanoutPlan, TopicLimits
from delivery.policy.subscribe import Subscriptions

PREFIX = "webhooks"


@dataclasses.dataclass(frozen=True)
class SourceRecord:
    offset: int
    value: bytes | None = b"{}"
    topic: str = "orders"
    partition: int = 0
    timestamp: int = 1_800_000_000_000
    key: bytes | None = b"key"
    headers: Headers = ()


def _plan(count: int) -> tuple[FanoutPlan, TopicLimits]:
    endpoints = [
        Endpoint(tenant="acme", name=f"e{n}", url="https://example.com/", topics=frozenset({"orders"}))
        for n in range(count)
    ]
    queues = [queue_topic(PREFIX, endpoint.tenant, endpoint.name) for endpoint in endpoints]
    return FanoutPlan(Subscriptions(endpoints), PREFIX), TopicLimits(by_topic=dict.fromkeys(queues, 2 * 1_048_576))


def test_a_batch_for_a_few_subscribers_is_taken_whole() -> None:
    plan, limits = _plan(3)
    planned = plan.plan([SourceRecord(n) for n in range(1000)], limits)
    assert (planned.taken, len(planned.records)) == (1000, 3000)


@pytest.mark.parametrize(
    ("subscribers", "value"), [(400, b"{}"), (MOST_WRITES + 1, b"{}"), (40, b"x" * 1_000_000), (1, b"x" * 1_000_000)]
)
def test_with_many_subscribers_or_large_values_fewer_are_taken_and_none_is_split(
    subscribers: int, value: bytes
) -> None:
    plan, limits = _plan(subscribers)
    left = [SourceRecord(n, value) for n in range(100)]
    written: list[bytes] = []
    while left:
        planned = plan.plan(left, limits)
        assert planned.taken >= 1
        assert len(planned.records) == planned.taken * subscribers
        assert len(planned.records) < MOST_WRITES + subscribers
        assert sum(len(r.value or b"") for r in planned.records) < MOST_WRITE_BYTES + subscribers * len(value)
        written += [dict(record.headers)["delivery-source"] or b"" for record in planned.records[::subscribers]]
        left = left[planned.taken :]
    assert written == [b"orders/0/%d" % n for n in range(100)]


def test_tombstones_are_taken_and_write_nothing() -> None:
    plan, limits = _plan(2)
    planned = plan.plan([SourceRecord(n, None) for n in range(10)], limits)
    assert (planned.taken, planned.records) == (10, ())
