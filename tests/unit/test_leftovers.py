"""What the dead letters of a dropped endpoint tell of requests."""

from __future__ import annotations

import pytest

from delivery.model import Answer, NoAnswer, NoAnswerKind, Outcome
from delivery.policy.dispatch import Mark
from delivery.policy.leftovers import LastOwner, Leftover, facts_left, leftover
from delivery.policy.standing import Progress, Standing

TRIED = Progress(offset=8, event_id="msg_8", attempts=3, requests=3, last=Answer(status=503), dispatched_ms=1_000)
LET_GO = LastOwner(standing=Standing(streak=2, in_hand=TRIED), clean=True, settled_to=8, committed_to=8)
DIED = LastOwner(standing=LET_GO.standing)


def left(owner: LastOwner, mark: Mark | None = None, *, first: int = 8, committed: int | None = 8) -> Leftover:
    return leftover(first, committed, owner, mark)


def test_the_record_that_was_in_hand_has_its_attempts_and_those_behind_it_were_not_sent() -> None:
    one, other = (facts_left(left(LET_GO), offset, f"msg_{offset}") for offset in (8, 9))
    assert (one.attempts, one.last, one.outcome) == (3, Answer(status=503), Outcome.CONFIRMED)
    assert (other.attempts, other.last, other.outcome) == (0, None, Outcome.NOT_STARTED)


def test_what_the_last_owner_had_settled_gets_no_second_letter() -> None:
    owner = LastOwner(clean=True, settled_to=12, committed_to=8)
    assert left(owner).start == 12
    assert left(owner, first=20).start == 20, "what is older was deleted"


def test_an_owner_that_did_not_let_go_leaves_doubt_for_as_far_as_it_can_have_come() -> None:
    outcomes = [facts_left(left(DIED), offset, f"msg_{offset}").outcome for offset in (8, 9, 263, 264)]
    assert outcomes == [Outcome.CONFIRMED, Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.NOT_STARTED]


@pytest.mark.parametrize("committed", [None, 8], ids=["never committed", "committed"])
def test_when_nothing_is_known_of_the_owner_the_outcome_is_unknown(committed: int | None) -> None:
    facts = facts_left(left(LastOwner(), committed=committed), 8, "msg_8")
    assert (facts.attempts, facts.outcome) == (0, Outcome.UNKNOWN)


def test_a_request_that_still_runs_has_no_known_outcome() -> None:
    owner = LastOwner(clean=True, settled_to=8, committed_to=8, under_way=8)
    assert facts_left(left(owner), 8, "msg_8").outcome is Outcome.UNKNOWN
    assert facts_left(left(owner), 9, "msg_9").outcome is Outcome.NOT_STARTED


@pytest.mark.parametrize("owner", [LET_GO, LastOwner()], ids=["let go", "unknown"])
def test_a_marked_request_of_which_nothing_was_heard_counts_as_sent(owner: LastOwner) -> None:
    facts = facts_left(left(owner, Mark(offset=8, at_ms=2_000, event_id="msg_8")), 8, "msg_8")
    assert facts.outcome is Outcome.UNKNOWN
    assert isinstance(facts.last, NoAnswer)
    assert facts.last.kind is NoAnswerKind.DROPPED
    assert facts.last_attempt_wall_s == 2.0
    assert facts.attempts == (4 if owner is LET_GO else 1)


@pytest.mark.parametrize(
    "mark",
    [Mark(offset=8, at_ms=1_000, event_id="msg_8"), Mark(offset=7, at_ms=2_000, event_id="msg_7")],
    ids=["answered", "of another record"],
)
def test_a_mark_that_was_answered_says_nothing(mark: Mark) -> None:
    assert facts_left(left(LET_GO, mark), 8, "msg_8") == facts_left(left(LET_GO), 8, "msg_8")
