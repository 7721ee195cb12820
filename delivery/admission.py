"""What stands between a decision to send and the request: the limits that an endpoint shares with others."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Final

from delivery.in_flight import InFlight
from delivery.limits import Ask, Hold
from delivery.model import Delivered, HaltReason, Quota, Rate, Retry, RetryBudget, Verdict, WaitSource
from delivery.policy.backoff import asked_s, spread_s
from delivery.policy.steps import Halt, Send, Step, WaitUntil
from delivery.ports import LedgerAway
from delivery.surroundings import Surroundings
from delivery.tenure import Tenure

# What cannot be counted is waited for as long as a short outage of Redis or a failover may take; then the loop halts.
AWAY_S: Final = 5.0
AWAY_LOOK_S: Final = 0.5
# What was granted and is not used within this time, since the process stood still, is given up: many such at once are
# no rate.
LATE_S: Final = 0.25
# Over a wait as short as that for a turn a slot is kept: by the time it was got again the turn would be gone.
SHORT_S: Final = 1.0


class Admission:
    """One loop's way to its next request.

    A wait is written into the standing as the moment before which nothing is sent, so that it costs no attempt, ends
    for orders and stops like every other, and an event that cannot live that long expires at once.
    """

    def __init__(self, tenure: Tenure, surroundings: Surroundings) -> None:
        self._tenure = tenure
        self._shared = tenure.endpoint.shared
        self._limits = surroundings.limits
        self._in_flight = InFlight(tenure, surroundings.slots, surroundings.clock)
        self._clock = surroundings.clock
        self._chance = surroundings.chance
        self._granted_at: float | None = None
        self._turn_at: float | None = None
        self._turn_unused = False
        # The end of the window in which a request of the quota was taken that has not been made.
        self._taken_until = float("-inf")
        # What is asked of the quota, until there is an answer.
        self._ask: Ask | None = None
        # The record whose first attempt has earned its part of a retry.
        self._earned_by: int | None = None
        # When what cannot be counted was asked for in vain for the first and for the last time.
        self._away_since: float | None = None
        self._away_at = float("-inf")
        self._waited: WaitSource | None = None

    async def before(self, step: Step) -> None:
        """Whoever is going to do something else than send leaves the slot, or the place in the line, to others."""
        if isinstance(step, Send):
            return
        if not isinstance(step, WaitUntil) or step.at - self._clock.monotonic() > SHORT_S:
            await self.leave()

    async def leave(self) -> None:
        """The request is over, or there will be none."""
        await self._in_flight.leave()

    def use(self) -> bool:
        """Whether one request may be made now. True for an endpoint that shares nothing: nobody is asked about it."""
        if self._shared.none:
            return True
        granted_at, self._granted_at = self._granted_at, None
        if granted_at is None:
            return False
        # Orders may have come in between; what was true an hour ago is to be asked again.
        in_time = self._clock.monotonic() - granted_at <= LATE_S
        self._drop_turn(unused=not in_time)
        return in_time

    async def ask(self) -> Halt | None:
        """One step on the way: the next request is granted, or there is something to wait for, or a reason to halt."""
        self._tenure.waits_for = ""
        scope, rate, budget, quota = self._shared.scope, self._shared.rate, self._shared.budget, self._shared.quota
        # A budget says, too, whether its scope has to wait. It is asked last, and then once.
        if scope is not None and (budget is None or rate is not None or self._shared.max_in_flight is not None):
            hold = await self._limits.held(scope)
            if hold is not None:
                self._leave_alone(scope, hold)
                return None
        try:
            if not await self._in_flight.enter():
                self._waited = WaitSource.SLOT
                return None
        except LedgerAway:
            return self._without_book("the requests at once")
        if rate is not None and not await self._has_turn(rate):
            return None
        if scope is not None and budget is not None:
            allowed = await self._claim(scope, budget)
            if isinstance(allowed, Hold):
                self._leave_alone(scope, allowed)
                return None
            if not allowed:
                return Halt(reason=HaltReason.RETRY_BUDGET, detail=f"scope {scope}")
        if quota is not None:
            return await self._take(quota)
        self._grant()
        return None

    def _grant(self) -> None:
        self._away_since = None
        self._granted_at = self._clock.monotonic()

    def _leave_alone(self, scope: str, hold: Hold) -> None:
        wait_s = hold.left_s + spread_s(hold.asked_s, self._chance())
        # When the scope is free again its turns are counted anew: old ones would all be used at once.
        self._drop_turn(unused=False)
        self._wait(wait_s, WaitSource.SCOPE, f"scope {scope}: {hold.source}")

    async def _claim(self, scope: str, budget: RetryBudget) -> Hold | bool:
        """Every request for a record after its first is a retry, also one that begins a new run of attempts."""
        progress = self._tenure.standing.in_hand
        if progress is None:
            raise RuntimeError("no record in hand")
        retry = progress.requests > 0
        if not retry and self._earned_by == progress.offset:
            hold = await self._limits.held(scope)
            return True if hold is None else hold
        allowed = await self._limits.attempt(scope, budget, retry=retry)
        if allowed is True and not retry:
            self._earned_by = progress.offset
        return allowed

    async def _has_turn(self, rate: Rate) -> bool:
        scope, now = self._shared.scope or f"endpoint:{self._tenure.endpoint.label}", self._clock.monotonic()
        if self._turn_at is not None and now - self._turn_at > LATE_S:
            self._drop_turn(unused=True)
        if self._turn_at is None:
            # Of a scope it is lost: the others' turns count on it.
            unused = self._turn_unused and self._shared.scope is None
            wait_s = await self._limits.turn(scope, rate, unused=unused)
            self._turn_unused = False
            now = self._clock.monotonic()
            self._turn_at = now + wait_s
        if self._turn_at > now:
            self._wait(self._turn_at - now, WaitSource.RATE, "its turn in RATE")
            return False
        return True

    def _drop_turn(self, *, unused: bool) -> None:
        self._turn_unused = unused and self._turn_at is not None
        self._turn_at = None

    async def _take(self, quota: Quota) -> Halt | None:
        asked_at = self._clock.monotonic()
        if asked_at >= self._taken_until:
            endpoint = self._tenure.endpoint
            self._ask = self._ask or Ask(endpoint=endpoint.name, id=uuid.uuid4().hex)
            try:
                taken = await self._limits.take(endpoint.tenant, quota, self._ask)
            except LedgerAway:
                return self._without_book("the quota")
            self._ask = None
            if not taken.granted:
                self._away_since = None
                detail = f"{quota.requests} in {quota.window_s:g} s"
                return Halt(reason=HaltReason.QUOTA, detail=detail, until=self._clock.monotonic() + taken.left_s)
            self._taken_until = asked_at + taken.left_s
        self._grant()
        return None

    def _without_book(self, uncounted: str) -> Halt | None:
        now = self._clock.monotonic()
        if self._away_since is None or now - self._away_at > AWAY_S:
            # It waited for something else meanwhile: of that time nobody knows that Redis was away.
            self._away_since = now
        self._away_at = now
        left_s = self._away_since + AWAY_S - now
        if left_s <= 0:
            self._away_since = None
            return Halt(reason=HaltReason.REDIS, detail=f"{uncounted} cannot be counted")
        self._wait(min(AWAY_LOOK_S, left_s), WaitSource.REDIS, f"Redis, to count {uncounted}")
        return None

    def waited(self) -> WaitSource | None:
        """The limit that the next request had to wait for last, if any. Asked once for each request."""
        waited, self._waited = self._waited, None
        return waited

    def _wait(self, wait_s: float, source: WaitSource, what: str) -> None:
        standing = self._tenure.standing
        until = max(standing.not_before, self._clock.monotonic() + wait_s)
        self._tenure.standing = dataclasses.replace(standing, not_before=until)
        self._tenure.waits_for = what
        self._waited = source

    async def heard(self, verdict: Verdict) -> None:
        """What the endpoint asks for holds for its whole scope, from before anybody else may come."""
        self._taken_until = float("-inf")
        await self._hold(verdict)
        await self.leave()

    async def _hold(self, verdict: Verdict) -> None:
        if self._shared.scope is None or not isinstance(verdict, Delivered | Retry):
            return
        wait_s, said = verdict.hint_s, "quota used up"
        if isinstance(verdict, Retry):
            progress = self._tenure.standing.in_hand
            wait_s = asked_s(self._tenure.endpoint.retry, progress.attempts if progress else 1, verdict)
            said = str(verdict.status_class)
        if wait_s is not None:
            await self._limits.hold(self._shared.scope, wait_s, f"{said} from {self._tenure.endpoint.label}")
