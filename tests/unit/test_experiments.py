"""The arithmetic of tests/experiments: what a seed implies, what is simulated, what is counted in a window."""

from __future__ import annotations

import statistics

import pytest

from delivery.model import Jitter, Rate, RetryLimits
from supervisor.demo.seen import Seen
from tests.experiments import flaky_call, herd, platform
from tests.experiments.__main__ import EXPERIMENTS, choose
from tests.experiments.report import Sheet, Verdict, number
from tests.experiments.retry_storm import EIGHT, TWENTY_FOUR, minutes, repeated
from tests.experiments.scene import FULL, QUICK


def a_request(webhook_id: str, at: float, ended_at: float, status: int) -> Seen:
    return Seen("/e", 1, at, webhook_id, "", "", 0, b"", b"", b"", 1, ended_at, status)


@pytest.mark.parametrize(("storm", "seconds"), [(EIGHT, 822), (TWENTY_FOUR, 481)], ids=["8", "24"])
def test_the_storm_at_full_size_is_simulated_as_what_is_known_to_be_expected(storm: object, seconds: float) -> None:
    assert storm in (EIGHT, TWENTY_FOUR)
    chosen = EIGHT if storm is EIGHT else TWENTY_FOUR
    terms = platform.Terms()
    found = platform.simulate(terms, chosen.sender(FULL), chosen.names, chosen.each(FULL))
    # Expected 13,043 requests (standard deviation 77), and 12,000 of them billed (63).
    assert abs(found.requests - 13_043) <= 2 * 77
    assert abs(found.billed - 12_000) <= 2 * 63
    assert found.seconds == pytest.approx(seconds, rel=0.05)


def test_without_a_bucket_in_the_way_the_simulated_storm_is_the_one_that_the_seed_implies() -> None:
    terms, names = platform.Terms(burst=10_000), ["a", "b", "c"]
    sender = platform.Sender(rate=Rate(per_s=10, burst=5), limits=RetryLimits(), hold_s=10)
    found = platform.simulate(terms, sender, names, 50)
    implied = platform.plan(terms, names, 50)
    assert (found.requests, found.billed) == (implied.requests, implied.billed)
    assert implied.requests > 150


def test_the_platforms_bucket_lets_its_burst_through_and_then_its_rate() -> None:
    bucket = platform.Bucket(platform.Terms(), 100.0)
    assert [bucket.take(100.0) for _ in range(61)] == [True] * 60 + [False]
    assert not bucket.take(100.0 + 0.9 / 30)
    assert bucket.take(100.0 + 1.1 / 30)
    assert sum(bucket.take(200.0) for _ in range(100)) == 60, "and no more than its burst after a rest"


def test_halved_times_halve_the_platforms_but_not_below_a_whole_second() -> None:
    terms = platform.Terms(scale=QUICK.scale)
    latencies = [platform.fate(terms, "e", n).latency_s for n in range(1, 500)]
    assert terms.told_s == 1
    assert min(latencies) >= 0.075
    assert max(latencies) <= 0.125


def test_the_platform_fails_as_often_as_it_says() -> None:
    statuses = [platform.fate(platform.Terms(), "e", n).status for n in range(1, 20_001)]
    soft = statuses.count(429) / len(statuses)
    assert soft == pytest.approx(0.08, abs=0.01)
    assert statuses.count(500) / len(statuses) == pytest.approx(0.92 * 0.25, abs=0.01)


@pytest.mark.parametrize("each", [30, 100], ids=["reduced", "full"])
def test_the_flaky_calls_seed_implies_what_is_asked_of_it(each: int) -> None:
    names = [f"e{n}" for n in range(flaky_call.ENDPOINTS)]
    implied, events = flaky_call.plan(names, each), each * len(names)
    assert implied.delivered >= flaky_call.LEAST_DELIVERED * events
    assert implied.requests <= flaky_call.MOST_REQUESTS * events


def test_over_many_seeds_two_thousand_flaky_calls_need_3031_requests() -> None:
    names = [f"e{n}" for n in range(flaky_call.ENDPOINTS)]
    found = [flaky_call.plan(names, 100, seed=seed).requests for seed in range(12)]
    assert statistics.mean(found) == pytest.approx(3_031, abs=2 * 37 / 12**0.5)


def test_with_one_attempt_each_flaky_call_is_one_request() -> None:
    implied = flaky_call.plan(["a"], 1000, attempts=1)
    assert implied.requests == 1000
    assert implied.delivered == pytest.approx(650, abs=50)


def test_fixed_windows_begin_at_multiples_of_their_length_and_any_window_where_it_holds_most() -> None:
    moments = [0.0, 0.9, 1.0, 1.1, 1.8, 5.0]
    assert herd.most_in_fixed_windows(moments, 1.0) == 3
    assert herd.most_in_any_window(moments, 1.0) == 4
    assert herd.most_in_any_window([1.0, 2.0], 1.0) == 1, "half-open"


def test_without_jitter_the_whole_herd_is_in_one_window() -> None:
    assert herd.most_in_fixed_windows(herd.waits(Jitter.NONE, 1), herd.WINDOW_S) == herd.ENDPOINTS
    assert herd.most_in_fixed_windows(herd.waits(Jitter.FULL, 1), herd.WINDOW_S) < herd.ENDPOINTS / 4


def test_a_retry_of_what_failed_before_a_kill_is_not_sent_again_but_what_was_delivered_or_unanswered_is() -> None:
    seen = [
        a_request("failed", 1.0, 1.2, 500),
        a_request("delivered", 2.0, 2.2, 204),
        a_request("open", 9.9, 10.1, 500),
        a_request("failed", 17.0, 17.2, 204),
        a_request("delivered", 17.0, 17.2, 204),
        a_request("open", 17.0, 17.2, 204),
    ]
    assert repeated(seen, killed_at=10.0) == pytest.approx([8.0, 0.1])


def test_a_figure_on_its_limit_is_reached() -> None:
    sheet = Sheet("E0", "ours")
    sheet.at_most("a", 5, 5)
    sheet.at_most("b", 5.1, 5)
    sheet.at_least("c", 95, 95, " %")
    sheet.at_least("d", 94.9, 95, " %")
    sheet.exactly("e", 3, 3)
    sheet.exactly("f", 4, 3)
    sheet.shown("g", "7")
    reached, missed = Verdict.REACHED, Verdict.MISSED
    assert [f.verdict for f in sheet.figures] == [reached, missed] * 3 + [Verdict.SHOWN]
    assert [f.target for f in sheet.figures][2] == "≥ 95 %"


def test_numbers_have_as_many_places_as_matter() -> None:
    assert [number(value) for value in (13_043, 0.974, 17.62, 822.4)] == ["13,043", "0.97", "17.6", "822"]
    assert minutes(997) == "16 m 37 s"


def test_experiments_are_chosen_by_name_and_scenes_by_a_part_of_theirs() -> None:
    assert {experiment.name for experiment in EXPERIMENTS} == {"E1", "E2", "E3", "E4", "E5"}
    assert {experiment.name for experiment, _ in choose("e2,E4", None)} == {"E2", "E4"}
    assert [scene.name for _, scene in choose(None, "always 400")] == ["ours, always 400"]
    assert choose("E9", None) == []
