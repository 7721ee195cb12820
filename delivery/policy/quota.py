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


def taken(window: Window | None, quota: Quota, now_s: float) -> tuple[Window, bool, float]:
    """The window after one request was asked for, whether there was one, and the seconds until the window turns.

    Windows begin at multiples of their length since the Unix epoch, so that all workers mean the same. A clock that is
    set back opens no new window.
    """
    began_s = math.floor(now_s / quota.window_s) * quota.window_s
    if window is None or began_s > window.began_s:
        window = Window(began_s=began_s)
    left_s = max(0.0, window.began_s + quota.window_s - now_s)
    if window.used >= quota.requests:
        return window, False, left_s
    return dataclasses.replace(window, used=window.used + 1), True, left_s
