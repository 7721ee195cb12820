"""The ledger that all workers share: one Redis hash for each queue, changed by scripts on Redis' own clock."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import structlog

from delivery.adapters.redis_connection import Call, RedisConnection, Script
from delivery.adapters.redis_scripts import LOOK, RECORD, RELEASE, TAKE_OVER
from delivery.policy.standing import FRESH, Standing
from delivery.policy.standing_codec import StandingUnreadable, decode, encode, longest_wait_s
from delivery.ports import Clock, InHand, TakenOver, TokenRefused

log = structlog.get_logger(__name__)

# So long after a queue was let go nobody asks any more what became of it; at least a day beyond the longest wait in it.
KEPT_S: Final = 7 * 86_400.0
BEYOND_WAIT_S: Final = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """What the scripts tell of a queue, in their order. `former` is the worker that had the token before."""

    token: int
    former: str
    clean: bool
    settled_to: int | None
    committed_to: int | None
    standing: str | None
    age_s: float
    in_hand: InHand | None

    @classmethod
    def of(cls, reply: Sequence[Any]) -> _Found:
        token, former, clean, settled_to, committed_to, standing, age_ms, offset, left_ms = reply
        return cls(
            token=int(token),
            former=former.decode(),
            clean=bool(clean),
            settled_to=None if settled_to is None else int(settled_to),
            committed_to=None if committed_to is None else int(committed_to),
            standing=None if standing is None else standing.decode("utf-8", "replace"),
            age_s=max(0, int(age_ms)) / 1000,
            in_hand=None if offset is None else InHand(offset=int(offset), ends_in_s=int(left_ms) / 1000),
        )


class RedisLedger:
    """`delivery.ports.Ledger` for all workers of one prefix. Everything raises LedgerAway when Redis is."""

    def __init__(self, connection: RedisConnection, prefix: str, worker_id: str, clock: Clock) -> None:
        self._connection = connection
        self._prefix = prefix
        self._worker_id = worker_id
        self._clock = clock
        # For each queue whose token was asked for and whose answer did not come: asked again, it gets the same token.
        self._unanswered: dict[str, str] = {}

    def key(self, queue: str) -> str:
        """The queue's hash. The braces are what a Redis Cluster chooses the node by."""
        return f"{self._prefix}:queue:{{{queue}}}"

    def board_key(self, worker_id: str) -> str:
        """What a worker renews all the time; it is gone five seconds after the last time."""
        return f"{self._prefix}:{{board}}:{worker_id}"

    async def take_over(self, queues: Collection[str]) -> dict[str, TakenOver]:
        """Draw the next tokens."""
        return await self.claim(dict.fromkeys(queues, 0.0))

    async def claim(self, ages_s: Mapping[str, float]) -> dict[str, TakenOver]:
        """Draw tokens as of so many seconds ago; a queue that somebody else has drawn one for since is left out."""
        for queue in ages_s:
            self._unanswered.setdefault(queue, uuid.uuid4().hex)
        replies = await self._connection.call(
            [
                self._call(TAKE_OVER, queue, self._worker_id, self._unanswered[queue], round(age_s * 1000))
                for queue, age_s in ages_s.items()
            ]
        )
        taken = await self._taken(ages_s, replies)
        # Only now: a token that the caller is not told of would be a former owner of ours that never lets go.
        for queue in ages_s:
            self._unanswered.pop(queue, None)
        return taken

    async def look(self, tokens: Mapping[str, int]) -> dict[str, TakenOver]:
        """What the owners of these tokens would find now."""
        replies = await self._connection.call([self._call(LOOK, queue, token) for queue, token in tokens.items()])
        return await self._taken(tokens, replies)

    async def still_held(self, tokens: Mapping[str, int]) -> frozenset[str]:
        """Those without a later token. A hash that is gone tells of none: Redis was emptied, and nobody drew since."""
        found = await self._connection.run([("HGET", self.key(queue), "token") for queue in tokens])
        return frozenset(
            queue
            for (queue, token), latest in zip(tokens.items(), found, strict=True)
            if latest is None or int(latest) <= token
        )

    async def left_behind(self, queue: str) -> TakenOver | None:
        """What the next owner would find, without becoming it; None when nothing is known of the queue."""
        ((token, released),) = await self._connection.run([("HMGET", self.key(queue), "token", "released")])
        if token is None:
            return None
        found = (await self.look({queue: int(token)})).get(queue)
        return None if found is None else dataclasses.replace(found, clean=released == token)

    async def erase(self, queue: str) -> None:
        """Nobody will ask for this queue again."""
        await self._connection.run([("DEL", self.key(queue))])

    async def record(self, queue: str, token: int, standing: Standing) -> None:
        """Keep it for as long as it can mean something. Raises TokenRefused, LedgerAway."""
        text, kept_ms = self._text(standing)
        call = self._call(RECORD, queue, self._worker_id, token, text, uuid.uuid4().hex, kept_ms)
        (accepted,) = await self._connection.call([call])
        if not accepted:
            raise TokenRefused(queue)

    async def release(
        self,
        queue: str,
        token: int,
        settled_to: int,
        committed_to: int,
        in_hand: InHand | None = None,
        standing: Standing | None = None,
    ) -> None:
        """Note where this owner stood."""
        under_way: tuple[str | int, str | int] = ("", "")
        if in_hand is not None:
            under_way = (in_hand.offset, max(0, round(in_hand.ends_in_s * 1000)))
        kept_ms = round(KEPT_S * 1000)
        stands = () if standing is None else self._text(standing)
        call = self._call(
            RELEASE, queue, self._worker_id, token, settled_to, committed_to, *under_way, kept_ms, *stands
        )
        await self._connection.call([call])

    def _text(self, standing: Standing) -> tuple[str, int]:
        """How it is stored, and for how many milliseconds it can mean something."""
        now = self._clock.monotonic()
        kept_s = max(KEPT_S, longest_wait_s(standing, now) + BEYOND_WAIT_S)
        return "" if standing == FRESH else encode(standing, now), round(kept_s * 1000)

    def _call(self, script: Script, queue: str, *arguments: str | int) -> Call:
        return Call(script, (self.key(queue), *arguments))

    async def _taken(self, queues: Collection[str], replies: Sequence[Any]) -> dict[str, TakenOver]:
        found = {queue: _Found.of(reply) for queue, reply in zip(queues, replies, strict=True) if reply is not None}
        living = await self._living({one.former for one in found.values() if not one.clean})
        now = self._clock.monotonic()
        return {
            queue: TakenOver(
                token=one.token,
                standing=self._standing(queue, one, now),
                clean=one.clean,
                former_lives=not one.clean and one.former in living,
                settled_to=one.settled_to,
                committed_to=one.committed_to,
                in_hand=one.in_hand,
            )
            for queue, one in found.items()
        }

    async def _living(self, workers: Collection[str]) -> frozenset[str]:
        """Those that are on the board; never this worker itself, for which nobody has to wait."""
        asked = sorted(frozenset(workers) - {self._worker_id, ""})
        there = await self._connection.run([("EXISTS", self.board_key(worker)) for worker in asked])
        return frozenset(worker for worker, count in zip(asked, there, strict=True) if count)

    def _standing(self, queue: str, found: _Found, now: float) -> Standing:
        if found.standing is None:
            return FRESH
        try:
            return decode(found.standing, now, found.age_s)
        except StandingUnreadable as error:
            log.error("what Redis holds of a queue cannot be read and counts as nothing", queue=queue, error=str(error))
            return FRESH
