"""The live board: which workers live, and how the endpoints stand, as the workers tell each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """One worker. `since` is Unix time; the transactional ids are those that its fan-out may have open now."""

    worker: str
    host: str
    pid: int
    since: float
    transactional_ids: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndpointState:
    """How an endpoint stands with the worker that owns its queue, or owned it last.

    `since` and `next_start_at` are Unix time by that worker's clock. `reason` is a HaltReason when it is halted.
    """

    tenant: str
    endpoint: str
    state: str
    worker: str
    host: str
    reason: str = ""
    detail: str = ""
    since: float | None = None
    next_start_at: float | None = None
    streak: int = 0
    attempts: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What a worker learns when it renews its entry.

    `expired` are the entries of others that were not renewed in time; no other worker gets them. `living` are the
    entries of all that live, this worker included; empty unless there are expired ones. `was_there` is False when the
    worker's own entry had gone: it is new, was not heard of for too long, or the store was emptied.
    """

    expired: tuple[WorkerEntry, ...] = ()
    living: tuple[WorkerEntry, ...] = ()
    was_there: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BoardSeen:
    """The whole board: the workers that live, by id, and the last state of each endpoint, by tenant and name."""

    living: Mapping[str, WorkerEntry]
    states: Mapping[tuple[str, str], EndpointState]
