"""What a worker gives to all its loops."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable

from delivery.attempts import Attempts
from delivery.limits import Limits, Slots
from delivery.model import Endpoint
from delivery.ports import Clock, Keys, Ledger, Member, Meter, Sender
from delivery.settle import Settle


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every loop of a worker shares.

    `disable(endpoint, detail)` orders that nothing is sent until a person resumes it, or raises ControlUnwritable;
    `chance` gives uniform numbers in [0, 1).
    """

    member: Member
    sender: Sender
    keys: Keys
    settle: Settle
    ledger: Ledger
    limits: Limits
    slots: Slots
    attempts: Attempts
    meter: Meter
    clock: Clock
    disable: Callable[[Endpoint, str], Awaitable[None]]
    chance: Callable[[], float] = random.random
