"""What a loop writes down of how its endpoint stands: only what changed, and never for one that is well."""

from __future__ import annotations

from delivery.policy.handing_over import reserved
from delivery.policy.standing import FRESH, Standing
from delivery.ports import Clock, Ledger, TokenRefused
from delivery.tenure import Tenure


class Recording:
    """Writes for one tenure. A refused write ends it: the queue is another's."""

    def __init__(self, tenure: Tenure, ledger: Ledger) -> None:
        self._tenure = tenure
        self._ledger = ledger

    async def remember(self) -> None:
        """The standing as it is, if it is not what was written last."""
        await self.record(self._tenure.standing)

    async def forget(self) -> None:
        """After a record is done: nothing is asked when nothing was written before it."""
        if self._tenure.recorded is not FRESH:
            await self.remember()

    async def reserve(self, offset: int, timeout_s: float, clock: Clock) -> bool:
        """Write down what the request could bring, where a successor must not do without: never for a healthy one.

        `timeout_s` is when it is over at the latest. True when something was written.
        """
        tenure = self._tenure
        standing = reserved(tenure.standing, tenure.endpoint, clock.monotonic(), clock.wall(), timeout_s)
        if standing is None and offset < tenure.careful_to:
            standing = tenure.standing
        if standing is None:
            return False
        await self.record(standing)
        return True

    async def record(self, standing: Standing) -> None:
        """This standing, if it is not what was written last."""
        if standing != self._tenure.recorded:
            await self.write(standing)

    async def tell_next_owner(self) -> None:
        """What came of what was under way when the queue was lost: the next owner waits for it.

        It is told only after it has been said that there is something to wait for.
        """
        await self._tenure.let_go()
        await self.write(self._tenure.standing)

    async def write(self, standing: Standing) -> None:
        """This standing, whatever was written last."""
        # The very object, since that is what is looked for after every delivery.
        self._tenure.recorded = FRESH if standing == FRESH else standing
        self._tenure.writing = True
        try:
            await self._ledger.record(self._tenure.partition.topic, self._tenure.token, standing)
        except TokenRefused:
            self._tenure.lose()
        finally:
            self._tenure.writing = False
