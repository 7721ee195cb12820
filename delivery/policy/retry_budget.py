"""A scope's retries: never more than its burst, its seconds and its first attempts earn, over any time."""

from __future__ import annotations

import dataclasses

from delivery.model import RetryBudget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A bucket that held `level` retries at the moment `at`."""

    level: float
    at: float


def earned(tokens: Tokens | None, budget: RetryBudget, now: float) -> Tokens:
    """The bucket after a first attempt. What does not fit is lost, so that a quiet day saves up no storm."""
    level = _level(tokens, budget, now)
    return Tokens(level=min(budget.burst, level + budget.ratio), at=now)


def spent(tokens: Tokens | None, budget: RetryBudget, now: float) -> Tokens | None:
    """The bucket after a retry; None when there is not a whole one left."""
    level = _level(tokens, budget, now)
    return Tokens(level=level - 1, at=now) if level >= 1 else None


def _level(tokens: Tokens | None, budget: RetryBudget, now: float) -> float:
    """A clock that is set back earns nothing for that time, and goes on earning from there."""
    if tokens is None:
        return budget.burst
    return min(budget.burst, tokens.level + max(0.0, now - tokens.at) * budget.per_s)
