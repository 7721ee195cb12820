"""What an owner makes of what the former one left behind."""

from __future__ import annotations

import dataclasses

import pytest

from delivery.model import HaltLimits, HaltReason
from delivery.policy.handing_over import inherited, may_have_been_sent, reserved, start_offset, suspected, unknown
from delivery.policy.standing import FRESH, Fate, Progress, Standing
from tests.fakes import endpoint

MIDDLE = Standing(streak=2, failing=1, in_hand=Progress(offset=8, event_id="msg_8", attempts=3, next_at=70.0))


@pytest.mark.parametrize(
    ("committed", "settled_to", "committed_to", "start"),
    [
        (5, None, None, 5),
        (5, 9, 5, 9),
        (7, 9, 5, 9),
        (9, 9, 9, 9),
        (3, 9, 5, 3),
        (12, 9, 5, 12),
        (0, -1, -1, 0),
    ],
    ids=[
        "nobody said",
        "the last commit was lost",
        "a commit arrived unseen",
        "all was committed",
        "an operator set the group back",
        "somebody went on without the ledger",
        "nothing was settled",
    ],
)
def test_a_former_owners_word_counts_only_while_kafka_stands_where_it_knew_it_to_be(
    committed: int, settled_to: int | None, committed_to: int | None, start: int
) -> None:
    assert start_offset(committed, settled_to, committed_to) == start


def test_everything_is_inherited_from_an_owner_that_let_go_where_we_begin() -> None:
    assert inherited(MIDDLE, start=8, clean=True, settled_to=8) == MIDDLE


def test_everything_is_inherited_from_an_owner_that_died_with_the_record_in_hand() -> None:
    assert inherited(MIDDLE, start=8, clean=False, settled_to=2) == MIDDLE


def test_attempts_for_a_record_that_is_done_are_not_inherited_but_the_counts_are() -> None:
    assert inherited(MIDDLE, start=9, clean=False, settled_to=2) == dataclasses.replace(MIDDLE, in_hand=None)


def test_of_a_standing_that_others_have_outdated_only_waits_are_inherited() -> None:
    halted = dataclasses.replace(MIDDLE, halt=HaltReason.HOLD, due_at=90.0, not_before=80.0)
    expected = Standing(halt=HaltReason.HOLD, due_at=90.0, not_before=80.0)
    assert inherited(halted, start=20, clean=True, settled_to=8) == expected


def test_what_nobody_knows_waits_ten_seconds_and_never_less_than_it_did() -> None:
    assert unknown(FRESH, 100.0, 0.0).due_at == 110.0
    later = unknown(Standing(streak=1, due_at=300.0), 100.0, 0.0)
    assert (later.due_at, later.halt, later.streak) == (300.0, HaltReason.REDIS, 1)


def test_only_a_record_that_may_still_be_sent_is_suspected() -> None:
    once = suspected(MIDDLE)
    assert once.in_hand is not None
    assert once.in_hand.crashes == 1
    dead = dataclasses.replace(MIDDLE, in_hand=Progress(offset=1, event_id="m", fate=Fate.DEAD))
    assert suspected(dead) == dead
    assert suspected(FRESH) == FRESH


@pytest.mark.parametrize(
    ("standing", "sent"),
    [
        pytest.param(FRESH, True, id="nothing is written down of a first attempt"),
        pytest.param(Standing(in_hand=Progress(offset=1, event_id="m", next_at=100.0)), True, id="due now"),
        pytest.param(Standing(in_hand=Progress(offset=1, event_id="m", next_at=100.1)), False, id="waits for its turn"),
        pytest.param(Standing(not_before=100.1), False, id="the endpoint had asked for a wait"),
        pytest.param(Standing(halt=HaltReason.HOLD, due_at=100.1), False, id="held"),
        pytest.param(Standing(halt=HaltReason.CRASHED, due_at=100.1), False, id="crashed, and counted for it"),
        pytest.param(Standing(halt=HaltReason.HOLD, due_at=99.9), True, id="held until just now"),
        pytest.param(Standing(halt=HaltReason.REJECTIONS, due_at=100.1), True, id="perhaps only reserved"),
        pytest.param(Standing(halt=HaltReason.PAUSED), True, id="perhaps resumed"),
    ],
)
def test_a_record_that_was_waiting_when_its_worker_died_was_not_being_sent(standing: Standing, sent: bool) -> None:
    assert may_have_been_sent(standing, 100.0) is sent


def test_a_healthy_endpoint_has_nothing_reserved() -> None:
    assert reserved(FRESH, endpoint(), 100.0, 0.0, 15.0) is None
    assert reserved(Standing(failing=3), endpoint(), 100.0, 0.0, 15.0) is None


def test_a_request_after_a_rejection_is_reserved_as_one_more() -> None:
    assert reserved(Standing(streak=2), endpoint(), 100.0, 0.0, 15.0) == Standing(streak=3)


def test_the_request_that_could_be_the_last_of_a_streak_is_reserved_as_a_halt_from_the_end_of_its_time() -> None:
    of = endpoint(halt=HaltLimits(after=3, pause_s=10.0))
    standing = reserved(Standing(streak=2), of, 100.0, 0.0, 15.0)
    assert standing is not None
    assert (standing.streak, standing.halt, standing.due_at) == (0, HaltReason.REJECTIONS, 125.0)
