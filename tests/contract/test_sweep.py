"""Which loops live: each owned queue has one, a time when it gets one, and never two."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from delivery.model import Answer, HaltReason, NextStep, Reply
from delivery.policy.standing import Standing
from supervisor.plan import HERD, SPREAD_S, TOGETHER_S
from supervisor.view import LoopStateName
from tests.contract.sweep_kit import SWEEP_S, SweepKit
from tests.fakes import (
    FakeSender,
)
from tests.virtual_time import in_virtual_time, others, time_passes

OK, NOT_FOUND = Answer(status=204), Answer(status=404)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What was logged, which would otherwise be drawn with all its tracebacks."""
    with capture_logs() as logged:
        yield logged


def bursts(times: list[float]) -> list[float]:
    """When each group of requests at one moment began."""
    return sorted({round(at, 3) for at in times})


@in_virtual_time
async def test_a_queue_gets_its_loop_at_once() -> None:
    kit = SweepKit(OK)
    await kit.own()
    await others()
    assert kit.state() == LoopStateName.RUNNING
    assert len(kit.times()) > 0


@in_virtual_time
async def test_hl_01_a_halted_loop_starts_again_after_ten_seconds_with_its_count_at_zero() -> None:
    kit = SweepKit(NOT_FOUND)
    await kit.own()
    await time_passes(35.0)
    assert bursts(kit.times()) == [1000.0, 1010.0, 1020.0, 1030.0]
    assert len(kit.times()) == 20
    assert kit.meter.counted("halt") == [HaltReason.REJECTIONS] * 4


@pytest.mark.parametrize("sweep_s", [0.5, 3.0, 10.0, 60.0])
@in_virtual_time
async def test_the_pause_is_ten_seconds_whenever_the_sweep_looks(sweep_s: float) -> None:
    kit = SweepKit(NOT_FOUND, sweep_s=sweep_s)
    await kit.own()
    await time_passes(95.0)
    assert bursts(kit.times()) == [1000.0 + 10 * n for n in range(10)]


@in_virtual_time
async def test_hl_04_a_streak_goes_over_to_the_next_owner() -> None:
    kit = SweepKit(*[NOT_FOUND] * 4, Answer(status=503), NOT_FOUND)
    tenure = await kit.own()
    await others()
    assert tenure.standing.streak == 4
    kit.lose(tenure)
    await others()
    again = await kit.own()
    assert again.standing.streak == 4
    await time_passes(1.0)
    assert kit.state() == LoopStateName.HALTED
    assert again.standing.halt is HaltReason.REJECTIONS
    assert len(kit.sender.sent) == 6


@in_virtual_time
async def test_a_due_time_that_is_still_in_force_is_kept_by_the_next_owner() -> None:
    kit = SweepKit(NOT_FOUND)
    tenure = await kit.own()
    await time_passes(4.0)
    kit.lose(tenure)
    await kit.own()
    await time_passes(20.0)
    assert bursts(kit.times())[:2] == [1000.0, 1010.0]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("bug"),
        UnicodeEncodeError("ascii", "ü", 0, 1, "not ASCII"),
        asyncio.CancelledError(),
        MemoryError(),
    ],
    ids=lambda error: f"HL-06 {type(error).__name__}",
)
@in_virtual_time
async def test_a_loop_that_dies_is_counted_as_crashed_and_started_again(
    error: BaseException, logs: list[MutableMapping[str, Any]]
) -> None:
    kit = SweepKit(error, OK)
    await kit.own(count=3)
    await time_passes(1.0)
    assert kit.meter.counted("halt") == [HaltReason.CRASHED]
    [state] = kit.sweep.states()
    assert (state.state, state.reason) == (LoopStateName.HALTED, HaltReason.CRASHED)
    assert state.detail == type(error).__name__
    [line] = [line for line in logs if line["log_level"] == "error"]
    assert (line["tenant"], line["endpoint"], line["exc_info"]) == ("acme", "billing", error)
    assert state.next_start_in_s == pytest.approx(9.0)
    await time_passes(20.0)
    assert len(kit.meter.ends(NextStep.COMPLETE)) == 3
    assert not kit.sweeping.done()


