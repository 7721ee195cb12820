"""What a loop writes down of how its endpoint stands: only what changed, and never for one that is well."""

from __future__ import annotations

from delivery.policy.standing import FRESH, Standing
from delivery.ports import Ledger, TokenRefused
from delivery.tenure import Tenure


class Recording:
    """One loop's memory of what the ledger holds. A refused write ends the tenure: the queue is another's."""

    def __init__(self, tenure: Tenure, ledger: Ledger) -> None:
        self._tenure = tenure
        self._ledger = ledger
        self._recorded = tenure.standing

    async def remember(self) -> None:
        """The standing as it is, if it is not what was written last."""
        await self.record(FRESH if self._tenure.standing == FRESH else self._tenure.standing)

    async def forget(self) -> None:
        """After a record is done: nothing is asked when nothing was written before it."""
        if self._recorded is not FRESH:
            await self.remember()

    async def record(self, standing: Standing) -> None:
        """This standing, if it is not what was written last."""
        if standing != self._recorded:
            await self._write(standing)

    async def tell_next_owner(self) -> None:
        """What came of what was under way when the queue was lost: the next owner waits for it.

        It is told only after it has been said that there is something to wait for.
        """
        await self._tenure.let_go()
        await self._write(self._tenure.standing)

    async def _write(self, standing: Standing) -> None:
        self._recorded = standing
        try:
            await self._ledger.record(self._tenure.partition.topic, self._tenure.token, standing)
        except TokenRefused:
            self._tenure.lose()
