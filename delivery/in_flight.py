"""One loop's slot among the requests that its scope may have at once."""

from __future__ import annotations

import contextlib
from typing import Final

from delivery.limits import Place, Slots
from delivery.policy.slots import LOOK_S
from delivery.ports import Clock, LedgerAway
from delivery.tenure import Tenure

# A slot is leased for as long as a request may take and for this: what is done between asking for it and sending, and
# what is done with the answer before it is given back.
MARGIN_S: Final = 5.0


class InFlight:
    """Always inside when the scope has no such limit, and then nobody is asked."""

    def __init__(self, tenure: Tenure, slots: Slots, clock: Clock) -> None:
        self._tenure = tenure
        self._slots = slots
        self._clock = clock
        self._place: Place | None = None

    async def enter(self) -> bool:
        """Whether the loop has a slot; if not, it has waited in the line, at most until it has to look again.

        Raises LedgerAway.
        """
        endpoint = self._tenure.endpoint
        scope, most = endpoint.shared.scope, endpoint.shared.max_in_flight
        if scope is None or most is None:
            return True
        place = self._place = Place(
            scope=scope,
            who=f"{endpoint.label}/{self._tenure.token}",
            most=most,
            lease_s=endpoint.timeout_s + MARGIN_S,
            wake=self._tenure.wake,
        )
        if await self._slots.enter(place):
            return True
        self._tenure.waits_for = f"its turn among {most} at once in scope {scope}"
        await self._tenure.wait(LOOK_S, until=self._clock.monotonic() + LOOK_S)
        return False

    async def leave(self) -> None:
        """Give back the slot, or the place in the line, if there is one. While Redis is away it ends by itself."""
        place, self._place = self._place, None
        if place is not None:
            with contextlib.suppress(LedgerAway):
                await self._slots.leave(place)
