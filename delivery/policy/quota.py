"""A quota's window: so many requests, then none until it turns."""

from __future__ import annotations

import dataclasses
import math

from delivery.model import Quota


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When it began (Unix time), and how many requests were taken in it."""

    began_s: float
    used: int = 0


def taken(window: Window | None, quota: Quota, now_s: float) -> tuple[Window, float | None]:
    """The window after one request was asked for, and None; or, when all are taken, seconds until it turns.

    Windows begin at multiples of their length since the Unix epoch, so that all workers mean the same. A clock that is
    set back opens no new window.
    """
    began_s = math.floor(now_s / quota.window_s) * quota.window_s
    if window is None or began_s > window.began_s:
        window = Window(began_s=began_s)
    if window.used >= quota.requests:
        return window, max(0.0, window.began_s + quota.window_s - now_s)
    return dataclasses.replace(window, used=window.used + 1), None
