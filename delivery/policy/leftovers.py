"""What is known of the requests for what waits in a queue that nobody owns any more."""

from __future__ import annotations

import dataclasses

from delivery.policy.attempt_facts import AttemptFacts, facts_of
from delivery.policy.dispatch import Mark, unconfirmed, unresolved
from delivery.policy.handing_over import SUSPECT_OFFSETS, inherited, start_offset
from delivery.policy.standing import FRESH, Progress, Standing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LastOwner:
    """What the last owner wrote down: how the endpoint stood, and how far it was, as `delivery.ports.TakenOver` has it.

    The default is one of whom nothing is known.
    """

    standing: Standing = FRESH
    clean: bool = False
    settled_to: int | None = None
    committed_to: int | None = None
    under_way: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A queue from the offset `start` on. Of what is before `careful_to` nobody knows whether it was sent, too."""

    start: int
    careful_to: int
    standing: Standing
    under_way: int | None = None
    mark: Mark | None = None


def leftover(first: int, committed: int | None, owner: LastOwner, mark: Mark | None) -> Leftover:
    """What a next owner would find. `first` is the oldest record that is not known to be settled."""
    start, standing = first, owner.standing
    if committed is not None:
        start = max(first, start_offset(committed, owner.settled_to, owner.committed_to))
        standing = inherited(standing, start=start, clean=owner.clean, settled_to=owner.settled_to)
    return Leftover(
        start=start,
        careful_to=start if owner.clean else start + SUSPECT_OFFSETS,
        standing=standing,
        under_way=owner.under_way,
        mark=mark,
    )


def facts_left(left: Leftover, offset: int, event_id: str) -> AttemptFacts:
    """What was tried for a record. One that was marked as dispatched was sent, as far as anybody can know."""
    progress = left.standing.in_hand
    if progress is None or (progress.offset, progress.event_id) != (offset, event_id):
        progress = Progress(offset=offset, event_id=event_id)
    standing = dataclasses.replace(left.standing, in_hand=progress)
    if left.mark is not None and unresolved(standing, left.mark):
        progress = unconfirmed(standing, left.mark).in_hand or progress
    return facts_of(progress, doubtful=offset < left.careful_to or offset == left.under_way)
