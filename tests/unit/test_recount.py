"""Records of attempts name every end, verdict and halt that there is."""

from __future__ import annotations

from typing import get_args

import pytest

from delivery.model import (
    Answer,
    Decision,
    Delivered,
    Ended,
    HaltReason,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    OurFault,
    Outcome,
    Rejected,
    Reply,
    Retry,
    StatusClass,
    Unsendable,
    Verdict,
)
from delivery.policy import decide, recount
from delivery.policy.classify import classify
from delivery.policy.decide import Attempted
from delivery.policy.deciders import HALTED_BY
from delivery.policy.standing import FRESH
from tests.unit.simulation import BEGIN, WALL_S, delivery, endpoint

VERDICTS: dict[type[Verdict], Reply] = {
    Delivered: Answer(status=204),
    Rejected: Answer(status=404),
    Retry: NoAnswer(kind=NoAnswerKind.DROPPED, outcome=Outcome.UNKNOWN, detail="reset"),
    Unsendable: NotSent(kind=NotSentKind.INVALID_REQUEST, detail="a header has a line break"),
    OurFault: NotSent(kind=NotSentKind.ADDRESS_REFUSED, detail="10.0.0.1"),
}


def told(reply: Reply, *, not_before: float = 0.0) -> Ended:
    """The record of a first attempt that took half a second."""
    to, what = endpoint(), delivery(7)
    standing = decide.take(FRESH, what, to, BEGIN, WALL_S)
    sending = recount.sending(to, what, standing.in_hand, WALL_S)
    attempted = Attempted(
        started_at=BEGIN,
        started_wall_s=WALL_S,
        ended_at=BEGIN + 0.5,
        reply=reply,
        verdict=classify(reply, to, WALL_S),
        unit=0.0,
        spread_unit=0.0,
    )
    after = decide.absorb(standing, to, attempted)
    if not_before:
        after = type(after)(not_before=not_before, in_hand=after.in_hand)
    return recount.ended(sending, to, attempted, after)


@pytest.mark.parametrize("kind", get_args(Verdict))
def test_every_verdict_has_a_name_of_its_own(kind: type[Verdict]) -> None:
    names = {one: told(reply).verdict.value for one, reply in VERDICTS.items()}
    assert names[kind].replace("_", "") == kind.__name__.lower()
    assert len(set(names.values())) == len(names)


def test_every_reason_for_a_halt_goes_back_to_something() -> None:
    assert HALTED_BY.keys() == set(HaltReason)


def test_what_was_asked_for_before_outlasts_a_shorter_wait() -> None:
    ended = told(Answer(status=500), not_before=BEGIN + 60.5)
    assert (ended.decision.wait_s, ended.decision.wait_source) == (60.0, "in_force")


def test_of_an_answer_only_the_status_is_kept_and_of_another_end_what_is_known() -> None:
    ended = told(Answer(status=503, headers=((b"retry-after", b"7"),), excerpt=b"sorry")).ending
    assert (ended.status, ended.status_class, ended.outcome) == (503, StatusClass.UNAVAILABLE, Outcome.CONFIRMED)
    dropped = told(VERDICTS[Retry]).ending
    assert (dropped.status, dropped.failure, dropped.detail) == (None, NoAnswerKind.DROPPED, "reset")
    assert dropped.outcome is Outcome.UNKNOWN


def test_a_record_never_changes() -> None:
    ended = told(Answer(status=204))
    for value, name in (
        (ended, "took_s"),
        (ended.sending, "attempt"),
        (ended.decision, "step"),
        (ended.ending, "status"),
    ):
        with pytest.raises(AttributeError):
            setattr(value, name, None)
    assert isinstance(ended.decision, Decision)
    assert ended.ended_wall_s == WALL_S + 0.5
