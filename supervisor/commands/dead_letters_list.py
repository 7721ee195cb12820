"""`delivery dead-letters list`: how many there are of each kind, and the newest of them."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, Final

import click
from rich.markup import escape
from rich.table import Table

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.model import Partition
from delivery.policy.dead_letter import time_text
from delivery.policy.letter_book import Entry, LetterBook
from delivery.policy.letters import Kind, Letter, read_letter
from supervisor.commands.dead_letters import Wanted, at_offsets, read_book, readable, topics_with_letters
from supervisor.commands.kafka import connection_of, run, topics_of
from supervisor.commands.tables import show
from supervisor.configuration import Configuration

NONE: Final = "–"
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


class Totals:
    """Letters by kind, with the time of the oldest and of the newest."""

    def __init__(self) -> None:
        self.of: dict[Kind, tuple[int, int, int]] = {}
        self.count = 0

    def add(self, entry: Entry) -> None:
        """Count it."""
        self.count += 1
        count, oldest, newest = self.of.get(entry.kind, (0, entry.at_ms, entry.at_ms))
        self.of[entry.kind] = (count + 1, min(oldest, entry.at_ms), max(newest, entry.at_ms))


def main(configuration: Configuration, wanted: Wanted, *, as_json: bool, limit: int) -> int:
    """Print it. Raises Misused or Failed."""
    if as_json:
        run(configuration, _print_lines(configuration, wanted))
        return 0
    books = run(configuration, _read(configuration, wanted))
    totals, newest = Totals(), deque[tuple[Entry, bool]](maxlen=limit)
    for book in books:
        for entry in book.entries(wanted.which):
            totals.add(entry)
            newest.append((entry, book.replayed(entry)))
    _print(totals, newest, unreadable=sum(book.unreadable for book in books), which=wanted.which.value)
    return 0


async def _read(configuration: Configuration, wanted: Wanted) -> list[LetterBook]:
    connection = connection_of(configuration)
    return [book for _, _, book in await _books(configuration, connection, wanted)]


async def _books(
    configuration: Configuration, connection: KafkaConnection, wanted: Wanted
) -> list[tuple[str, Partition, LetterBook]]:
    async with topics_of(connection) as topics:
        found = await topics_with_letters(configuration, topics, wanted.tenants)
    within = await readable(connection, found.values())
    return [
        (tenant, partition, await read_book(connection, partition, within[partition], tenant, wanted.letters))
        for tenant, partition in found.items()
    ]


async def _print_lines(configuration: Configuration, wanted: Wanted) -> None:
    """One line for each letter. Its details are read in a second pass: a million of them need not fit into memory."""
    connection = connection_of(configuration)
    for tenant, partition, book in await _books(configuration, connection, wanted):
        chosen = {entry.offset: book.replayed(entry) for entry in book.entries(wanted.which)}
        async with aclosing(at_offsets(connection, partition, chosen.keys())) as batches:
            async for batch in batches:
                letters = ((read_letter(record, tenant), chosen[record.offset]) for record in batch)
                lines = [
                    json.dumps(as_data(letter, replayed=replayed), ensure_ascii=False)
                    for letter, replayed in letters
                    if isinstance(letter, Letter)
                ]
                if lines:
                    # Once for many: each call flushes.
                    click.echo("\n".join(lines))


def as_data(letter: Letter, *, replayed: bool) -> dict[str, Any]:
    """For programs: what the headers say, times in RFC 3339; what is not known is null."""
    return {
        "id": letter.id,
        "state": "replayed" if replayed else "pending",
        "tenant": letter.kind.tenant,
        "endpoint": letter.kind.endpoint,
        "reason": letter.kind.reason,
        "fault": letter.kind.fault,
        "status": letter.kind.status,
        "outcome": letter.kind.outcome,
        "at": time_text(letter.at_ms),
        "attempts": letter.attempts,
        "waited_s": letter.waited_s,
        "webhook_id": letter.webhook_id,
        "source": None if letter.source is None else str(letter.source),
        "event_time": _time(letter.event_time_ms),
        "first_attempt_at": _time(letter.first_attempt_ms),
        "last_attempt_at": _time(letter.last_attempt_ms),
        "error": letter.error,
        "response": letter.response,
        "receiver_ref": letter.receiver_ref,
        "left_out": letter.left_out,
        "replay_of": letter.replay_of,
        "replays": letter.replays,
        "offset": letter.offset,
    }


def age(at_ms: int, now_ms: int) -> str:
    """How long ago, in the largest unit of which there is one."""
    seconds = max(0, now_ms - at_ms) // 1_000
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else time_text(time_ms)


def _print(totals: Totals, newest: deque[tuple[Entry, bool]], *, unreadable: int, which: str) -> None:
    now_ms = round(time.time() * 1_000)
    what = "dead letters" if which == "all" else f"{which} dead letters"
    click.echo(f"{totals.count} {what}")
    if totals.count:
        show(_totals_table(totals, now_ms))
    if newest:
        click.echo("\nthe newest:" if len(newest) < totals.count else "\noldest first:")
        show(_letters_table(newest, now_ms))
    if len(newest) < totals.count:
        click.echo(f"{totals.count - len(newest)} more: --limit shows more of them, --json all")
    if unreadable:
        click.echo(f"{unreadable} records are neither letters nor receipts")


def _totals_table(totals: Totals, now_ms: int) -> Table:
    table = Table("tenant", "endpoint", "reason", "fault", "status", "outcome", box=None, pad_edge=False)
    for name in ("count", "oldest", "newest"):
        table.add_column(name, justify="right")
    for kind, (count, oldest, newest) in sorted(totals.of.items(), key=lambda item: _cells(item[0])):
        table.add_row(*_escaped(_cells(kind)), str(count), age(oldest, now_ms), age(newest, now_ms))
    return table


def _letters_table(newest: Iterable[tuple[Entry, bool]], now_ms: int) -> Table:
    names = ("id", "tenant", "endpoint", "reason", "fault", "status", "outcome", "state")
    table = Table(*names, box=None, pad_edge=False)
    table.add_column("age", justify="right")
    for entry, replayed in newest:
        cells = (entry.id, *_cells(entry.kind), "replayed" if replayed else "pending")
        table.add_row(*_escaped(cells), age(entry.at_ms, now_ms))
    return table


def _cells(kind: Kind) -> tuple[str, ...]:
    return tuple(NONE if part is None else printable(str(part)) for part in kind)


def _escaped(cells: Iterable[str]) -> tuple[str, ...]:
    return tuple(escape(cell) for cell in cells)


def printable(text: str) -> str:
    """A stranger's text without what would move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
