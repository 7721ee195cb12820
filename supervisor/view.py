"""What a worker shows of itself to its HTTP port and to tests."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Protocol


class LoopStateName(enum.StrEnum):
    """The closed set of states that an endpoint's loop can be in."""

    RUNNING = "running"
    WAITING = "waiting"
    HALTED = "halted"
    PAUSED = "paused"
    DISABLED = "disabled"
    HANDING_OVER = "handing_over"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """How one endpoint stands with this worker. `reason` is a HaltReason when halted; `since` is Unix time."""

    tenant: str
    endpoint: str
    state: LoopStateName
    reason: str = ""
    detail: str = ""
    since: float | None = None
    next_start_in_s: float | None = None
    streak: int = 0
    attempts: int = 0


class WorkerView(Protocol):
    """Asked by `/livez`, `/readyz` and `/status`; answers at once, from memory."""

    def dead_tasks(self) -> Sequence[str]:
        """Names of tasks that must live for ever and do not."""
        ...

    def not_ready(self) -> Sequence[str]:
        """Why this worker is not ready, in words; empty when it is a member of both groups."""
        ...

    def loops(self) -> Sequence[LoopState]:
        """The endpoints that this worker owns, and those it was told not to serve."""
        ...
