"""The demo believes nothing that it cannot prove: what its summary says, and when it says that something is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.demo.roles import Role
from supervisor.demo.summary import Arrival, Evidence, Summary

EVENTS = tuple(f"msg_{number}" for number in range(20))


def arrivals(*statuses: tuple[str, int], every_s: float = 0.1) -> list[Arrival]:
    return [Arrival(id_, 100 + n * every_s, status) for n, (id_, status) in enumerate(statuses)]


def everything_delivered(role: Role) -> Evidence:
    return Evidence(
        role=role, events=EVENTS, arrivals=arrivals(*((id_, 204) for id_ in EVENTS)), dead=(), queued=(), halts=0
    )


def dead_in_bursts(times: Sequence[float], count: int = 5) -> Evidence:
    tried = [Arrival(EVENTS[n], at + 0.01 * n, 404) for at in times for n in range(count)]
    tried = [arrival._replace(id=EVENTS[n]) for n, arrival in enumerate(tried)]
    return Evidence(
        role=Role.DEAD,
        events=EVENTS,
        arrivals=tried,
        dead=[(arrival.id, "rejected") for arrival in tried],
        queued=EVENTS[len(tried) :],
        halts=len(times),
    )


def summary(**changes: Evidence) -> Summary:
    found = {role.name: everything_delivered(role) for role in Role} | {"DEAD": dead_in_bursts([0.0, 10.1])} | changes
    return Summary(endpoints=tuple(found.values()))


def test_nothing_is_wrong_when_every_event_is_delivered_dead_or_queued() -> None:
    assert summary().faults() == []
    assert summary().findings()[-1] == (
        "Nothing was lost: 60 delivered + 10 dead letters + 10 still queued = 80 events."
    )


def test_the_dead_endpoint_is_compared_with_the_healthy_one() -> None:
    [said] = [finding for finding in summary().findings() if "dead endpoint" in finding]
    assert "saw 5 requests in the busiest 10 s" in said
    assert "(the healthy one: 20)" in said
    assert "halted 2 times" in said


def test_a_missing_event_is_named() -> None:
    dead = dataclasses.replace(dead_in_bursts([0.0]), queued=EVENTS[6:])
    faulty = summary(DEAD=dead)
    assert faulty.faults() == ["dead: 1 events are missing: msg_5"]
    assert faulty.findings()[-1].startswith("The sum is wrong")


def test_an_event_in_two_places_is_named_although_the_sum_could_be_right() -> None:
    flaky = everything_delivered(Role.FLAKY)
    flaky = dataclasses.replace(flaky, arrivals=flaky.arrivals[:-1], queued=(EVENTS[0],))
    assert summary(FLAKY=flaky).faults() == [
        "flaky: 1 events are missing: msg_19",
        "flaky: 1 events were settled more than once: msg_0",
    ]
    assert summary(FLAKY=flaky).findings()[-1].startswith("The sum is wrong")


def test_an_event_that_nobody_sent_is_named() -> None:
    flaky = dataclasses.replace(everything_delivered(Role.FLAKY), queued=("msg_foreign",))
    assert "flaky: 1 events that nobody sent: msg_foreign" in summary(FLAKY=flaky).faults()


def test_repeats_of_one_event_are_in_order_and_a_return_to_it_is_not() -> None:
    flaky = everything_delivered(Role.FLAKY)
    again = [Arrival(EVENTS[0], 99.9, 503), *flaky.arrivals]
    assert dataclasses.replace(flaky, arrivals=again).in_order
    back = [*flaky.arrivals, Arrival(EVENTS[0], 200.0, 503)]
    assert not dataclasses.replace(flaky, arrivals=back).in_order
    assert "flaky: events did not arrive in order" in summary(FLAKY=dataclasses.replace(flaky, arrivals=back)).faults()


@pytest.mark.parametrize(("gap_s", "wrong"), [(10.0, False), (9.9, True)])
def test_six_requests_in_ten_seconds_at_the_dead_endpoint_are_wrong(gap_s: float, wrong: bool) -> None:
    faults = summary(DEAD=dead_in_bursts([0.0, gap_s])).faults()
    assert any("requests in 10 s" in fault for fault in faults) is wrong


@pytest.mark.parametrize(("wait_s", "wrong"), [(1.0, False), (0.99, True)])
def test_a_request_before_a_retry_after_is_over_is_wrong(wait_s: float, wrong: bool) -> None:
    rest = [Arrival(id_, 10 + wait_s + n, 204) for n, id_ in enumerate(EVENTS)]
    limiting = dataclasses.replace(everything_delivered(Role.LIMITING), arrivals=[Arrival(EVENTS[0], 10.0, 429), *rest])
    faults = summary(LIMITING=limiting).faults()
    assert any("after a 429" in fault for fault in faults) is wrong


def test_an_incomplete_healthy_endpoint_is_wrong_only_when_the_demo_ran_to_its_end() -> None:
    healthy = everything_delivered(Role.HEALTHY)
    healthy = dataclasses.replace(healthy, arrivals=healthy.arrivals[:-1], queued=EVENTS[-1:])
    cut_short = dataclasses.replace(summary(HEALTHY=healthy), finished=False)
    assert cut_short.faults() == []
    assert summary(HEALTHY=healthy).faults() == ["healthy: only 19 of 20 events were delivered"]


@given(st.lists(st.sampled_from(["delivered", "dead", "queued"]), min_size=20, max_size=20))
def test_any_division_of_the_events_among_the_three_places_is_in_order(places: list[str]) -> None:
    of = dict(zip(EVENTS, places, strict=True))
    evidence = Evidence(
        role=Role.FLAKY,
        events=EVENTS,
        arrivals=arrivals(*((id_, 204 if place == "delivered" else 404) for id_, place in of.items())),
        dead=[(id_, "rejected") for id_, place in of.items() if place == "dead"],
        queued=[id_ for id_, place in of.items() if place == "queued"],
        halts=0,
    )
    assert summary(FLAKY=evidence).faults() == []
    assert sum(evidence.places().values()) == len(EVENTS)
