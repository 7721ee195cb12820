"""What comes next for one endpoint: tables, and what holds for every sequence of answers."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import (
    Answer,
    DeadLetterReason,
    Delivered,
    HaltLimits,
    HaltReason,
    Jitter,
    NotSentKind,
    OnExhausted,
    OnGone,
    OurFault,
    Rejected,
    Retry,
    RetryLimits,
    StatusClass,
    Unsendable,
    Verdict,
)
from delivery.policy import backoff
from delivery.policy.decide import Attempted, absorb, completed, dead, decide, take
from delivery.policy.halting import halted, started
from delivery.policy.orders import Ordered
from delivery.policy.standing import FRESH, Fate, Progress, Standing
from delivery.policy.steps import Complete, DeadLetter, Halt, Next, Rest, Send, WaitUntil
from tests.unit.simulation import (
    BEGIN,
    DELIVERED,
    REJECTED,
    TIMEOUT,
    UNAVAILABLE,
    WALL_S,
    Life,
    asked_to_wait,
    delivery,
    endpoint,
)

S, P, T = DELIVERED, REJECTED, TIMEOUT
ONCE = RetryLimits(max_attempts=1)


def open_progress(**changes: object) -> Progress:
    return Progress(**{"offset": 0, "event_id": "msg_0", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("progress", "step"),
    [
        pytest.param(None, Next(), id="nothing in hand"),
        pytest.param(open_progress(), Send(timeout_s=15.0), id="not sent yet"),
        pytest.param(open_progress(next_at=100.0), Send(timeout_s=15.0), id="due now"),
        pytest.param(open_progress(next_at=100.5), WaitUntil(at=100.5), id="due later"),
        pytest.param(open_progress(fate=Fate.DELIVERED), Complete(), id="confirmed"),
        pytest.param(open_progress(fate=Fate.LETTERED), Complete(), id="its dead letter is written"),
        pytest.param(
            open_progress(fate=Fate.DEAD, reason=DeadLetterReason.REJECTED),
            DeadLetter(reason=DeadLetterReason.REJECTED),
            id="rejected",
        ),
        pytest.param(
            open_progress(fate=Fate.HELD, last_retry=UNAVAILABLE),
            Halt(reason=HaltReason.HOLD, detail="503"),
            id="held",
        ),
        pytest.param(
            open_progress(fate=Fate.OUR_FAULT, detail="10.0.0.1"),
            Halt(reason=HaltReason.CANNOT_SEND, detail="10.0.0.1"),
            id="our fault",
        ),
    ],
)
def test_the_step_follows_from_what_is_certain_about_the_record_in_hand(
    progress: Progress | None, step: object
) -> None:
    assert decide(Standing(in_hand=progress), endpoint(), 100.0) == step


@pytest.mark.parametrize(
    ("now", "step"),
    [
        pytest.param(100.0, Send(timeout_s=10.0), id="the limit of the attempt ends at the deadline"),
        pytest.param(109.5, Send(timeout_s=0.5), id="just before the deadline"),
        pytest.param(110.0, DeadLetter(reason=DeadLetterReason.EXPIRED), id="at the deadline"),
        pytest.param(111.0, DeadLetter(reason=DeadLetterReason.EXPIRED), id="after the deadline"),
    ],
)
def test_an_attempt_starts_only_before_the_deadline(now: float, step: object) -> None:
    progress = open_progress(attempts=1, requests=1, first_at=50.0)
    assert decide(Standing(in_hand=progress), endpoint(deadline_s=60.0), now) == step


def test_a_wait_that_cannot_fit_before_the_deadline_is_not_begun() -> None:
    progress = open_progress(attempts=1, requests=1, first_at=50.0, next_at=110.0)
    assert decide(Standing(in_hand=progress), endpoint(deadline_s=60.0), 60.0) == DeadLetter(
        reason=DeadLetterReason.EXPIRED
    )
    fitting = open_progress(attempts=1, requests=1, first_at=50.0, next_at=109.9)
    assert decide(Standing(in_hand=fitting), endpoint(deadline_s=60.0), 60.0) == WaitUntil(at=109.9)


def test_a_deadline_counts_from_the_first_dispatch_and_not_before() -> None:
    assert decide(Standing(in_hand=open_progress()), endpoint(deadline_s=64.0), 1e9) == Send(timeout_s=15.0)
    assert decide(Standing(in_hand=open_progress()), endpoint(deadline_s=1.0), 1e9) == Send(timeout_s=1.0)
    waiting = Standing(in_hand=open_progress(), not_before=2e9)
    assert decide(waiting, endpoint(deadline_s=1.0), 1e9) == WaitUntil(at=2e9)


def test_the_maximal_age_counts_from_the_events_time() -> None:
    old = take(FRESH, delivery(0), endpoint(max_age_s=60.0), BEGIN, WALL_S + 59.0)
    assert decide(old, endpoint(max_age_s=60.0), BEGIN) == Send(timeout_s=1.0)
    older = take(FRESH, delivery(0), endpoint(max_age_s=60.0), BEGIN, WALL_S + 60.0)
    assert decide(older, endpoint(max_age_s=60.0), BEGIN) == DeadLetter(reason=DeadLetterReason.EXPIRED)


def test_the_maximal_age_of_a_replayed_event_counts_from_its_replay() -> None:
    replayed = delivery(0, queued_ms=int((WALL_S + 3600) * 1000), replay_of="dl_1", replays=1)
    standing = take(FRESH, replayed, endpoint(max_age_s=60.0), BEGIN, WALL_S + 3601)
    assert decide(standing, endpoint(max_age_s=60.0), BEGIN) == Send(timeout_s=15.0)


def test_attempts_are_kept_for_the_same_record_and_for_no_other() -> None:
    progress = open_progress(attempts=3, requests=3)
    standing = Standing(streak=2, in_hand=progress)
    assert take(standing, delivery(0), endpoint(), BEGIN, WALL_S) is standing
    other = take(standing, delivery(1), endpoint(), BEGIN, WALL_S)
    assert other.in_hand == Progress(offset=1, event_id="msg_1")
    assert other.streak == 2


def test_an_attempt_without_a_record_is_a_bug() -> None:
    attempted = Attempted(
        started_at=0.0, started_wall_s=WALL_S, ended_at=0.0, reply=Answer(status=204), verdict=S, unit=0, spread_unit=0
    )
    with pytest.raises(ValueError, match="record in hand"):
        absorb(FRESH, endpoint(), attempted)


@pytest.mark.parametrize(
    ("verdicts", "halts", "streak"),
    [
        pytest.param([P] * 4, 0, 4, id="HL-04 PPPP"),
        pytest.param([*[P] * 4, S, *[P] * 4], 0, 4, id="HL-04 PPPPSPPPP: a delivery clears the count"),
        pytest.param([*[P] * 4, T, P], 1, 0, id="HL-04 PPPPTP: an exhausted record neither adds nor clears"),
        pytest.param([*[P] * 4, T], 0, 4, id="HL-04 PPPPT"),
        pytest.param([P] * 5, 1, 0, id="PPPPP"),
        pytest.param([*[P] * 5, *[P] * 4], 1, 4, id="HL-01 after a halt the count is at zero"),
        pytest.param([P] * 10, 2, 0, id="HL-01 and five more halt again"),
    ],
)
def test_five_rejections_in_a_row_halt(verdicts: list[Verdict], halts: int, streak: int) -> None:
    life = Life(endpoint(retry=ONCE)).play(*verdicts)
    assert life.reasons == [HaltReason.REJECTIONS] * halts
    assert life.standing.streak == streak


@pytest.mark.parametrize(
    ("verdicts", "reasons"),
    [
        pytest.param([T] * 4, [], id="four failed records"),
        pytest.param([T] * 5, [HaltReason.FAILING], id="five"),
        pytest.param([*[T] * 4, S, *[T] * 4], [], id="a delivery clears the count"),
        pytest.param([T, T, P, T, P, T, P, T], [HaltReason.FAILING], id="rejections neither add to it nor clear it"),
        pytest.param([P, P, T, P, T, P, T, P], [HaltReason.REJECTIONS], id="nor the other way round"),
        pytest.param([*[T] * 5, T], [HaltReason.FAILING] * 2, id="each later run ends at its first such record"),
        pytest.param([*[T] * 5, S, T, T], [HaltReason.FAILING], id="until something is delivered"),
    ],
)
def test_rejected_and_failed_records_are_counted_apart(verdicts: list[Verdict], reasons: list[HaltReason]) -> None:
    assert Life(endpoint(retry=ONCE)).play(*verdicts).reasons == reasons


def test_pauses_of_a_failing_endpoint_double_up_to_five_minutes() -> None:
    life = Life(endpoint(retry=ONCE)).play(*[T] * 13)
    assert life.pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300]


def test_a_delivery_brings_the_first_pause_back() -> None:
    life = Life(endpoint(retry=ONCE)).play(*[T] * 7, S, *[T] * 6)
    assert life.pauses == [10, 20, 40, 10, 20]


def test_a_failing_halt_names_the_last_class() -> None:
    standing = Standing(failing=5, failing_class=StatusClass.UNAVAILABLE)
    assert decide(standing, endpoint(), 0.0) == Halt(reason=HaltReason.FAILING, detail="503")


@pytest.mark.parametrize(
    ("gone", "on_gone", "step"),
    [
        (5, OnGone.DISABLE, Halt(reason=HaltReason.GONE, detail="410")),
        (5, OnGone.HALT, Halt(reason=HaltReason.REJECTIONS, detail="410")),
        (4, OnGone.DISABLE, Halt(reason=HaltReason.REJECTIONS)),
    ],
)
def test_a_streak_that_is_all_410_disables_and_one_stray_410_does_not(gone: int, on_gone: OnGone, step: Halt) -> None:
    assert decide(Standing(streak=5, gone=gone), endpoint(on_gone=on_gone), 0.0) == step


def test_a_disabled_endpoint_waits_for_an_order_and_gets_no_request_before_its_pause_is_over() -> None:
    life = Life(endpoint()).play(*[Rejected(status=410)] * 5, until_halt=True)
    assert life.reasons == [HaltReason.GONE]
    standing = halted(Standing(streak=5, gone=5), endpoint(), Halt(reason=HaltReason.GONE), 100.0, 0.0)
    assert (standing.due_at, standing.not_before, standing.streak) == (None, 110.0, 0)


def test_a_pause_is_no_answer_of_the_endpoint_and_keeps_its_streak() -> None:
    before = Standing(streak=3, gone=2, not_before=105.0)
    standing = halted(before, endpoint(), Halt(reason=HaltReason.PAUSED), 100.0, 0.0)
    assert standing.due_at is None
    assert (started(standing).streak, started(standing).gone, started(standing).not_before) == (3, 2, 105.0)


CANCEL = Ordered(cut=DeadLetterReason.CANCELLED)
PAUSE = Ordered(bar=HaltReason.PAUSED)
HALTED = Standing(halt=HaltReason.REJECTIONS, due_at=200.0)
HALTED_IN_HAND = Standing(halt=HaltReason.REJECTIONS, due_at=200.0, in_hand=open_progress())
CANCELLED = DeadLetter(reason=DeadLetterReason.CANCELLED)


@pytest.mark.parametrize(
    ("standing", "said", "step"),
    [
        pytest.param(Standing(), PAUSE, Halt(reason=HaltReason.PAUSED), id="paused"),
        pytest.param(Standing(in_hand=open_progress()), PAUSE, Halt(reason=HaltReason.PAUSED), id="paused, not sent"),
        pytest.param(
            Standing(in_hand=open_progress(next_at=150.0)), PAUSE, Halt(reason=HaltReason.PAUSED), id="paused in a wait"
        ),
        pytest.param(
            Standing(in_hand=open_progress(fate=Fate.DELIVERED)), PAUSE, Complete(), id="what is delivered is delivered"
        ),
        pytest.param(
            Standing(in_hand=open_progress(fate=Fate.DELIVERED)), CANCEL, Complete(), id="also when it is cancelled"
        ),
        pytest.param(
            Standing(in_hand=open_progress(fate=Fate.DEAD, reason=DeadLetterReason.REJECTED)),
            CANCEL,
            DeadLetter(reason=DeadLetterReason.REJECTED),
            id="a rejection stays one",
        ),
        *(
            pytest.param(
                Standing(in_hand=open_progress(fate=fate)),
                CANCEL,
                DeadLetter(reason=DeadLetterReason.CANCELLED),
                id=fate,
            )
            for fate in (Fate.OPEN, Fate.HELD, Fate.OUR_FAULT)
        ),
        pytest.param(
            Standing(in_hand=open_progress()),
            Ordered(bar=HaltReason.PAUSED, cut=DeadLetterReason.DRAINED, more=True),
            DeadLetter(reason=DeadLetterReason.DRAINED),
            id="drained while paused",
        ),
        pytest.param(Standing(), Ordered(bar=HaltReason.PAUSED, more=True), Next(), id="paused, more to drain"),
        pytest.param(HALTED, Ordered(more=True), Next(), id="halted, more to drain"),
        pytest.param(HALTED, Ordered(), Rest(), id="halted, nothing to do"),
        pytest.param(HALTED_IN_HAND, Ordered(more=True), Rest(), id="halted, not meant"),
        pytest.param(HALTED, PAUSE, Rest(), id="halted, and paused since"),
        pytest.param(Standing(), Ordered(more=True), Next(), id="more to drain"),
    ],
)
def test_orders_are_done_first_and_change_no_outcome(standing: Standing, said: Ordered, step: object) -> None:
    assert decide(standing, endpoint(), 100.0, said) == step


@given(
    st.sampled_from([None, HaltReason.PAUSED, HaltReason.GONE]),
    st.booleans(),
    st.sampled_from(Fate),
    st.sampled_from([None, HaltReason.FAILING, HaltReason.PAUSED]),
)
def test_nothing_is_sent_while_nothing_may_be(
    bar: HaltReason | None, more: bool, fate: Fate, halt: HaltReason | None
) -> None:
    for progress in (None, open_progress(fate=fate)):
        step = decide(Standing(in_hand=progress, halt=halt), endpoint(), 100.0, Ordered(bar=bar, more=more))
        if bar is not None or halt is not None:
            assert not isinstance(step, Send | WaitUntil)


@pytest.mark.parametrize("fate", [Fate.OPEN, Fate.HELD, Fate.OUR_FAULT])
def test_a_cancelled_record_is_dead_and_counts_for_nothing(fate: Fate) -> None:
    before = Standing(streak=3, failing=2, in_hand=open_progress(fate=fate, attempts=2, requests=2))
    after = dead(before, DeadLetterReason.CANCELLED)
    assert (after.streak, after.failing) == (3, 2)
    assert after.in_hand is not None
    assert (after.in_hand.fate, after.in_hand.reason) == (Fate.DEAD, DeadLetterReason.CANCELLED)


def test_pauses_of_rejections_are_constant_unless_told_to_grow() -> None:
    assert Life(endpoint()).play(*[P] * 25).pauses == [10.0] * 5
    growing = endpoint(halt=HaltLimits(growth=3.0))
    assert Life(growing).play(*[P] * 25).pauses == [10, 30, 90, 270, 300]
    assert Life(growing).play(*[P] * 10, S, *[P] * 5).pauses == [10, 30, 10]


def test_a_held_record_starts_again_at_attempt_one_and_is_never_dropped_for_it() -> None:
    held = endpoint(on_exhausted=OnExhausted.HOLD, retry=RetryLimits(max_attempts=3, jitter=Jitter.NONE))
    life = Life(held).play(*[T] * 9)
    assert life.reasons == [HaltReason.HOLD] * 3
    assert life.pauses == [10, 20, 40]
    assert {offset for offset, _ in life.sends} == {0}
    assert life.dead == []
    progress = life.standing.in_hand
    assert progress is not None
    assert (progress.attempts, progress.requests) == (0, 9)
    # Each run of attempts has the waits of a first one.
    times = [at for _, at in life.sends]
    assert [times[1] - times[0], times[4] - times[3]] == pytest.approx([0.2, 0.2])


def test_by_default_only_an_answer_about_timing_holds_a_record() -> None:
    twice = RetryLimits(max_attempts=2)
    assert Life(endpoint(retry=twice)).play(T, asked_to_wait(1.0)).reasons == [HaltReason.HOLD]
    assert Life(endpoint(retry=twice)).play(asked_to_wait(1.0), T).dead == [(0, DeadLetterReason.EXHAUSTED)]


def test_after_a_day_of_holding_records_end_as_exhausted() -> None:
    held = endpoint(on_exhausted=OnExhausted.HOLD, retry=ONCE, hold_max_s=100.0)
    life = Life(held).play(*[T] * 6)
    # Held at 0, 10, 30 and 70 s; at 150 s the time is over.
    assert life.reasons[:4] == [HaltReason.HOLD] * 4
    assert life.dead[0] == (0, DeadLetterReason.EXHAUSTED)


def test_a_deadline_ends_a_held_record_as_expired() -> None:
    held = endpoint(on_exhausted=OnExhausted.HOLD, retry=ONCE, deadline_s=25.0)
    assert Life(held).play(*[T] * 3).dead[0] == (0, DeadLetterReason.EXPIRED)


def test_our_own_fault_costs_nothing_but_the_pause() -> None:
    fault = OurFault(kind=NotSentKind.ADDRESS_REFUSED, detail="10.0.0.1")
    life = Life(endpoint()).play(P, T, fault, fault, fault)
    assert life.reasons == [HaltReason.CANNOT_SEND] * 3
    assert life.pauses == [10.0] * 3
    progress = life.standing.in_hand
    assert progress is not None
    assert (progress.attempts, progress.requests) == (1, 1)
    assert life.dead == [(0, DeadLetterReason.REJECTED)]


def test_an_event_of_which_no_request_can_be_made_is_a_dead_letter_and_counts_nowhere() -> None:
    life = Life(endpoint(retry=ONCE)).play(*[Unsendable(detail="too many headers")] * 20)
    assert life.dead == [(n, DeadLetterReason.UNSENDABLE) for n in range(20)]
    assert life.halts == []


def test_a_retry_after_holds_for_the_next_record_too_and_over_a_delivery() -> None:
    throttled_once = endpoint(retry=ONCE, on_exhausted=OnExhausted.DEAD_LETTER)
    life = Life(throttled_once).play(asked_to_wait(120.0), S, S)
    times = [at for _, at in life.sends]
    assert times[1] - times[0] >= 120.0
    assert times[2] == times[1]


def test_a_wait_that_is_over_is_not_remembered_after_a_delivery() -> None:
    delivered = Attempted(
        started_at=99.5,
        started_wall_s=99.5,
        ended_at=100.0,
        reply=Answer(status=204),
        verdict=Delivered(),
        unit=0.0,
        spread_unit=0.0,
    )
    over, in_force = (
        absorb(Standing(in_hand=open_progress(), not_before=at), endpoint(), delivered) for at in (99.0, 101.0)
    )
    assert completed(over) == FRESH
    assert completed(in_force).not_before == 101.0


def test_a_halt_is_never_shorter_than_what_the_endpoint_asked_for() -> None:
    life = Life(endpoint(retry=ONCE)).play(asked_to_wait(120.0), S)
    assert life.reasons == [HaltReason.HOLD]
    assert life.pauses[0] >= 120.0


def test_an_expiry_while_waiting_counts_as_failing_only_after_a_request() -> None:
    never_sent = dead(Standing(in_hand=open_progress(expires_at=1.0)), DeadLetterReason.EXPIRED)
    assert (never_sent.failing, never_sent.in_hand and never_sent.in_hand.reason) == (0, DeadLetterReason.EXPIRED)
    sent = dead(Standing(in_hand=open_progress(requests=1, last_retry=TIMEOUT)), DeadLetterReason.EXPIRED)
    assert (sent.failing, sent.failing_class) == (1, StatusClass.TIMEOUT)
    rejected = Standing(in_hand=open_progress(fate=Fate.DEAD, reason=DeadLetterReason.REJECTED))
    assert dead(rejected, DeadLetterReason.EXPIRED) is rejected


def test_a_halt_is_told_until_the_loop_starts_again() -> None:
    halt = Halt(reason=HaltReason.REJECTIONS, detail="410")
    ended = halted(Standing(streak=5, gone=5, failing=2), endpoint(), halt, 100.0, WALL_S)
    assert (ended.halt, ended.halt_detail, ended.halted_wall_s) == (HaltReason.REJECTIONS, "410", WALL_S)
    assert (ended.streak, ended.gone, ended.failing, ended.due_at) == (0, 0, 2, 110.0)
    assert started(ended) == Standing(failing=2, rejection_pauses=1)
    assert started(FRESH) is FRESH


def test_completing_keeps_everything_but_the_record() -> None:
    standing = Standing(streak=3, failing=2, in_hand=open_progress())
    assert completed(standing) == Standing(streak=3, failing=2)


def retries() -> st.SearchStrategy[Verdict]:
    hints = st.one_of(st.none(), st.floats(0.01, 3600.0))
    return st.builds(
        Retry,
        status_class=st.sampled_from([StatusClass.TIMEOUT, StatusClass.TOO_MANY, StatusClass.UNAVAILABLE]),
        hint_s=hints,
        throttled=st.booleans(),
    )


def any_verdict() -> st.SearchStrategy[Verdict]:
    faults = st.builds(OurFault, kind=st.sampled_from(NotSentKind), detail=st.just("ours"))
    rejections = st.builds(Rejected, status=st.sampled_from([400, 404, 410, 422]))
    return st.one_of(st.just(DELIVERED), rejections, retries(), faults, st.just(Unsendable(detail="x")))


def any_endpoint() -> st.SearchStrategy[object]:
    return st.builds(
        endpoint,
        on_exhausted=st.sampled_from(OnExhausted),
        hold_max_s=st.floats(1.0, 1000.0),
        deadline_s=st.one_of(st.none(), st.floats(0.1, 500.0)),
        max_age_s=st.one_of(st.none(), st.floats(0.1, 5000.0)),
        retry=st.builds(
            RetryLimits,
            max_attempts=st.integers(1, 6),
            schedule_s=st.one_of(st.none(), st.lists(st.floats(0.0, 100.0), max_size=4).map(tuple)),
            jitter=st.sampled_from(Jitter),
        ),
        halt=st.builds(HaltLimits, growth=st.floats(1.0, 3.0), after=st.integers(1, 5)),
    )


def lived(of: object, verdicts: list[Verdict], seed: int) -> Life:
    life = Life(of, units=random.Random(seed).random, takes_s=0.01)  # type: ignore[arg-type]
    return life.play(*verdicts)


@given(any_endpoint(), st.lists(any_verdict(), max_size=60), st.integers())
def test_records_are_settled_in_order_and_each_exactly_once(of: object, verdicts: list[Verdict], seed: int) -> None:
    life = lived(of, verdicts, seed)
    settled = sorted([*life.delivered, *(offset for offset, _ in life.dead)])
    assert settled == list(range(life.offset))
    sent = [offset for offset, _ in life.sends]
    assert sent == sorted(sent)


@given(any_endpoint(), st.lists(any_verdict(), max_size=60), st.integers())
def test_a_run_of_attempts_never_exceeds_its_number(of: object, verdicts: list[Verdict], seed: int) -> None:
    life = lived(of, verdicts, seed)
    most = backoff.attempts(life.endpoint.retry)
    holds = [at for reason, at, _ in life.halts if reason is HaltReason.HOLD]
    for offset, sends in itertools.groupby(life.sends, key=lambda send: send[0]):
        times = [at for _, at in sends]
        runs = 1 + sum(times[0] <= at < times[-1] for at in holds)
        assert len(times) <= most * runs, f"record {offset}"


@given(st.lists(retries(), min_size=1, max_size=30), st.integers())
def test_no_request_comes_sooner_than_the_endpoint_asked(verdicts: list[Verdict], seed: int) -> None:
    life = lived(endpoint(on_exhausted=OnExhausted.DEAD_LETTER), verdicts, seed)
    times = [at for _, at in life.sends]
    for index, verdict in enumerate(verdicts):
        assert isinstance(verdict, Retry)
        if verdict.hint_s is not None:
            for later in times[index + 1 :]:
                assert later - times[index] >= verdict.hint_s


@given(any_endpoint(), st.lists(any_verdict(), max_size=60), st.integers())
def test_no_attempt_starts_at_or_after_an_end_or_lasts_past_it(of: object, verdicts: list[Verdict], seed: int) -> None:
    life = lived(of, verdicts, seed)
    assert all(0 < timeout_s <= life.endpoint.timeout_s for timeout_s in life.timeouts)
    attempts = zip(life.sends, life.timeouts, strict=True)
    for offset, group in itertools.groupby(attempts, key=lambda attempt: attempt[0][0]):
        times = [(at, timeout_s) for (_, at), timeout_s in group]
        end = _end(life, offset, times[0][0])
        assert all(at < end for at, _ in times), f"record {offset}"
        # Differences of floating-point moments.
        assert all(at + timeout_s <= end + 1e-6 for at, timeout_s in times), f"record {offset}"


@given(any_endpoint(), st.lists(any_verdict(), max_size=60), st.integers())
def test_no_wait_is_begun_that_would_last_to_an_end(of: object, verdicts: list[Verdict], seed: int) -> None:
    life = lived(of, verdicts, seed)
    first_at: dict[int, float] = {}
    for offset, at in life.sends:
        first_at.setdefault(offset, at)
    for offset, until_at in life.waits:
        assert until_at < _end(life, offset, first_at.get(offset, math.inf)), f"record {offset}"


def _end(life: Life, offset: int, first_at: float) -> float:
    """The earlier of a record's deadline and of its maximal age; each event here is made when it is taken."""
    deadline_s, max_age_s = life.endpoint.deadline_s, life.endpoint.max_age_s
    return min(
        math.inf if deadline_s is None else first_at + deadline_s,
        # Of Unix times a floating-point number keeps less than a microsecond.
        math.inf if max_age_s is None else life.taken_at[offset] + max_age_s + 1e-6,
    )


