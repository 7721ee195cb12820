"""What a loop writes down of how its endpoint stands: only what changed, and never for one that is well."""

from __future__ import annotations

from delivery.policy.handing_over import reserved
from delivery.policy.standing import FRESH, Standing
from delivery.ports import Clock, Ledger, TokenRefused
from delivery.settle import Settle
from delivery.tenure import Tenure


class Recording:
    """Writes for one tenure. A refused write ends it: the queue is another's."""

    def __init__(self, tenure: Tenure, ledger: Ledger, settle: Settle) -> None:
        self._tenure = tenure
        self._ledger = ledger
        self._settle = settle

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
        """This standing, if it is not what was written last.

        The attempts of one record are kept, and a next owner begins where Kafka is. So another record's take their
        place only when Kafka has everything before that one: otherwise an owner that is killed just then leaves
        behind a record that has had all its attempts, and nothing that says so.
        """
        tenure = self._tenure
        if standing == tenure.recorded:
            return
        with tenure.telling():
            if _attempted(standing) != _attempted(tenure.recorded):
                await self._settle.keep_up(tenure, 0)
                if tenure.lost:
                    return
            await self._write(standing)

    async def tell_next_owner(self) -> None:
        """What came of what was under way when the queue was lost: the next owner waits for it.

        It is told only after it has been said that there is something to wait for.
        """
        await self._tenure.let_go()
        await self._write(self._tenure.standing)

    async def _write(self, standing: Standing) -> None:
        async with self._tenure.pen:
            await write(self._tenure, self._ledger, standing)


def _attempted(standing: Standing) -> int | None:
    """The offset of the record of which it says that requests were made."""
    progress = standing.in_hand
    return None if progress is None or progress.requests == progress.crashes == 0 else progress.offset


async def write(tenure: Tenure, ledger: Ledger, standing: Standing) -> None:
    """This standing, whatever was written last. Whoever calls has the tenure's pen."""
    # The very object, since that is what is looked for after every delivery.
    tenure.recorded = FRESH if standing == FRESH else standing
    with tenure.telling():
        try:
            await ledger.record(tenure.partition.topic, tenure.token, standing)
        except TokenRefused:
            tenure.lose()
