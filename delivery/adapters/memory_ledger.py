"""A ledger in this process: bounds what this worker does, and ends with it."""

from __future__ import annotations

from collections.abc import Mapping

from delivery.policy.standing import FRESH, Standing
from delivery.ports import TakenOver, TokenRefused


class MemoryLedger:
    """`delivery.ports.Ledger` in a dictionary."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._released: dict[str, int] = {}
        self._standings: dict[str, Standing] = {}

    async def take_over(self, queue: str) -> TakenOver:
        """The next token, and what was last recorded."""
        before = self._tokens.get(queue, 0)
        token = self._tokens[queue] = before + 1
        return TakenOver(
            token=token,
            standing=self._standings.get(queue, FRESH),
            clean=before == 0 or self._released.get(queue) == before,
        )

    async def still_held(self, tokens: Mapping[str, int]) -> frozenset[str]:
        """Those whose token is the latest."""
        return frozenset(queue for queue, token in tokens.items() if self._tokens.get(queue) == token)

    async def record(self, queue: str, token: int, standing: Standing) -> None:
        """Keep it, unless a later owner has drawn a token."""
        if self._tokens.get(queue) != token:
            raise TokenRefused(queue)
        if standing == FRESH:
            self._standings.pop(queue, None)
        else:
            self._standings[queue] = standing

    async def release(self, queue: str, token: int, settled_offset: int | None) -> None:
        """Note that this owner let go in order; where it stood is in Kafka."""
        self._released[queue] = token