@given(st.lists(st.sampled_from([P, Rejected(status=400)]), min_size=1, max_size=100), st.integers())
def test_an_endpoint_that_rejects_everything_sees_five_requests_in_ten_seconds(
    verdicts: list[Verdict], seed: int
) -> None:
    times = [at for _, at in lived(endpoint(), verdicts, seed).sends]
    assert max(sum(at <= other < at + 10.0 for other in times) for at in times) <= 5
    assert max(sum(at <= other < at + 60.0 for other in times) for at in times) <= 30


@given(st.integers(6, 120), st.integers())
def test_an_endpoint_that_never_answers_sees_less_than_one_request_a_second(count: int, seed: int) -> None:
    times = [at for _, at in lived(endpoint(), [T] * count, seed).sends]
    whole = times[: len(times) - len(times) % 6]
    assert (len(whole) - 1) / (whole[-1] - whole[0]) <= 0.97
    assert max(sum(at <= other < at + 10.0 for other in times) for at in times) <= 12


@given(any_endpoint(), st.lists(any_verdict(), max_size=60), st.integers())
def test_every_halt_lasts_at_least_its_pause(of: object, verdicts: list[Verdict], seed: int) -> None:
    life = lived(of, verdicts, seed)
    # Differences of floating-point moments.
    assert all(pause_s >= life.endpoint.halt.pause_s - 1e-6 for pause_s in life.pauses)


def test_rc06_a_record_that_keeps_crashing_its_loop_ends_as_unsendable_after_doubling_pauses() -> None:
    standing, now, pauses = Standing(in_hand=open_progress()), 100.0, []
    while isinstance(step := decide(started(standing), endpoint(), now), Send):
        standing = halted(started(standing), endpoint(), Halt(reason=HaltReason.CRASHED), now, 0.0)
        assert standing.due_at is not None
        pauses.append(standing.due_at - now)
        now = standing.due_at
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0]
    assert step == DeadLetter(reason=DeadLetterReason.UNSENDABLE)
    ended = dead(started(standing), DeadLetterReason.UNSENDABLE)
    assert ended.in_hand is not None
    assert ended.in_hand.detail == "its loop or its worker ended 6 times"
    assert ended.failing == 0
