"""What a worker shows of itself to its HTTP port and to tests."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Protocol

from delivery.model import HaltReason
from delivery.policy.orders import Order, bar
from delivery.tenure import Tenure


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


def loop_state(tenure: Tenure, now: float, *, runs: bool, waiting_until: float | None) -> LoopState:
    """How an endpoint stands that this worker owns; `runs`: it has a loop, which may wait until a moment."""
    standing, progress = tenure.standing, tenure.standing.in_hand
    starts_at = waiting_until if runs else standing.due_at
    state = LoopState(
        tenant=tenure.endpoint.tenant,
        endpoint=tenure.endpoint.name,
        state=LoopStateName.HALTED,
        reason=str(standing.halt or ""),
        detail=standing.halt_detail,
        since=standing.halted_wall_s,
        next_start_in_s=None if starts_at is None else round(max(0.0, starts_at - now), 3),
        streak=standing.streak,
        attempts=progress.attempts if progress is not None else 0,
    )
    barred, order = bar(tenure.orders), tenure.orders.paused or tenure.orders.disabled
    if barred is not None and order is not None:
        return dataclasses.replace(
            state,
            state=LoopStateName.PAUSED if barred is HaltReason.PAUSED else LoopStateName.DISABLED,
            reason=str(barred),
            detail=_told(order),
            since=order.at_ms / 1000,
            next_start_in_s=None,
        )
    if not runs:
        return state
    name = LoopStateName.RUNNING if waiting_until is None else LoopStateName.WAITING
    detail = "" if waiting_until is None else tenure.waits_for
    return dataclasses.replace(state, state=name, reason="", detail=detail, since=None)


def offset_lost_states(tenures: Iterable[Tenure]) -> list[LoopState]:
    """Those that stand still until an operator says where they go on."""
    return [
        LoopState(
            tenant=tenure.endpoint.tenant,
            endpoint=tenure.endpoint.name,
            state=LoopStateName.HALTED,
            reason=str(HaltReason.OFFSET_LOST),
            detail="resume --from oldest|latest",
            since=tenure.offset_lost_since,
        )
        for tenure in tenures
        if tenure.offset_lost
    ]


def _told(order: Order) -> str:
    return ", ".join(text for text in (order.detail, f"by {order.by}" if order.by else "") if text)


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
