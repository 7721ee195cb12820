"""Notes in the control topic: that a source partition or a queue has been read before.

Kafka forgets a group's offset when the group was empty for long, or when the topic is deleted. Then a partition that
had been read looks like one that never was; only a note tells them apart.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Final

from delivery.model import Partition
from delivery.policy.dead_letter import time_text

_SOURCE: Final = "note/source/"
_QUEUE: Final = "note/queue/"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Reading began at the offset `first`; `position` is the note's own offset in the control topic."""

    position: int
    first: int


def source_key(partition: Partition) -> str:
    """For a partition of a source topic."""
    return f"{_SOURCE}{partition.topic}/{partition.partition}"


def queue_key(queue: str) -> str:
    """For a queue topic."""
    return f"{_QUEUE}{queue}"


def note_value(first: int, at_ms: int) -> bytes:
    """The record's value."""
    return json.dumps({"first": first, "at": time_text(at_ms)}).encode()


def is_note(key: str) -> bool:
    """Whether a control record is a note at all."""
    return key.startswith((_SOURCE, _QUEUE))


def read_note(value: bytes, position: int) -> Note | None:
    """Read a note's value; None when it cannot be read."""
    try:
        return Note(position=position, first=int(json.loads(value)["first"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
