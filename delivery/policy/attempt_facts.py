"""What a dead letter tells of the requests that were made."""

from __future__ import annotations

import dataclasses

from delivery.model import DeadLetterReason, Outcome, Reply
from delivery.policy.classify import outcome
from delivery.policy.standing import Progress


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What was tried for a record: all of it, not just since it was last held. `detail` adds to the last reply.

    `outcome` is the last request's; without it that of the last reply, and none when nobody knows.
    """

    attempts: int = 0
    waited_s: float = 0.0
    first_attempt_wall_s: float | None = None
    last_attempt_wall_s: float | None = None
    last: Reply | None = None
    outcome: Outcome | None = None
    detail: str = ""


def facts_of(progress: Progress, *, doubtful: bool = False) -> AttemptFacts:
    """What was tried for the record in hand.

    `doubtful`: an owner that did not let go may have sent it, and could tell nobody.
    """
    ended = Outcome.NOT_STARTED if progress.last is None else outcome(progress.last)
    # A loop or a worker that ended with it may have ended between its request and the answer.
    ending = progress.crashes > 0 and (progress.last is None or progress.reason is DeadLetterReason.UNSENDABLE)
    killed = ending or (doubtful and progress.last is None)
    return AttemptFacts(
        attempts=progress.requests,
        waited_s=progress.waited_s,
        first_attempt_wall_s=progress.first_wall_s,
        last_attempt_wall_s=progress.last_wall_s,
        last=progress.last,
        outcome=Outcome.UNKNOWN if killed else ended,
        detail=progress.detail,
    )
