"""A scope's retries, under any interleaving of those who ask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.model import RetryBudget
from delivery.policy.retry_budget import Tokens, earned, spent

budgets = st.builds(
    RetryBudget,
    ratio=st.sampled_from([0.0, 0.2, 1.0, 3.0]),
    per_s=st.sampled_from([0.001, 1.0, 7.5]),
    burst=st.integers(1, 20),
)
asked = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.3, 5.0, 500.0]), st.booleans()), min_size=1, max_size=60
)
NEARLY = 1e-6


def run(budget: RetryBudget, asks: list[tuple[float, bool]]) -> list[tuple[float, str]]:
    """When each asked, and what it was: a first attempt, a retry, or a retry that was refused."""
    now, tokens, happened = 1000.0, None, []
    for gap, retry in asks:
        now += gap
        after = (spent if retry else earned)(tokens, budget, now)
        happened.append((now, "first" if not retry else "refused" if after is None else "retry"))
        tokens = after or tokens
    return happened


def allowed(budget: RetryBudget, happened: list[tuple[float, str]]) -> float:
    """What the budget has between the first and the last of these."""
    firsts = sum(what == "first" for _, what in happened)
    return budget.burst + (happened[-1][0] - happened[0][0]) * budget.per_s + firsts * budget.ratio


@given(budgets, asked)
def test_over_any_time_there_are_never_more_retries_than_the_budget_has(
    budget: RetryBudget, asks: list[tuple[float, bool]]
) -> None:
    happened = run(budget, asks)
    for first in range(len(happened)):
        for last in range(first, len(happened)):
            window = happened[first : last + 1]
            assert sum(what == "retry" for _, what in window) <= allowed(budget, window) + NEARLY


@given(budgets, asked)
def test_a_retry_is_refused_only_when_one_more_would_be_too_many(
    budget: RetryBudget, asks: list[tuple[float, bool]]
) -> None:
    happened = run(budget, asks)
    for last, (_, what) in enumerate(happened):
        if what == "refused":
            windows = [happened[first : last + 1] for first in range(last + 1)]
            assert any(
                sum(what == "retry" for _, what in window) + 1 > allowed(budget, window) - NEARLY for window in windows
            )


def test_a_clock_that_is_set_back_earns_nothing_for_that_time_and_stops_nothing() -> None:
    budget = RetryBudget(burst=2)
    tokens = Tokens(level=0.5, at=1000.0)
    assert spent(tokens, budget, 900.0) is None
    tokens = earned(tokens, budget, 900.0)
    assert tokens == Tokens(level=0.7, at=900.0)
    assert spent(tokens, budget, 900.5) is not None


def test_a_budget_that_was_lowered_is_in_force_at_once() -> None:
    assert spent(Tokens(level=20.0, at=0.0), RetryBudget(burst=3), 0.0) == Tokens(level=2.0, at=0.0)
