"""The ledger as a worker uses it: the shared one, and while that is away what this process knows by itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import structlog

from delivery.policy.standing import Standing
from delivery.ports import InHand, Ledger, LedgerAway, TakenOver, TokenRefused

log = structlog.get_logger(__name__)

# Between two tries to tell the shared ledger what it missed: a queue's next owner waits two seconds for it. While that
# is away, a try costs nothing.
AGAIN_S: Final = 0.2
# Of one queue: the one in use, and those whose last request is still under way.
MOST_TOKENS: Final = 4


class SharedLedger(Ledger, Protocol):
    """A ledger that can be told later of a take-over that it missed."""

    async def claim(self, ages_s: Mapping[str, float]) -> dict[str, TakenOver]:
        """Draw tokens as of so many seconds ago; a queue that was taken over since is left out."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Release:
    settled_to: int
    committed_to: int
    offset: int | None
    ends_at: float

    @classmethod
    def of(cls, settled_to: int, committed_to: int, in_hand: InHand | None) -> _Release:
        if in_hand is None:
            return cls(settled_to, committed_to, None, 0.0)
        return cls(settled_to, committed_to, in_hand.offset, _now() + in_hand.ends_in_s)

    def in_hand(self) -> InHand | None:
        if self.offset is None:
            return None
        return InHand(offset=self.offset, ends_in_s=max(0.0, self.ends_at - _now()))


@dataclasses.dataclass(slots=True)
class _Use:
    """A token that a caller uses, what stands for it in both ledgers, and what the shared one has not been told."""

    own: int
    # None until it can be drawn.
    shared: int | None
    taken_at: float
    refused: bool = False
    standing: Standing | None = None
    release: _Release | None = None

    @property
    def untold(self) -> bool:
        return not self.refused and (self.shared is None or self.standing is not None or self.release is not None)

    @property
    def idle(self) -> bool:
        """Nothing was done with it, and nobody else has heard of it."""
        return self.shared is None and self.standing is None and self.release is None

    def keep(self, standing: Standing) -> None:
        """To be told; after a release this is the outcome of the request that was under way."""
        self.standing = standing
        if self.release is not None:
            self.release = dataclasses.replace(self.release, offset=None)

    def refuse(self) -> None:
        """A later owner is there: what was kept for this token says nothing any more."""
        self.refused, self.standing, self.release = True, None, None