@in_virtual_time
async def test_hl_07_every_restart_is_counted_by_endpoint_and_cause_and_crashes_back_off() -> None:
    kit = SweepKit(RuntimeError("bug"))
    await kit.own()
    await time_passes(320.0)
    assert kit.meter.counted("halt") == [HaltReason.CRASHED] * 6
    assert bursts(kit.times()) == [1000.0, 1010.0, 1030.0, 1070.0, 1150.0, 1310.0]


@in_virtual_time
async def test_a_record_that_crashes_every_loop_ends_as_unsendable_and_the_next_one_is_sent() -> None:
    kit = SweepKit(*[RuntimeError("bug")] * 6, OK)
    await kit.own(count=2)
    await time_passes(700.0)
    assert [kit.letters.headers(0)[f"dead-letter-{name}"] for name in ("reason", "fault")] == ["unsendable", "pipeline"]
    assert kit.sender.ids == ["msg_0"] * 6 + ["msg_1"]


@in_virtual_time
async def test_a_crash_costs_the_endpoint_no_attempt() -> None:
    kit = SweepKit(RuntimeError("bug"), OK)
    tenure = await kit.own(count=1)
    await time_passes(1.0)
    assert tenure.standing.in_hand is not None
    assert tenure.standing.in_hand.attempts == 0
    assert tenure.standing.streak == 0


@in_virtual_time
async def test_a_metric_that_fails_keeps_no_loop_from_starting_again() -> None:
    kit = SweepKit(OK)
    kit.meter.error = ValueError("a metric's bug")
    kit.meter.halt_error = ValueError("another one")
    await kit.own(count=2)
    await time_passes(1.0)
    kit.meter.error = kit.meter.halt_error = None
    await time_passes(25.0)
    assert len(kit.meter.ends(NextStep.COMPLETE)) == 1, "the first one's metric is lost"
    assert len(kit.sender.sent) == 2, "and nothing is sent twice for it"
    assert not kit.sweeping.done()


@in_virtual_time
async def test_a_lost_queue_is_not_started_again_and_its_timer_is_gone() -> None:
    kit = SweepKit(NOT_FOUND)
    tenure = await kit.own()
    await time_passes(1.0)
    kit.lose(tenure)
    await time_passes(60.0)
    assert kit.sweep.states() == []
    assert len(kit.times()) == 5


@in_virtual_time
async def test_a_queue_that_comes_back_waits_for_its_own_request_in_flight() -> None:
    answer = asyncio.Event()

    async def late() -> Reply:
        await answer.wait()
        return OK

    kit = SweepKit(late, OK)
    tenure = await kit.own(count=2)
    await time_passes(1.0)
    kit.lose(tenure)
    await kit.own()
    await time_passes(30.0)
    assert len(kit.times()) == 1, "one request at a time, whoever owns the queue"
    answer.set()
    await time_passes(1.0)
    assert len(kit.times()) == 2, "what that request brought counts: it is not made again"


@in_virtual_time
async def test_kg_05_a_queue_that_is_lost_while_the_sweep_looks_raises_nothing() -> None:
    kit = SweepKit(NOT_FOUND, chance=lambda: 0.5)
    tenures = {t.partition.topic: t for t in [await kit.own(f"e{number}") for number in range(HERD + 5)]}
    await time_passes(TOGETHER_S / 2)

    def take_all_others_away(queue: str) -> None:
        kit.ledger.before_record = None
        for topic, tenure in tenures.items():
            if topic != queue:
                kit.lose(tenure)

    kit.ledger.before_record = take_all_others_away
    await time_passes(SWEEP_S)
    assert not kit.sweeping.done()
    assert len(kit.sweep.states()) == 1


@in_virtual_time
async def test_hl_11_a_herd_that_halted_together_does_not_come_back_together() -> None:
    numbers = iter(range(10_000))
    count = 200
    kit = SweepKit(NOT_FOUND, chance=lambda: next(numbers) % count / count)
    kit.ledger.takes_s = 0.001
    for number in range(count):
        await kit.own(f"e{number}", count=12)
    await time_passes(25.0)
    second = [kit.times(f"e{number}")[5] for number in range(count)]
    assert min(second) >= 1010.0, "never sooner than the pause"
    assert max(second) <= 1010.1 + SPREAD_S
    in_one_second = max(sum(at <= other < at + 1.0 for other in second) for at in second)
    assert in_one_second <= count / SPREAD_S + 1
    assert len(set(second)) == count


