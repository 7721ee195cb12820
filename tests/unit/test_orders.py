"""What operators' orders say, whatever of them compaction has left."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import DeadLetterReason, HaltReason, Partition
from delivery.policy.notes import Note, is_note, note_value, queue_key, read_note, source_key
from delivery.policy.orders import (
    FREE,
    LATE_MS,
    NO_ORDERS,
    ControlRecord,
    Order,
    OrderKind,
    Orders,
    ResumeFrom,
    bar,
    before_all,
    cut,
    fold,
    order_key,
    order_value,
    ordered,
    read_order,
    resume_from,
    unfinished,
)

AT_MS = 1_800_000_000_123
CANCELLED, DRAINED = DeadLetterReason.CANCELLED, DeadLetterReason.DRAINED


def order(position: int = 1, **changes: object) -> Order:
    return dataclasses.replace(Order(position=position, at_ms=AT_MS), **changes)  # type: ignore[arg-type]


def record(kind: OrderKind, position: int, *, back: bool = False, **changes: object) -> ControlRecord:
    return ControlRecord(
        tenant="acme",
        endpoint="billing",
        kind=kind,
        position=position,
        order=None if back else order(position, **changes),
    )


def folded(*records: ControlRecord) -> Orders:
    orders = NO_ORDERS
    for one in records:
        orders = fold(orders, one)
    return orders


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), None),
        ((OrderKind.PAUSE,), HaltReason.PAUSED),
        ((OrderKind.PAUSE, OrderKind.RESUME), None),
        ((OrderKind.RESUME, OrderKind.PAUSE), HaltReason.PAUSED),
        ((OrderKind.PAUSE, OrderKind.RESUME, OrderKind.PAUSE), HaltReason.PAUSED),
        ((OrderKind.DISABLE,), HaltReason.GONE),
        ((OrderKind.DISABLE, OrderKind.RESUME), None),
        ((OrderKind.DISABLE, OrderKind.PAUSE), HaltReason.PAUSED),
        ((OrderKind.DISABLE, OrderKind.PAUSE, OrderKind.RESUME), None),
        ((OrderKind.PAUSE, OrderKind.CANCEL_ALL), HaltReason.PAUSED),
    ],
)
def test_a_pause_and_a_disabling_hold_until_a_later_resume(
    kinds: tuple[OrderKind, ...], expected: HaltReason | None
) -> None:
    assert bar(folded(*(record(kind, position) for position, kind in enumerate(kinds)))) is expected


@pytest.mark.parametrize("kinds", [(OrderKind.RESUME, OrderKind.PAUSE), (OrderKind.PAUSE, OrderKind.RESUME)])
def test_what_a_topic_said_before_it_was_made_anew_holds_until_it_says_something_else(
    kinds: tuple[OrderKind, OrderKind],
) -> None:
    first, last = kinds
    said = fold(fold(NO_ORDERS, record(first, 8)), record(last, 9))
    older = before_all(said, 10)
    assert bar(older) is bar(said)
    assert [one.position for one in older.all] == [one.position - 10 for one in said.all]
    assert bar(fold(older, record(first, 0))) is (HaltReason.PAUSED if first is OrderKind.PAUSE else None)


def test_an_order_that_is_taken_back_holds_no_longer() -> None:
    assert folded(record(OrderKind.PAUSE, 1), record(OrderKind.PAUSE, 2, back=True)) == NO_ORDERS


records = st.builds(
    lambda kind, position, below: record(kind, position, below=below),
    st.sampled_from(OrderKind),
    st.integers(0, 20),
    st.integers(0, 9),
)


@given(st.lists(records, unique_by=lambda one: one.position, max_size=7), st.randoms())
def test_what_holds_depends_neither_on_the_sequence_nor_on_what_compaction_took(
    some: list[ControlRecord], chance: object
) -> None:
    expected = folded(*sorted(some, key=lambda one: one.position))
    newest = {one.kind: one for one in sorted(some, key=lambda one: one.position)}
    assert folded(*newest.values()) == expected
    chance.shuffle(some)  # type: ignore[attr-defined]
    assert folded(*some, *some) == expected


@pytest.mark.parametrize(
    ("orders", "offset", "expected"),
    [
        (NO_ORDERS, 0, None),
        (Orders(cancel_record=order(first=5, below=6)), 4, None),
        (Orders(cancel_record=order(first=5, below=6)), 5, CANCELLED),
        (Orders(cancel_record=order(first=5, below=6)), 6, None),
        (Orders(cancel_all=order(below=6)), 0, CANCELLED),
        (Orders(cancel_all=order(below=6)), 5, CANCELLED),
        (Orders(cancel_all=order(below=6)), 6, None),
        (Orders(drain=order(below=6)), 5, DRAINED),
        (Orders(drain=order(below=6)), 6, None),
        (Orders(drain=order(below=6), cancel_all=order(below=3)), 2, CANCELLED),
        (Orders(drain=order(below=6), cancel_all=order(below=3)), 3, DRAINED),
    ],
)
def test_an_order_ends_the_records_that_it_means_and_no_others(
    orders: Orders, offset: int, expected: DeadLetterReason | None
) -> None:
    assert cut(orders, offset, AT_MS) is expected
    assert cut(orders, offset, None) is expected


def test_a_record_of_a_queue_that_was_made_anew_is_not_what_an_old_order_was_about() -> None:
    orders = Orders(cancel_all=order(below=6))
    assert cut(orders, 3, AT_MS + LATE_MS) is CANCELLED
    assert cut(orders, 3, AT_MS + LATE_MS + 1) is None


@pytest.mark.parametrize(("next_offset", "expected"), [(0, True), (5, True), (6, False)])
def test_an_order_is_unfinished_until_the_queue_is_past_it(next_offset: int, expected: bool) -> None:
    assert unfinished(Orders(drain=order(below=6)), next_offset) is expected


def test_without_orders_a_loop_is_free() -> None:
    assert ordered(NO_ORDERS, 0, 3, AT_MS) == FREE
    assert ordered(Orders(), 0, 3, AT_MS) == FREE


def test_a_paused_loop_still_has_what_was_cancelled_to_do() -> None:
    orders = Orders(pause=order(1), cancel_all=order(2, below=6))
    said = ordered(orders, 4, 4, AT_MS)
    assert (said.bar, said.cut, said.more) == (HaltReason.PAUSED, CANCELLED, True)
    said = ordered(orders, 6, None)
    assert (said.bar, said.cut, said.more) == (HaltReason.PAUSED, None, False)


@pytest.mark.parametrize(
    ("resume", "expected"),
    [
        (None, None),
        (order(7), None),
        (order(7, resume_from=ResumeFrom.LATEST), None),
        (order(9, resume_from=ResumeFrom.LATEST), ResumeFrom.LATEST),
        (order(9, resume_from=ResumeFrom.OLDEST), ResumeFrom.OLDEST),
    ],
)
def test_a_resume_answers_the_losses_before_it_and_none_to_come(
    resume: Order | None, expected: ResumeFrom | None
) -> None:
    assert resume_from(Orders(resume=resume), noted_at=8) is expected


@pytest.mark.parametrize("kind", list(OrderKind))
def test_what_is_written_is_read_again(kind: OrderKind) -> None:
    ranged = kind in {OrderKind.CANCEL_RECORD, OrderKind.CANCEL_ALL, OrderKind.DRAIN}
    start = ResumeFrom.OLDEST if kind is OrderKind.RESUME else None
    made = order(7, by="ann@host", detail="über", first=2 * ranged, below=3 * ranged, resume_from=start)
    found = read_order(order_key("acme", "big-co", kind), order_value(kind, made), 7)
    assert found == ControlRecord(tenant="acme", endpoint="big-co", kind=kind, position=7, order=made)


def test_each_kind_has_a_key_of_its_own_so_that_compaction_keeps_the_newest_of_each() -> None:
    keys = [order_key("acme", "billing", kind) for kind in OrderKind]
    assert len(set(keys)) == len(keys)


PAUSE = {"order": "pause", "at": "2027-01-15T08:00:00.000Z", "by": "ann"}
STRANGE_NUMBERS: list[object] = [None, "x", [], float("inf")]
DRAIN = {**PAUSE, "order": "drain", "first": 0, "below": 9}


@pytest.mark.parametrize("value", [PAUSE, {**PAUSE, "more": [1]}, {"order": "pause", "at": "2027-01-15T08:00:00Z"}])
def test_an_order_with_more_or_less_than_ours_is_read(value: object) -> None:
    found = read_order("order/acme/billing/pause", json.dumps(value).encode(), 0)
    assert found is not None
    assert found.order is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *itertools.product(
            ["", "order", "order/acme/billing", "order/acme/billing/stop", "order/acme/billing/pause/x", "x/a/b/pause"],
            [json.dumps(PAUSE).encode(), None],
        ),
        *(
            ("order/acme/billing/pause", value)
            for value in (
                b"", b"{", b"\xff", b"[]", b"1", b'"pause"', b"null", b"[" * 100_000,
                json.dumps({**PAUSE, "order": "resume"}).encode(),
                json.dumps({**PAUSE, "at": "yesterday"}).encode(),
                json.dumps({**PAUSE, "at": "9" * 330}).encode(),
                json.dumps({**PAUSE, "at": "-1"}).encode(),
                json.dumps({"order": "pause"}).encode(),
            )
        ),
        *(
            ("order/acme/billing/drain", json.dumps({**DRAIN, "below": below}).encode())
            for below in STRANGE_NUMBERS
        ),
        ("order/acme/billing/resume", json.dumps({**PAUSE, "order": "resume", "from": "middle"}).encode()),
        ("order/acme/billing/resume", json.dumps({**PAUSE, "order": "resume", "from": []}).encode()),
    ],
)  # fmt: skip
def test_what_is_no_order_is_none_whatever_it_is(key: str, value: bytes | None) -> None:
    assert read_order(key, value, 0) is None


@given(st.text(), st.one_of(st.none(), st.binary()))
def test_no_record_of_a_stranger_raises(key: str, value: bytes | None) -> None:
    read_order(key, value, 0)
    read_order("order/acme/billing/pause", value, 0)
    if value is not None:
        read_note(value, 0)


def test_a_note_says_where_reading_began() -> None:
    assert read_note(note_value(12, AT_MS), 3) == Note(position=3, first=12)
    assert read_note(b'{"first": Infinity}', 3) is None
    assert source_key(Partition("orders", 2)) == "note/source/orders/2"
    assert queue_key("p.acme.billing.queue") == "note/queue/p.acme.billing.queue"
    assert is_note(source_key(Partition("orders", 2)))
    assert not is_note(order_key("acme", "billing", OrderKind.PAUSE))
