"""What the sweep keeps of a queue that is ours."""

from __future__ import annotations

import asyncio
import dataclasses

from delivery.loop import DeliveryLoop
from delivery.tenure import Tenure


@dataclasses.dataclass(slots=True, kw_only=True)
class Owned:
    """One owned queue: its tenure, its loop while it runs, and the timer of its next start."""

    tenure: Tenure
    loop: DeliveryLoop | None = None
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        """Whoever does so sees to its next start."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
