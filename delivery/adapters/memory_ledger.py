"""A ledger in this process: bounds what this worker does, and ends with it."""

from __future__ import annotations

from collections.abc import Mapping

from delivery.policy.standing import FRESH, Standing
from delivery.ports import TakenOver, TokenRefused


class MemoryLedger:
    """`delivery.ports.Ledger` in a dictionary."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._released: dict[str, tuple[int, int]] = {}
        self._standings: dict[str, Standing] = {}

    async def take_over(self, queue: str) -> TakenOver:
        """The next token, and what was last recorded."""
        before = self._tokens.get(queue, 0)
        token = self._tokens[queue] = before + 1
        released, settled_to = self._released.get(queue, (0, None))
        return TakenOver(
            token=token,
            standing=self._standings.get(queue, FRESH),
            clean=released == before,
            settled_to=settled_to,
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

    async def release(self, queue: str, token: int, settled_to: int) -> None:
        """Note where this owner stood: more than Kafka has, when the queue was lost before the last commit."""
        self._released[queue] = (token, settled_to)
