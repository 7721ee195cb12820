"""Which letters are meant, which were sent again, and what a replay chooses of them."""

from __future__ import annotations

import pytest

from delivery.model import DeadLetterReason, Fault, Outcome
from delivery.policy.letter_book import LetterBook, LetterFilter, Which, choose, is_status, parse_when
from delivery.policy.letters import Kind
from tests.unit.test_letters import Stored

NOW = 1_700_000_000_000
KNOWN = frozenset({"billing", "crm"})
KIND = Kind(
    tenant="acme",
    endpoint="billing",
    reason=DeadLetterReason.REJECTED,
    fault=Fault.ENDPOINT,
    outcome=Outcome.CONFIRMED,
    status=404,
)
RIGHT = {
    "endpoint": "billing", "reason": "rejected", "fault": "endpoint", "outcome": "confirmed", "status": "404",
    "source": "orders/0/1", "event-time": "2023-11-14T22:13:20.000Z",
}  # fmt: skip


def letter(number: int, offset: int | None = None, **said: str | None) -> Stored:
    """What differs from `RIGHT` is given with `_` for `-`; None leaves a header out."""
    values = RIGHT | {name.replace("_", "-"): text for name, text in said.items()} | {"id": f"dl_{number}"}
    headers = tuple((f"dead-letter-{name}", text.encode()) for name, text in values.items() if text is not None)
    return Stored(offset=number if offset is None else offset, timestamp=NOW + number, headers=headers)


def receipt(number: int) -> Stored:
    return Stored(offset=1_000 + number, headers=(("dead-letter-replayed", b"dl_%d" % number),))


def book(*found: Stored, wanted: LetterFilter | None = None) -> LetterBook:
    made = LetterBook(wanted or LetterFilter(), "acme")
    for one in found:
        made.add(one)
    return made


def ids(made: LetterBook, which: Which = Which.PENDING) -> list[str]:
    return [entry.id for entry in made.entries(which)]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (LetterFilter(), True),
        (LetterFilter(endpoints=frozenset({"billing", "crm"})), True),
        (LetterFilter(endpoints=frozenset({"crm"})), False),
        (LetterFilter(reasons=frozenset({DeadLetterReason.REJECTED})), True),
        (LetterFilter(reasons=frozenset({DeadLetterReason.EXPIRED})), False),
        (LetterFilter(faults=frozenset({Fault.ENDPOINT})), True),
        (LetterFilter(faults=frozenset({Fault.PIPELINE})), False),
        (LetterFilter(statuses=frozenset({"404"})), True),
        (LetterFilter(statuses=frozenset({"500", "4xx"})), True),
        (LetterFilter(statuses=frozenset({"40"})), False),
        (LetterFilter(statuses=frozenset({"5xx"})), False),
        (LetterFilter(outcomes=frozenset({Outcome.CONFIRMED})), True),
        (LetterFilter(outcomes=frozenset({Outcome.UNKNOWN})), False),
        (LetterFilter(ids=frozenset({"dl_1"})), True),
        (LetterFilter(ids=frozenset({"dl_2"})), False),
        (LetterFilter(since_ms=NOW), True),
        (LetterFilter(since_ms=NOW + 1), False),
        (LetterFilter(until_ms=NOW), False),
        (LetterFilter(until_ms=NOW + 1), True),
        (LetterFilter(statuses=frozenset({"404"}), endpoints=frozenset({"crm"})), False),
    ],
)
def test_each_filter_has_to_fit(wanted: LetterFilter, fits: bool) -> None:
    assert (wanted.fits_kind(KIND) and wanted.fits_letter("dl_1", NOW)) is fits


def test_what_a_letter_does_not_say_fits_no_filter_for_it() -> None:
    bare = Kind(tenant="acme", endpoint=None, reason=None, fault=None, outcome=None, status=None)
    assert LetterFilter().fits_kind(bare)
    for wanted in (
        LetterFilter(endpoints=frozenset({"billing"})),
        LetterFilter(statuses=frozenset({"4xx"})),
        LetterFilter(outcomes=frozenset({Outcome.CONFIRMED})),
    ):
        assert not wanted.fits_kind(bare)


def test_a_book_holds_the_letters_that_fit() -> None:
    wanted = LetterFilter(statuses=frozenset({"5xx"}), since_ms=NOW + 2, until_ms=NOW + 4)
    assert ids(book(*(letter(n, status="503") for n in range(6)), letter(9), wanted=wanted)) == ["dl_2", "dl_3"]
    assert [entry.kind for entry in book(letter(1)).entries(Which.ALL)] == [KIND]


def test_a_receipt_makes_a_letter_replayed_wherever_it_stands() -> None:
    made = book(receipt(2), letter(1), letter(2), letter(3), receipt(1))
    assert ids(made) == ["dl_3"]
    assert ids(made, Which.REPLAYED) == ["dl_1", "dl_2"]
    assert ids(made, Which.ALL) == ["dl_1", "dl_2", "dl_3"]


