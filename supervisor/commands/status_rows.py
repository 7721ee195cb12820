"""What `delivery status` shows of each endpoint, from what Kafka, the live board and a worker say. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from delivery.board import BoardSeen, EndpointState
from delivery.model import Endpoint, HaltReason
from delivery.naming import queue_topic
from supervisor.commands.ask_worker import Answers
from supervisor.commands.queues import Queues
from supervisor.configuration import Configuration
from supervisor.view import LoopStateName

OWNER_LOST: Final = "owner lost"
NO_OWNER: Final = "no owner"
REMOVED: Final = "removed endpoint"
ELSEWHERE: Final = "elsewhere"
UNKNOWN: Final = "unknown"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One endpoint. What is None is not known; `exact` is False when markers are counted.
    `lag` counts what can be read: what stands `behind_open_transaction` comes on top.

    `since` is Unix time. `worker` and `host` are those of the owner, or of the last one where the owner is lost.
    """

    tenant: str
    endpoint: str
    state: str
    reason: str = ""
    detail: str = ""
    since: float | None = None
    next_start_in_s: float | None = None
    streak: int = 0
    attempts: int = 0
    host: str = ""
    worker: str = ""
    queue: str
    queue_exists: bool | None
    lag: int | None
    exact: bool = True
    lost: int | None = None
    oldest_event_age_s: float | None = None
    behind_open_transaction: bool = False


def rows(
    configuration: Configuration, queues: Queues, board: BoardSeen | None, answers: Answers, now: float
) -> list[Row]:
    """One for each configured endpoint, in the order of the settings; then those of removed endpoints.

    `now` is Unix time. `board` is None while Redis is away: then the worker that answered has to do.
    """
    view = _View(configuration, queues, board, answers, now)
    removed = [
        dataclasses.replace(
            view.of_queue(tenant, name, queue), state=REMOVED, detail="its queue is neither filled nor read"
        )
        for queue, (tenant, name) in queues.removed.items()
    ]
    return [*(view.of(endpoint) for endpoint in configuration.endpoints), *removed]


class _View:
    def __init__(
        self, configuration: Configuration, queues: Queues, board: BoardSeen | None, answers: Answers, now: float
    ) -> None:
        self._prefix = configuration.prefix
        self._queues = queues
        self._board = board
        self._answers = answers
        self._loops = answers.loops()
        self._now = now

    def of_queue(self, tenant: str, name: str, queue: str) -> Row:
        """What Kafka says."""
        found = self._queues.waiting.get(queue)
        oldest_ms = None if found is None else found.oldest_ms
        return Row(
            tenant=tenant,
            endpoint=name,
            state=UNKNOWN,
            queue=queue,
            queue_exists=None if self._queues.fault is not None else found is not None,
            lag=None if found is None else found.lag.waiting,
            exact=found is not None and found.exact,
            lost=None if found is None else found.lag.lost,
            oldest_event_age_s=None if oldest_ms is None else round(max(0.0, self._now - oldest_ms / 1000), 3),
            behind_open_transaction=queue in self._queues.held_up,
        )

    def of(self, endpoint: Endpoint) -> Row:
        """One configured endpoint."""
        row = self.of_queue(endpoint.tenant, endpoint.name, queue_topic(self._prefix, endpoint.tenant, endpoint.name))
        if not endpoint.enabled:
            return dataclasses.replace(row, state=LoopStateName.DISABLED.value, detail="ENABLED=false")
        name = (endpoint.tenant, endpoint.name)
        told = None if self._board is None else self._board.states.get(name)
        if self._board is not None and told is not None and told.worker in self._board.living:
            return self._owned(row, told)
        if name in self._loops:
            return self._said(row, self._loops[name])
        if self._board is None:
            return self._unasked(row)
        return self._unowned(row, self._board, told)

    def _owned(self, row: Row, told: EndpointState) -> Row:
        starts_in_s = None if told.next_start_at is None else round(max(0.0, told.next_start_at - self._now), 3)
        return dataclasses.replace(
            row,
            state=told.state,
            reason=told.reason,
            detail=told.detail,
            since=told.since,
            next_start_in_s=starts_in_s,
            streak=told.streak,
            attempts=told.attempts,
            host=told.host,
            worker=told.worker,
        )

    def _said(self, row: Row, loop: Mapping[str, Any]) -> Row:
        names = ("state", "reason", "detail", "since", "next_start_in_s", "streak", "attempts")
        return dataclasses.replace(row, **{name: loop[name] for name in names if name in loop})

    def _unasked(self, row: Row) -> Row:
        if not self._answers.workers:
            return dataclasses.replace(row, detail=self._answers.why)
        return dataclasses.replace(row, state=ELSEWHERE, detail=f"not served by the worker at {self._answers.address}")

    def _unowned(self, row: Row, board: BoardSeen, told: EndpointState | None) -> Row:
        if row.queue_exists is False:
            return self._halted(row, HaltReason.QUEUE_MISSING, row.queue)
        if row.queue in self._queues.troubles:
            return self._halted(row, HaltReason.QUEUE_MISCONFIGURED, self._queues.troubles[row.queue])
        if told is not None:
            last = ": ".join(text for text in (told.state, told.reason, told.detail) if text)
            return dataclasses.replace(
                row, state=OWNER_LOST, detail=f"last known as {last}", host=told.host, worker=told.worker
            )
        if not board.living:
            return dataclasses.replace(row, detail="no worker runs")
        return dataclasses.replace(row, state=NO_OWNER, detail="no worker has taken its queue over yet")

    def _halted(self, row: Row, reason: HaltReason, detail: str) -> Row:
        return dataclasses.replace(row, state=LoopStateName.HALTED.value, reason=reason.value, detail=detail)
