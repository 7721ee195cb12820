"""`delivery status`: how every configured endpoint stands in the whole cluster, and what waits in its queue."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from delivery.board import BoardSeen
from delivery.ports import LedgerAway
from supervisor.commands.ask_worker import Answers, ask
from supervisor.commands.kafka import run
from supervisor.commands.queues import Queues, look
from supervisor.commands.status_rows import UNKNOWN, Row, rows
from supervisor.commands.tables import show
from supervisor.configuration import Configuration
from supervisor.connections import board_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was asked. `board` is None while Redis is away, and `note` says so."""

    answers: Answers
    queues: Queues
    board: BoardSeen | None = None
    note: str = ""


def main(configuration: Configuration, *, as_json: bool) -> int:
    """Print it; 1 when Kafka did not answer."""
    seen = run(configuration, _see(configuration))
    found = rows(configuration, seen.queues, seen.board, seen.answers, time.time())
    if as_json:
        click.echo(json.dumps(as_data(found, seen), ensure_ascii=False))
    else:
        _print(found, seen)
    if seen.queues.fault is not None:
        click.echo(f"delivery: {seen.queues.fault}", err=True)
        return 1
    return 0


async def _see(configuration: Configuration) -> Seen:
    answers, queues, (board, note) = await asyncio.gather(
        asyncio.to_thread(ask, configuration.http), look(configuration), _see_board(configuration)
    )
    return Seen(answers=answers, queues=queues, board=board, note=note)


async def _see_board(configuration: Configuration) -> tuple[BoardSeen | None, str]:
    try:
        async with board_of(configuration) as board:
            return await board.see(), ""
    except LedgerAway as error:
        return None, f"DELIVERY_REDIS__URL: {error}: only the worker at DELIVERY_HTTP__LISTEN could be asked"


def as_data(found: Sequence[Row], seen: Seen) -> dict[str, Any]:
    """For programs."""
    answers, queues, board = seen.answers, seen.queues, seen.board
    processes = [{k: v for k, v in worker.items() if k != "loops"} for worker in answers.workers]
    living = () if board is None else board.living.values()
    return {
        "endpoints": [dataclasses.asdict(row) for row in found],
        "workers": [{"worker": w.worker, "host": w.host, "pid": w.pid, "since": w.since} for w in living],
        "worker": {"address": answers.address, "answers": bool(processes), "why": answers.why, "processes": processes},
        "kafka": {"answers": queues.fault is None, "why": queues.fault or ""},
        "redis": {"answers": board is not None, "why": seen.note},
    }


def _print(found: Sequence[Row], seen: Seen) -> None:
    table = Table("tenant", "endpoint", "state", "why", "for", "starts in", box=None, pad_edge=False)
    table.add_column("lag", justify="right")
    table.add_column("oldest", justify="right")
    table.add_column("owner")
    now = time.time()
    for row in found:
        table.add_row(*(escape(cell) for cell in _cells(row, now)))
    show(table)
    if seen.board is not None:
        click.echo(f"workers on the live board: {len(seen.board.living)}")
        return
    click.echo(f"note: {seen.note}")
    if seen.answers.workers:
        click.echo(f"workers asked: {len(seen.answers.workers)}, from {seen.answers.address} on")


def _cells(row: Row, now: float) -> tuple[str, ...]:
    why = ": ".join(text for text in (row.reason, row.detail) if text)
    state = f"{UNKNOWN} ({row.detail})" if row.state == UNKNOWN and row.detail else row.state
    return (
        row.tenant,
        row.endpoint,
        state,
        "" if state != row.state else why,
        "" if row.since is None else duration_text(now - row.since),
        "" if row.next_start_in_s is None else f"{row.next_start_in_s:.0f} s",
        _lag_text(row),
        "" if row.oldest_event_age_s is None else duration_text(row.oldest_event_age_s),
        "/".join(text for text in (row.host, row.worker) if text),
    )


def duration_text(seconds: float) -> str:
    """For people: the two largest units at most, as in `2 h 5 min`."""
    minutes, whole = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (whole, "s")]
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number or unit == "s")


def _lag_text(row: Row) -> str:
    if row.queue_exists is False:
        return "queue missing"
    if row.lag is None:
        return "unknown"
    lost = f" ({row.lost} lost to retention)" if row.lost else ""
    stuck = ", more behind an open transaction" if row.behind_open_transaction else ""
    return f"{'' if row.exact else '≤ '}{row.lag}{lost}{stuck}"