def test_a_letter_that_was_written_twice_is_one_and_the_first_counts() -> None:
    twice = letter(1, offset=9, status="503")
    made = book(letter(1), letter(2), twice)
    assert [(entry.id, entry.offset) for entry in made.entries(Which.ALL)] == [("dl_1", 1), ("dl_2", 2)]
    assert ids(book(letter(1), receipt(1), twice)) == [], "also behind its receipt"
    only_503 = LetterFilter(statuses=frozenset({"503"}))
    assert ids(book(letter(1), twice, wanted=only_503)) == [], "the second does not count as another letter"


def test_what_is_neither_letter_nor_receipt_is_counted() -> None:
    assert book(Stored(), letter(1), Stored()).unreadable == 2


def test_a_replay_takes_the_oldest_first_and_no_more_than_its_limit() -> None:
    made = book(letter(1), letter(2), letter(3), receipt(1))
    chosen = choose(made, Which.PENDING, known=KNOWN, to=None, unknown=False, limit=1)
    assert chosen.chosen == {2: "dl_2"}
    assert chosen.endpoints == {"billing": 1}


def test_letters_of_unknown_outcome_are_chosen_only_when_that_is_said() -> None:
    made = book(letter(1, outcome="unknown"), letter(2), letter(3, outcome=None))
    left_out = choose(made, Which.PENDING, known=KNOWN, to=None, unknown=False, limit=None)
    assert (list(left_out.chosen.values()), left_out.unknown) == (["dl_2", "dl_3"], 1)
    said = choose(made, Which.PENDING, known=KNOWN, to=None, unknown=True, limit=None)
    assert (list(said.chosen.values()), said.unknown) == (["dl_1", "dl_2", "dl_3"], 0)


def test_unconfirmed_letters_are_chosen_only_when_that_is_said() -> None:
    made = book(
        letter(1, reason="unconfirmed", outcome="unknown"),
        letter(2, reason="unconfirmed", outcome="confirmed"),
        letter(3, reason="exhausted", outcome="unknown"),
        letter(4),
    )

    def chosen(*, unknown: bool, unconfirmed: bool) -> tuple[list[str], int, int]:
        found = choose(made, Which.PENDING, known=KNOWN, to=None, unknown=unknown, unconfirmed=unconfirmed, limit=None)
        return list(found.chosen.values()), found.unknown, found.unconfirmed

    assert chosen(unknown=False, unconfirmed=False) == (["dl_4"], 1, 2)
    assert chosen(unknown=True, unconfirmed=False) == (["dl_3", "dl_4"], 0, 2)
    assert chosen(unknown=False, unconfirmed=True) == (["dl_1", "dl_2", "dl_4"], 1, 0)
    assert chosen(unknown=True, unconfirmed=True) == (["dl_1", "dl_2", "dl_3", "dl_4"], 0, 0)


def test_letters_that_do_not_hold_the_event_are_counted_and_not_chosen() -> None:
    made = book(letter(1, source=None), letter(2, left_out="value"), letter(3, event_time=None), letter(4))
    chosen = choose(made, Which.PENDING, known=KNOWN, to=None, unknown=False, limit=None)
    assert (chosen.chosen, chosen.broken) == ({4: "dl_4"}, 3)


def test_letters_of_an_endpoint_that_is_not_there_are_named_unless_they_go_elsewhere() -> None:
    made = book(letter(1, endpoint="old"), letter(2), letter(3, endpoint=None))
    refused = choose(made, Which.PENDING, known=KNOWN, to=None, unknown=False, limit=None)
    assert refused.removed == {"old": 1, "": 1}
    elsewhere = choose(made, Which.PENDING, known=KNOWN, to="crm", unknown=False, limit=None)
    assert (elsewhere.removed, elsewhere.endpoints) == ({}, {"crm": 3})


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", NOW - 90_000),
        ("30m", NOW - 1_800_000),
        ("2h", NOW - 7_200_000),
        ("3d", NOW - 259_200_000),
        ("1w", NOW - 604_800_000),
        ("0s", NOW),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20.250Z", NOW + 250),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("2023-11-14T22:13:20", None),
        ("2023-11-14", None),
        ("2 h", None),
        ("h", None),
        ("-2h", None),
        ("1y", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_times_are_rfc_3339_with_a_zone_or_how_long_ago(text: str, ms: int | None) -> None:
    assert parse_when(text, NOW) == ms


@pytest.mark.parametrize(
    ("text", "right"), [("404", True), ("5xx", True), ("40", False), ("4x", False), ("xxx", False)]
)
def test_a_status_is_one_or_a_class(text: str, right: bool) -> None:
    assert is_status(text) is right
