"""Hours of an endpoint that fails, on a clock that jumps: sweep, loops and ledger really run."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from delivery.model import (
    Answer,
    DeadLetterReason,
    Endpoint,
    HaltLimits,
    HaltReason,
    NoAnswer,
    NoAnswerKind,
    OnExhausted,
    Outcome,
    Outgoing,
    Partition,
    Reply,
    RetryLimits,
)
from supervisor.view import LoopStateName
from tests.contract.sweep_kit import SweepKit
from tests.fakes import FakeSender, SentRequest, endpoint
from tests.virtual_time import in_virtual_time, time_passes

HOUR_S = 3600.0
HOLD_MAX_S = 4 * HOUR_S
BILLING = Partition("p.acme.billing.queue", 0)
OK = Answer(status=204)
UNAUTHORISED = Answer(status=401)
MANY = 400
# Of a record without an answer, the least time between its first attempt and its end.
SCHEDULE_S = 6.2


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


class OutageSender(FakeSender):
    """Fails in every way that an outage has, drawn anew for each request, until `until`; then everything is fine."""

    def __init__(self, seed: int, until: float) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self.until = until

    async def send(self, endpoint: Endpoint, outgoing: Outgoing, timeout_s: float) -> Reply:
        """A 204, or 502, 503, nothing within the time limit, or a refused connection."""
        now = asyncio.get_running_loop().time()
        self.sent.append(SentRequest(endpoint, outgoing, timeout_s, now))
        if now >= self.until:
            return OK
        match self._chance.choice(["502", "503", "timeout", "refused"]):
            case "timeout":
                await time_passes(timeout_s)
                return NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.UNKNOWN)
            case "refused":
                return NoAnswer(kind=NoAnswerKind.CONNECT, outcome=Outcome.NOT_STARTED)
            case status:
                return Answer(status=int(status))


def outage(kit: SweepKit, for_s: float, seed: int = 1) -> OutageSender:
    sender = OutageSender(seed, kit.clock.monotonic() + for_s)
    kit.sender = sender
    return sender


def reasons(kit: SweepKit) -> set[str]:
    return {kit.letters.headers(n)["dead-letter-reason"] for n in range(len(kit.letters.written))}


async def until_settled(kit: SweepKit, name: str, offset: int, within_s: float) -> None:
    end = kit.clock.monotonic() + within_s
    while kit.tenures[name].settled_to < offset:
        assert kit.clock.monotonic() < end, f"{kit.tenures[name].settled_to} of {offset} within {within_s:g} s"
        await time_passes(1.0)


@pytest.mark.parametrize("seed", range(4))
@in_virtual_time
async def test_an_outage_of_one_hour_with_defaults_costs_at_most_forty_events_and_ends_within_a_pause(
    seed: int,
) -> None:
    kit = SweepKit(chance=random.Random(seed).random)
    sender = outage(kit, HOUR_S, seed)
    await kit.own(count=MANY)
    await until_settled(kit, "billing", MANY, HOUR_S + 330)

    dead = len(kit.letters.written)
    print(f"\n{dead} dead letters, {len(sender.ids) - MANY} requests more than events")
    assert 10 <= dead <= 40
    assert reasons(kit) == {DeadLetterReason.EXHAUSTED}
    assert list(dict.fromkeys(sender.ids)) == [f"msg_{n}" for n in range(MANY)], "in order, each of them"
    after = min(request.at for request in sender.sent if request.at >= sender.until)
    assert after - sender.until <= 300 + 6 * 15 + 10


@in_virtual_time
async def test_an_outage_costs_no_more_events_because_its_queue_moves_all_the_time() -> None:
    kit = SweepKit()
    sender = outage(kit, HOUR_S)
    tenure = await kit.own(count=MANY)
    for _ in range(int(HOUR_S / 97) + 4):
        await time_passes(97.0)
        settled_to = tenure.settled_to
        kit.lose(tenure)
        # What is under way ends, and the next owner finds what came of it.
        await time_passes(16.0)
        tenure = await kit.own(offset=settled_to)
    await until_settled(kit, "billing", MANY, 330)

    assert len(kit.letters.written) <= 40
    assert list(dict.fromkeys(sender.ids)) == [f"msg_{n}" for n in range(MANY)]


@in_virtual_time
async def test_with_hold_an_outage_costs_nothing_for_hold_max_s_and_then_one_event_in_each_pause() -> None:
    kit = SweepKit()
    sender = outage(kit, 1.5 * HOLD_MAX_S)
    tenure = await kit.own(count=MANY, of=endpoint(on_exhausted=OnExhausted.HOLD, hold_max_s=HOLD_MAX_S))
    await time_passes(HOLD_MAX_S)
    assert kit.letters.written == []
    assert set(sender.ids) == {"msg_0"}
    assert (kit.state(), kit.shown().reason) == (LoopStateName.HALTED, HaltReason.HOLD)
    pauses = [later - earlier for earlier, later in itertools.pairwise(kit.times()[::6])]
    # From the start of one run to that of the next: its attempts, of which each may take its 15 s, and the pause.
    for pause_s, took_s in zip([10, 20, 40, 80, 160, 300, 300], pauses, strict=False):
        assert pause_s + SCHEDULE_S <= took_s <= pause_s + SCHEDULE_S + 6 * 15

    await time_passes(HOLD_MAX_S)
    assert tenure.settled_to > 1
    assert reasons(kit) == {DeadLetterReason.EXHAUSTED}
    await until_settled(kit, "billing", MANY, 1.0)
    assert len(kit.letters.written) <= 2 * 12 + 5, "one in each pause of five minutes"


@in_virtual_time
async def test_a_401_that_never_ends_is_asked_less_and_less_often_until_every_five_minutes_and_status_says_so() -> None:
    kit = SweepKit(UNAUTHORISED)
    await kit.own(count=MANY)
    told: list[tuple[str, str, float]] = []
    for _ in range(9):
        for _ in range(1_000):
            if kit.state() is LoopStateName.HALTED:
                break
            await time_passes(0.1)
        shown = kit.shown()
        assert shown.next_start_in_s is not None
        told.append((shown.reason, shown.detail, shown.next_start_in_s))
        await time_passes(shown.next_start_in_s + 0.1)

    assert {(reason, detail) for reason, detail, _ in told} == {(HaltReason.FAILING, "401_403")}
    assert [round(left_s) for _, _, left_s in told] == pytest.approx([10, 20, 40, 80, 160, 300, 300, 300, 300], abs=1)
    assert len(kit.letters.written) == 5 + 8, "five, and then one in each run"
    kit.sender.replies[0] = OK
    await until_settled(kit, "billing", MANY, 310)


@in_virtual_time
async def test_a_deadline_shorter_than_the_first_wait_halts_after_five_requests_and_is_never_a_stream() -> None:
    kit = SweepKit(Answer(status=500))
    await kit.own(count=MANY, of=endpoint(deadline_s=0.1))
    await time_passes(HOUR_S)
    times = kit.times()
    assert len([at for at in times if at < times[0] + 10]) == 5
    assert [round(later - earlier) for earlier, later in itertools.pairwise(times[4:])][:7] == [
        10, 20, 40, 80, 160, 300, 300,
    ]  # fmt: skip
    assert len(kit.letters.written) == len(times), "each sent once"
    assert reasons(kit) == {DeadLetterReason.EXPIRED}


@in_virtual_time
async def test_a_growing_pause_of_rejections_ends_at_its_maximum_and_a_delivery_brings_the_first_one_back() -> None:
    kit = SweepKit(Answer(status=404))
    await kit.own(count=MANY, of=endpoint(halt=HaltLimits(growth=2.0, max_s=60.0)))
    await time_passes(300.0)
    times = kit.times()
    firsts = times[::5]
    assert [round(later - earlier) for earlier, later in itertools.pairwise(firsts)] == [10, 20, 40, 60, 60, 60]
    before = len(times)
    kit.sender.replies.appendleft(OK)
    await time_passes(75.0)
    # One delivery, five rejections at once, and the next five ten seconds later.
    again = kit.times()[before:]
    assert [round(later - earlier) for earlier, later in itertools.pairwise(again[:11])] == [0] * 5 + [10] + [0] * 4


@in_virtual_time
async def test_a_schedule_of_hours_holds_the_queue_that_long_and_makes_one_attempt_more_than_it_has_entries() -> None:
    kit = SweepKit(*[Answer(status=500)] * 5, OK)
    schedule = RetryLimits(schedule_s=(5.0, 300.0, 1800.0, 7200.0))
    await kit.own(count=2, of=endpoint(retry=schedule))
    await time_passes(3 * HOUR_S)
    times = kit.times()
    assert kit.sender.ids == ["msg_0"] * 5 + ["msg_1"]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [5, 300, 1800, 7200, 0]
    assert reasons(kit) == {DeadLetterReason.EXHAUSTED}