class FallbackLedger:
    """`delivery.ports.Ledger` that never raises LedgerAway.

    What could not be written is kept and written by `run` when the shared ledger is back. A take-over that it missed
    has a negative token; the one that is drawn for it later counts from then, so that it never displaces an owner who
    came after. Callers go on using the token that they were given.
    """

    def __init__(self, shared: SharedLedger, own: Ledger) -> None:
        self._shared = shared
        self._own = own
        self._uses: dict[str, dict[int, _Use]] = {}
        self._last_local = 0
        self._untold = asyncio.Event()
        self._telling = asyncio.Lock()
        self.up = True

    async def run(self) -> None:
        """For ever: tell the shared ledger what it missed, as soon as it is there again."""
        while True:
            await self._untold.wait()
            await asyncio.sleep(AGAIN_S)
            try:
                await self._tell(list(self._uses))
            except LedgerAway as error:
                self._is_away(error)
                continue
            if not any(use.untold for uses in self._uses.values() for use in uses.values()):
                self._untold.clear()

    async def take_over(self, queues: Collection[str]) -> dict[str, TakenOver]:
        """Draw tokens. With the shared ledger away: what this process itself knows, and tokens of its own."""
        for queue in queues:
            for use in self._uses.get(queue, {}).values():
                if use.idle:
                    use.refuse()
        try:
            await self._tell(queues)
            found = await self._shared.take_over(queues)
        except LedgerAway as error:
            self._is_away(error)
            return await self._take_alone(queues)
        self.up = True
        own = await self._own.take_over(queues)
        for queue, taken in found.items():
            # With a request of our own under way, its outcome is still to come, here as well.
            if own[queue].in_hand is None:
                await self._own.record(queue, own[queue].token, taken.standing)
            self._use(queue, taken.token, _Use(own=own[queue].token, shared=taken.token, taken_at=_now()))
        return found

    async def _take_alone(self, queues: Collection[str]) -> dict[str, TakenOver]:
        taken = {}
        for queue, own in (await self._own.take_over(queues)).items():
            self._last_local -= 1
            self._use(queue, self._last_local, _Use(own=own.token, shared=None, taken_at=_now()))
            taken[queue] = dataclasses.replace(own, token=self._last_local, known=False)
        self._untold.set()
        return taken

    def _use(self, queue: str, token: int, use: _Use) -> None:
        uses = self._uses.setdefault(queue, {})
        uses[token] = use
        while len(uses) > MOST_TOKENS:
            del uses[next(iter(uses))]

    async def look(self, tokens: Mapping[str, int]) -> dict[str, TakenOver]:
        """What the owners of these tokens would find now."""
        uses = self._in_use(tokens)
        drawn = {queue: use.shared for queue, use in uses.items() if use.shared is not None}
        found: dict[str, TakenOver] = {}
        away: Iterable[str] = uses.keys() - drawn.keys()
        try:
            found = await self._shared.look(drawn) if drawn else {}
        except LedgerAway as error:
            self._is_away(error)
            away = uses.keys()
        known = await self._own.look({queue: uses[queue].own for queue in away})
        found |= {queue: dataclasses.replace(taken, known=False) for queue, taken in known.items()}
        return {queue: dataclasses.replace(taken, token=tokens[queue]) for queue, taken in found.items()}

    async def still_held(self, tokens: Mapping[str, int]) -> frozenset[str]:
        """The queues that nobody took over later; all of them while nobody can tell."""
        uses = self._in_use(tokens)
        drawn = {queue: use.shared for queue, use in uses.items() if use.shared is not None}
        try:
            held = await self._shared.still_held(drawn) if drawn else frozenset()
        except LedgerAway as error:
            self._is_away(error)
            return frozenset(uses)
        return held | (uses.keys() - drawn.keys())

    def _in_use(self, tokens: Mapping[str, int]) -> dict[str, _Use]:
        found = {queue: self._uses.get(queue, {}).get(token) for queue, token in tokens.items()}
        return {queue: use for queue, use in found.items() if use is not None and not use.refused}

    async def record(self, queue: str, token: int, standing: Standing) -> None:
        """Remember. Raises TokenRefused when the shared ledger says so, and not while it is away."""
        use = self._in_use({queue: token}).get(queue)
        if use is None:
            raise TokenRefused(queue)
        if not await self._kept(queue, use, standing):
            # This process has a later token for it.
            if use.shared is None or use.untold:
                return
        elif use.untold or use.shared is None:
            # In order: what is kept goes first.
            use.keep(standing)
            self._untold.set()
            return
        try:
            await self._shared.record(queue, use.shared, standing)
        except LedgerAway as error:
            self._is_away(error)
            use.keep(standing)
            self._untold.set()

    async def _kept(self, queue: str, use: _Use, standing: Standing) -> bool:
        try:
            await self._own.record(queue, use.own, standing)
        except TokenRefused:
            return False
        return True

    async def release(
        self,
        queue: str,
        token: int,
        settled_to: int,
        committed_to: int,
        in_hand: InHand | None = None,
        standing: Standing | None = None,
    ) -> None:
        """Let go in order, later if need be."""
        use = self._in_use({queue: token}).get(queue)
        if use is None:
            return
        await self._own.release(queue, use.own, settled_to, committed_to, in_hand, standing)
        if not use.untold and use.shared is not None:
            try:
                await self._shared.release(queue, use.shared, settled_to, committed_to, in_hand, standing)
            except LedgerAway as error:
                self._is_away(error)
            else:
                return
        if standing is not None:
            use.keep(standing)
        use.release = _Release.of(settled_to, committed_to, in_hand)
        self._untold.set()

    def _is_away(self, error: LedgerAway) -> None:
        if self.up:
            log.warning("the shared ledger is away: what this worker knows has to do", error=str(error))
        self.up = False

    async def _tell(self, queues: Collection[str]) -> None:
        """Draw what is still to be drawn, then write what is still to be written. Raises LedgerAway."""
        async with self._telling:
            for queue in queues:
                for use in list(self._uses.get(queue, {}).values()):
                    if use.untold:
                        await self._tell_of(queue, use)
                        self.up = True

    async def _tell_of(self, queue: str, use: _Use) -> None:
        if use.shared is None:
            taken = (await self._shared.claim({queue: max(0.001, _now() - use.taken_at)})).get(queue)
            if taken is None:
                use.refuse()
                return
            use.shared = taken.token
        while use.standing is not None:
            standing = use.standing
            try:
                await self._shared.record(queue, use.shared, standing)
            except TokenRefused:
                # Its release may still say where it stood.
                use.standing = None
                break
            if use.standing is standing:
                use.standing = None
        release = use.release
        if release is not None:
            await self._shared.release(queue, use.shared, release.settled_to, release.committed_to, release.in_hand())
            if use.release is release:
                use.release = None


def _now() -> float:
    return asyncio.get_running_loop().time()