@in_virtual_time
async def test_hl_11_a_herd_that_halts_while_the_last_one_is_still_written_down_is_put_apart_as_well() -> None:
    numbers = iter(range(1_000))
    kit = SweepKit(NOT_FOUND, chance=lambda: next(numbers) % 40 / 40)
    await time_passes(SWEEP_S - 2.0)
    for number in range(40):
        await kit.own(f"first{number}")
    # Forty writes one after the other take four seconds, in which the second herd halts.
    kit.ledger.takes_s = 0.1
    await time_passes(2.5)
    kit.ledger.takes_s = 0.0
    for number in range(40):
        await kit.own(f"second{number}")
    await time_passes(30.0)
    again = sorted(bursts(kit.times(f"second{number}"))[1] for number in range(40))
    assert max(sum(at <= other < at + 1.0 for other in again) for at in again) <= 40 / SPREAD_S + 1


@in_virtual_time
@pytest.mark.parametrize("begins_s", [0.0, SWEEP_S - TOGETHER_S / 2], ids=["by itself", "the sweep is sooner"])
@pytest.mark.parametrize("after_s", [0.1, 5.0, 9.0])
async def test_hl_11_those_that_fall_within_a_sweep_after_a_herd_was_put_apart_are_put_apart_like_it(
    begins_s: float, after_s: float
) -> None:
    numbers = iter(range(1_000))
    kit = SweepKit(NOT_FOUND, chance=lambda: next(numbers) % 50 / 50)
    await time_passes(begins_s)
    for number in range(40):
        await kit.own(f"e{number}")
    await time_passes(TOGETHER_S + after_s)
    for number in range(40, 50):
        await kit.own(f"e{number}")
    await time_passes(30.0)
    late = sorted(bursts(kit.times(f"e{number}"))[1] for number in range(40, 50))
    assert late[-1] - late[0] >= 1.0


@in_virtual_time
async def test_hl_11_the_spread_is_stored_for_the_next_owner() -> None:
    kit = SweepKit(NOT_FOUND, chance=lambda: 0.5)
    tenures = [await kit.own(f"e{number}") for number in range(HERD + 1)]
    await time_passes(SWEEP_S - 0.1)
    await time_passes(0.2)
    stored = dict(kit.ledger.records)
    assert {stored[t.partition.topic].due_at for t in tenures} == {1010.0 + 0.5 * SPREAD_S}


@in_virtual_time
async def test_hl_11_a_herd_whose_owner_ended_before_it_was_put_apart_is_put_apart_by_the_next() -> None:
    numbers = iter(range(1_000))
    kit = SweepKit(NOT_FOUND, chance=lambda: next(numbers) % 40 / 40)
    for number in range(40):
        await kit.own(f"e{number}", standing=Standing(halt=HaltReason.REJECTIONS, due_at=1004.0))
    await time_passes(20.0)
    first = sorted(kit.times(f"e{number}")[0] for number in range(40))
    assert (first[0], first[-1]) == (1004.0, 1004.0 + SPREAD_S * 39 / 40)
    assert {standing.apart for _, standing in kit.ledger.records[:40]} == {True}


@in_virtual_time
async def test_a_herd_that_was_put_apart_stays_as_it_is() -> None:
    kit = SweepKit(NOT_FOUND, chance=lambda: 0.5)
    for number in range(40):
        standing = Standing(halt=HaltReason.REJECTIONS, due_at=1004.0, apart=True)
        await kit.own(f"e{number}", standing=standing)
    await time_passes(5.0)
    assert {kit.times(f"e{number}")[0] for number in range(40)} == {1004.0}


@in_virtual_time
async def test_hl_11_those_that_fell_due_while_nobody_owned_them_are_put_apart_anew() -> None:
    numbers = iter(range(1_000))
    kit = SweepKit(NOT_FOUND, chance=lambda: next(numbers) % 40 / 40)
    for number in range(50):
        due_at = 990.0 + number / 5 if number < 40 else 1004.0
        await kit.own(f"e{number}", standing=Standing(halt=HaltReason.REJECTIONS, due_at=due_at, apart=True))
    await time_passes(20.0)
    late = sorted(kit.times(f"e{number}")[0] for number in range(40))
    assert late[0] >= 1000.0
    assert max(sum(at <= other < at + 1.0 for other in late) for at in late) <= 40 / SPREAD_S + 1
    assert {kit.times(f"e{number}")[0] for number in range(40, 50)} == {1004.0}


