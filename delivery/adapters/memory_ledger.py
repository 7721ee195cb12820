"""A ledger in this process: bounds what this worker does, and ends with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from delivery.policy.standing import FRESH, Standing
from delivery.ports import InHand, TakenOver, TokenRefused


@dataclasses.dataclass(slots=True)
class Entry:
    """What is kept about one queue."""

    token: int = 0
    taken_at: float = 0.0
    released: int = 0
    # The latest token that has written how its endpoint stands: no former one may any more.
    begun: int = 0
    settled_to: int | None = None
    committed_to: int | None = None
    standing: Standing = FRESH
    # The token whose request is under way, its record, and the moment when it has ended whatever happens.
    handing_over: tuple[int, int, float] | None = None


class MemoryLedger:
    """`delivery.ports.Ledger` in a dictionary."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._entries: dict[str, Entry] = {}

    async def take_over(self, queues: Collection[str]) -> dict[str, TakenOver]:
        """The next tokens, and what was last recorded."""
        return await self.claim(dict.fromkeys(queues, 0.0))

    async def claim(self, ages_s: Mapping[str, float]) -> dict[str, TakenOver]:
        """The next tokens as of so many seconds ago; a queue that was taken over since is left out."""
        taken = {}
        for queue, age_s in ages_s.items():
            entry = self._entries.setdefault(queue, Entry())
            at = self._monotonic() - age_s
            if age_s > 0 and entry.token and entry.taken_at > at:
                continue
            entry.token, entry.taken_at = entry.token + 1, at
            taken[queue] = self._taken(entry)
        return taken

    async def look(self, tokens: Mapping[str, int]) -> dict[str, TakenOver]:
        """What the owners of these tokens would find now."""
        held = await self.still_held(tokens)
        return {queue: self._taken(self._entries[queue]) for queue in held}

    def _taken(self, entry: Entry) -> TakenOver:
        in_hand = None
        if entry.handing_over is not None:
            _, offset, until = entry.handing_over
            left_s = until - self._monotonic()
            in_hand = InHand(offset=offset, ends_in_s=left_s) if left_s > 0 else None
        return TakenOver(
            token=entry.token,
            standing=entry.standing,
            clean=entry.released == entry.token - 1,
            settled_to=entry.settled_to,
            committed_to=entry.committed_to,
            in_hand=in_hand,
        )

    async def still_held(self, tokens: Mapping[str, int]) -> frozenset[str]:
        """Those whose token is the latest."""
        return frozenset(queue for queue, token in tokens.items() if self._entry(queue).token == token)

    async def record(self, queue: str, token: int, standing: Standing) -> None:
        """Keep it, unless a later owner has drawn a token and was not told to wait for this."""
        entry = self._entry(queue)
        is_outcome = entry.handing_over is not None and entry.handing_over[0] == token
        if (entry.token != token or entry.released >= token) and not is_outcome:
            raise TokenRefused(queue)
        if entry.token == token:
            entry.begun = token
        # The outcome has come; or the next owner has gone on without it, and a late one would undo what that one wrote.
        entry.handing_over = None
        entry.standing = standing

    async def release(
        self,
        queue: str,
        token: int,
        settled_to: int,
        committed_to: int,
        in_hand: InHand | None = None,
        standing: Standing | None = None,
    ) -> None:
        """Note where this owner stood: more than Kafka has, when the queue was lost before the last commit."""
        entry = self._entry(queue)
        if token <= entry.released or token > entry.token:
            return
        entry.released, entry.settled_to, entry.committed_to = token, settled_to, committed_to
        if entry.begun > token:
            return
        if standing is not None:
            entry.standing = standing
        if in_hand is not None:
            entry.handing_over = (token, in_hand.offset, self._monotonic() + in_hand.ends_in_s)

    def _entry(self, queue: str) -> Entry:
        return self._entries.get(queue) or Entry()
