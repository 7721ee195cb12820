"""What waits in a queue, from three offsets. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """`waiting` offsets from `first` on are still to be read; `lost` ones were deleted before they were read."""

    first: int
    waiting: int
    lost: int


def lag(*, start: int, end: int, committed: int | None) -> Lag:
    """`start` is the first offset that the log still has, `end` the one after its last, `committed` the next to read.

    An offset committed before the log's start says nothing of what waits: those records are gone. One behind the
    end belongs to a topic that has been made anew, which is read from its start. So ask for `committed` before the
    other two: what is settled between the questions must not look like that.
    """
    first = start if committed is None or committed > end else max(committed, start)
    lost = 0 if committed is None or committed > end else max(0, start - committed)
    return Lag(first=first, waiting=end - first, lost=lost)