@in_virtual_time
async def test_a_few_that_fell_due_while_nobody_owned_them_start_half_a_second_after_they_have_an_owner() -> None:
    kit = SweepKit(NOT_FOUND, chance=lambda: 0.5)
    for number in range(HERD):
        await kit.own(f"e{number}", standing=Standing(halt=HaltReason.REJECTIONS, due_at=990.0, apart=True))
    await time_passes(5.0)
    assert {kit.times(f"e{number}")[0] for number in range(HERD)} == {1000.0 + TOGETHER_S}


@in_virtual_time
async def test_a_few_that_halt_together_are_not_spread() -> None:
    kit = SweepKit(NOT_FOUND, chance=lambda: 0.5)
    for number in range(HERD):
        await kit.own(f"e{number}")
    await time_passes(15.0)
    assert {bursts(kit.times(f"e{number}"))[1] for number in range(HERD)} == {1010.0}


@in_virtual_time
async def test_one_endpoints_crash_and_halt_change_nothing_for_another() -> None:
    kit = SweepKit(OK)
    await kit.own("healthy", count=30)
    sender = kit.sender
    kit.sender = FakeSender(NOT_FOUND)
    await kit.own("dead")
    kit.sender = FakeSender(RuntimeError("bug"))
    await kit.own("crashing")
    await time_passes(15.0)
    assert len(sender.sent) == 30
    assert kit.state("healthy") == LoopStateName.RUNNING
    assert kit.state("dead") == kit.state("crashing") == LoopStateName.HALTED


@in_virtual_time
async def test_sd_04_stopping_ends_timers_and_starts_nothing_any_more() -> None:
    kit = SweepKit(NOT_FOUND)
    tenure = await kit.own()
    await time_passes(5.0)
    tenure.stop()
    stopped_at = kit.clock.monotonic()
    assert await kit.sweep.stop(20.0, asyncio.Event())
    assert kit.clock.monotonic() == stopped_at
    await time_passes(60.0)
    assert len(kit.times()) == 5


@pytest.mark.parametrize(("answers_after_s", "in_order"), [(12.0, True), (60.0, False)])
@in_virtual_time
async def test_stopping_waits_for_requests_in_flight_but_not_for_ever(answers_after_s: float, in_order: bool) -> None:
    async def late() -> Reply:
        await time_passes(answers_after_s)
        return OK

    kit = SweepKit(late)
    tenure = await kit.own()
    await time_passes(1.0)
    tenure.stop()
    assert await kit.sweep.stop(20.0, asyncio.Event()) is in_order
    assert kit.clock.monotonic() <= 1000.0 + 1.0 + 20.0 + 1.0


@in_virtual_time
async def test_a_second_signal_cuts_the_drain_short() -> None:
    async def never() -> Reply:
        await time_passes(3600.0)
        return OK

    kit = SweepKit(never)
    tenure = await kit.own()
    await time_passes(1.0)
    tenure.stop()
    hurry = asyncio.Event()
    asyncio.get_running_loop().call_later(2.0, hurry.set)
    assert not await kit.sweep.stop(20.0, hurry)
    assert kit.clock.monotonic() == pytest.approx(1003.0, abs=0.1)
    # What was cut off is no crash of the loop's.
    assert kit.meter.counted("halt") == []


@in_virtual_time
async def test_states_say_why_and_until_when() -> None:
    kit = SweepKit(NOT_FOUND)
    tenure = await kit.own()
    await time_passes(4.0)
    [state] = kit.sweep.states()
    assert state.state == LoopStateName.HALTED
    assert state.reason == HaltReason.REJECTIONS
    assert state.next_start_in_s == pytest.approx(6.0)
    assert state.since == tenure.standing.halted_wall_s
    kit.sender.replies.extend([Answer(status=503)])
    kit.sender.replies.popleft()
    await time_passes(6.05)
    [state] = kit.sweep.states()
    assert state.state == LoopStateName.WAITING
    assert state.attempts == 1
    assert dataclasses.asdict(state)["reason"] == ""
