"""Slots and the line for them, under any interleaving of those who come, go and die."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.policy.slots import OFFER_S, PLACE_S, Line, entered, left

LEASE_S = 20.0
NAMES = [f"w{n % 3}/{n}" for n in range(7)]
happenings = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.1, 1.0, 2.0, 4.0, 25.0]), st.sampled_from(NAMES), st.booleans()),
    min_size=1,
    max_size=80,
)


@given(st.integers(1, 4), happenings)
def test_there_are_never_more_inside_than_may_be_and_nobody_waits_beside_a_free_slot(
    most: int, events: list[tuple[float, str, bool]]
) -> None:
    now, line = 1000.0, Line()
    for gap, who, comes in events:
        now += gap
        before = line
        line, called = entered(line, who, most, LEASE_S, now) if comes else left(line, who, most, now)
        assert len(line.inside) <= most
        assert len(line.inside) == most or not line.waiting
        assert line.inside.keys().isdisjoint(line.waiting)
        assert all(until > now for part in (line.inside, line.waiting) for until in part.values())
        assert set(called) == line.inside.keys() - before.inside.keys() - {who}, "whoever got one is called"
        if comes:
            assert line.inside.get(who, now + LEASE_S) == now + LEASE_S
        else:
            assert who not in line.inside
            assert who not in line.waiting


@given(st.lists(st.sampled_from(NAMES), min_size=2, max_size=40))
def test_those_who_wait_are_served_in_the_order_in_which_they_came_however_often_they_look(looks: list[str]) -> None:
    line, _ = entered(Line(), "first", 1, LEASE_S, 0.0)
    for who in looks:
        line, called = entered(line, who, 1, LEASE_S, 0.0)
        assert called == ()
    served, inside = [], "first"
    while line.waiting:
        line, (inside,) = left(line, inside, 1, 0.0)
        served.append(inside)
    assert served == list(dict.fromkeys(looks))


def test_a_slot_that_is_not_given_back_ends_with_its_lease_and_an_offer_that_is_not_taken_soon() -> None:
    line, _ = entered(Line(), "dead", 1, LEASE_S, 0.0)
    line, _ = entered(line, "gone", 1, LEASE_S, LEASE_S - 0.2)
    line, _ = entered(line, "here", 1, LEASE_S, LEASE_S - 0.1)
    assert line.inside.keys() == {"dead"}
    line, called = entered(line, "here", 1, LEASE_S, LEASE_S)
    assert called == ("gone",), "its turn, and nobody knows yet that it does not come"
    line, called = entered(line, "here", 1, LEASE_S, LEASE_S + OFFER_S)
    assert (line.inside, called) == ({"here": 2 * LEASE_S + OFFER_S}, ())


def test_a_place_in_the_line_that_nobody_renews_is_given_up() -> None:
    line, _ = entered(Line(), "inside", 1, LEASE_S, 0.0)
    line, _ = entered(line, "gone", 1, LEASE_S, 0.0)
    line, _ = entered(line, "here", 1, LEASE_S, 1.0)
    line, called = left(line, "inside", 1, PLACE_S)
    assert called == ("here",)
