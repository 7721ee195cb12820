"""Who is told of every attempt and decision, and the log as one of them."""

from __future__ import annotations

from typing import Protocol

import structlog

from delivery.model import AttemptRecord, Decided, Ended, NextStep, Sending, VerdictName
from delivery.policy.plain_record import plain

log = structlog.get_logger(__name__)


class Attempts(Protocol):
    """Whoever wants to know. What loops do about attempts is logged and counted from these records and nowhere else."""

    def sending(self, record: Sending) -> None:
        """A request is about to be made; no byte of it has left."""
        ...

    def ended(self, record: Ended) -> None:
        """That request has ended, or was not made."""
        ...

    def decided(self, record: Decided) -> None:
        """A dead letter was acknowledged, or a loop halted."""
        ...


class ToldToAll:
    """Tells each of them, in order. One that raises ends the loop that told it, like any fault of ours."""

    def __init__(self, *listeners: Attempts) -> None:
        self._listeners = listeners

    def sending(self, record: Sending) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.sending(record)

    def ended(self, record: Ended) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.ended(record)

    def decided(self, record: Decided) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.decided(record)


class AttemptLog:
    """One line for each attempt that was no delivery and for each dead letter.

    Of halts the sweep tells, which knows those of crashes, too.
    """

    def sending(self, record: Sending) -> None:
        """No line: most events are delivered, and `ended` says it all."""

    def ended(self, record: Ended) -> None:
        """A line unless the event was delivered."""
        if record.verdict is not VerdictName.DELIVERED:
            log.info("attempt", **_fields(record))

    def decided(self, record: Decided) -> None:
        """A line for a dead letter."""
        if record.decision.step is NextStep.DEAD_LETTER:
            log.info("dead letter", **_fields(record))


def _fields(record: AttemptRecord) -> dict[str, object]:
    """What the record says; the line's own name says which phase it is."""
    return {name: value for name, value in plain(record).items() if name != "phase" and value not in (None, [])}
