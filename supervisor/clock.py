"""The machine's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """`delivery.ports.Clock`."""

    def monotonic(self) -> float:
        """`time.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """`time.time`."""
        return time.time()
