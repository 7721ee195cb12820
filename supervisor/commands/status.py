"""`delivery status`: for each configured endpoint its loop, and what waits in its queue."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.markup import escape
from rich.table import Table

from delivery.adapters.kafka_inspection import count, edges
from delivery.model import Endpoint, Partition
from delivery.naming import delivery_group, queue_topic
from delivery.ports import Unreachable
from supervisor.commands.ask_worker import Answers, ask
from supervisor.commands.kafka import connection_of, run, topics_of, unreachable
from supervisor.commands.tables import show
from supervisor.configuration import Configuration
from supervisor.lag import Lag, lag
from supervisor.view import LoopStateName

# Below this many offsets the records are read and counted: markers of transactions have offsets, too.
COUNTED_UP_TO: Final = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One endpoint. `lag` and `lost` are None when they are not known; `exact` is False when markers are counted."""

    tenant: str
    endpoint: str
    state: str
    reason: str = ""
    detail: str = ""
    next_start_in_s: float | None = None
    streak: int = 0
    attempts: int = 0
    queue: str
    queue_exists: bool | None
    lag: int | None
    exact: bool = True
    lost: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """What Kafka says: the queues that exist, with their lag; `fault` when it does not answer."""

    lags: Mapping[str, Lag]
    exact: frozenset[str] = frozenset()
    fault: str | None = None


def main(configuration: Configuration, *, as_json: bool) -> int:
    """Print it; 1 when Kafka did not answer."""
    answers = ask(configuration.http)
    queues = run(configuration, look(configuration))
    found = rows(configuration, answers, queues)
    if as_json:
        click.echo(json.dumps(as_data(found, answers, queues), ensure_ascii=False))
    else:
        _print(found, answers)
    if queues.fault is not None:
        click.echo(f"delivery: {queues.fault}", err=True)
        return 1
    return 0


async def look(configuration: Configuration) -> Queues:
    """Ask Kafka about all queues at once."""
    connection = connection_of(configuration)
    wanted = {queue_topic(configuration.prefix, e.tenant, e.name) for e in configuration.endpoints}
    try:
        async with topics_of(connection) as topics:
            partitions = [Partition(name, 0) for name in sorted(wanted & await topics.names())]
            committed = await topics.committed(delivery_group(configuration.prefix), partitions)
        found = {
            partition: lag(start=edge.start, end=edge.end, committed=committed[partition])
            for partition, edge in (await edges(connection, partitions)).items()
        }
        few = {p: (one.first, one.first + one.waiting) for p, one in found.items() if 0 < one.waiting <= COUNTED_UP_TO}
        counted = await count(connection, few)
    except Unreachable as error:
        return Queues(lags={}, fault=unreachable(configuration, error))
    found.update({p: dataclasses.replace(found[p], waiting=number) for p, number in counted.items()})
    exact = {p.topic for p, one in found.items() if one.waiting == 0 or p in counted}
    return Queues(lags={p.topic: one for p, one in found.items()}, exact=frozenset(exact))


def rows(configuration: Configuration, answers: Answers, queues: Queues) -> list[Row]:
    """One for each configured endpoint, in the order of the settings."""
    loops = answers.loops()
    return [
        _row(configuration, endpoint, loops.get((endpoint.tenant, endpoint.name)), answers, queues)
        for endpoint in configuration.endpoints
    ]


def _row(
    configuration: Configuration, endpoint: Endpoint, loop: Mapping[str, Any] | None, answers: Answers, queues: Queues
) -> Row:
    queue = queue_topic(configuration.prefix, endpoint.tenant, endpoint.name)
    found = queues.lags.get(queue)
    exists = None if queues.fault is not None else found is not None
    row = Row(
        tenant=endpoint.tenant,
        endpoint=endpoint.name,
        state="unknown",
        queue=queue,
        queue_exists=exists,
        lag=None if found is None else found.waiting,
        exact=queue in queues.exact,
        lost=None if found is None else found.lost,
    )
    if not endpoint.enabled:
        return dataclasses.replace(row, state=LoopStateName.DISABLED.value, detail="ENABLED=false")
    if loop is not None:
        names = ("state", "reason", "detail", "next_start_in_s", "streak", "attempts")
        return dataclasses.replace(row, **{name: loop[name] for name in names if name in loop})
    if not answers.workers:
        return dataclasses.replace(row, detail=answers.why)
    return dataclasses.replace(row, state="elsewhere", detail=f"not served by the worker at {answers.address}")


def as_data(found: Sequence[Row], answers: Answers, queues: Queues) -> dict[str, Any]:
    """For programs."""
    workers = [{k: v for k, v in worker.items() if k != "loops"} for worker in answers.workers]
    return {
        "endpoints": [dataclasses.asdict(row) for row in found],
        "worker": {"address": answers.address, "answers": bool(workers), "why": answers.why, "processes": workers},
        "kafka": {"answers": queues.fault is None, "why": queues.fault or ""},
    }


def _print(found: Sequence[Row], answers: Answers) -> None:
    table = Table("tenant", "endpoint", "state", "why", "starts in", box=None, pad_edge=False)
    table.add_column("lag", justify="right")
    for row in found:
        table.add_row(*(escape(cell) for cell in _cells(row)))
    show(table)
    if answers.workers:
        click.echo(f"workers asked: {len(answers.workers)}, from {answers.address} on")


def _cells(row: Row) -> tuple[str, ...]:
    why = ": ".join(text for text in (row.reason, row.detail) if text)
    state = f"unknown ({row.detail})" if row.state == "unknown" and row.detail else row.state
    starts = "" if row.next_start_in_s is None else f"{row.next_start_in_s:.0f} s"
    return (row.tenant, row.endpoint, state, "" if state != row.state else why, starts, _lag_text(row))


def _lag_text(row: Row) -> str:
    if row.queue_exists is False:
        return "queue missing"
    if row.lag is None:
        return "unknown"
    lost = f" ({row.lost} lost to retention)" if row.lost else ""
    return f"{'' if row.exact else '≤ '}{row.lag}{lost}"
