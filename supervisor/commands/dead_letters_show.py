"""`delivery dead-letters show`: all that is known of one letter."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

import click

from delivery.adapters.kafka_inspection import records
from delivery.model import Record
from delivery.policy.dead_letter import time_text
from delivery.policy.letters import Letter, Receipt, original_headers, read_letter
from supervisor.commands.dead_letters import readable, topics_with_letters
from supervisor.commands.dead_letters_advice import advice
from supervisor.commands.dead_letters_list import NONE, age, printable
from supervisor.commands.kafka import connection_of, run, topics_of
from supervisor.configuration import Configuration
from supervisor.failure import Failed

_HEX_LINE: Final = 16


@dataclasses.dataclass(slots=True, kw_only=True)
class Story:
    """A letter, its record, its receipts, and the letters that it became when it failed again."""

    letter: Letter
    record: Record
    receipts: list[Receipt]
    later: list[Letter]


def main(configuration: Configuration, letter_id: str, *, tenant: str | None, body: str | None) -> int:
    """Print it. Raises Misused or Failed."""
    story = run(configuration, _find(configuration, letter_id, tenant))
    if story is None:
        raise Failed(f"there is no dead letter {letter_id}: retention may have deleted it")
    known = {(endpoint.tenant, endpoint.name) for endpoint in configuration.endpoints}
    configured = (story.letter.kind.tenant, story.letter.kind.endpoint) in known
    for line in _lines(story, configured, round(time.time() * 1_000)):
        click.echo(line)
    if body is not None:
        click.echo("\nbody:")
        for line in body_lines(story.record.value, body):
            click.echo(line)
    return 0


async def _find(configuration: Configuration, letter_id: str, tenant: str | None) -> Story | None:
    connection = connection_of(configuration)
    async with topics_of(connection) as topics:
        found = await topics_with_letters(configuration, topics, [] if tenant is None else [tenant])
    within = await readable(connection, found.values())
    for owner, partition in found.items():
        teller = _Teller(letter_id)
        edge = within[partition]
        async with aclosing(records(connection, partition, edge.start, edge.end)) as batches:
            async for batch in batches:
                for record in batch:
                    teller.hear(record, read_letter(record, owner))
        if teller.story is not None:
            return teller.story
    return None


class _Teller:
    def __init__(self, letter_id: str) -> None:
        self._id = letter_id
        self.story: Story | None = None
        self._receipts: list[Receipt] = []

    def hear(self, record: Record, found: Letter | Receipt | None) -> None:
        if isinstance(found, Receipt) and found.id == self._id:
            self._receipts.append(found)
        elif isinstance(found, Letter):
            if self.story is None and found.id == self._id:
                self.story = Story(letter=found, record=record, receipts=self._receipts, later=[])
            elif self.story is not None and self._came_of(self.story, found):
                self.story.later.append(found)

    def _came_of(self, story: Story, found: Letter) -> bool:
        first = story.letter.replay_of or self._id
        return found.replay_of == first and found.id not in {self._id, *(later.id for later in story.later)}


def _lines(story: Story, configured: bool, now_ms: int) -> Iterator[str]:
    letter, body = story.letter, story.record.value
    yield f"{letter.id}  ({'replayed' if story.receipts else 'pending'})"
    for name, text in _facts(letter, now_ms):
        yield f"  {name:<16} {NONE if text is None else printable(text)}"
    yield f"  {'key':<16} {NONE if story.record.key is None else printable(story.record.key.decode(errors='replace'))}"
    yield f"  {'body':<16} {NONE if body is None else f'{len(body)} bytes'}"
    yield "\nheaders of the event:"
    for name, value in original_headers(story.record.headers):
        yield f"  {printable(name)}: {NONE if value is None else printable(value.decode(errors='replace'))}"
    yield "\nreplays:"
    for receipt in story.receipts:
        at = "" if receipt.at_ms is None else f" at {time_text(receipt.at_ms)}"
        to = "" if receipt.to is None else f", to {printable(receipt.to)}"
        yield f"  sent again{at} by run {NONE if receipt.run is None else printable(receipt.run)}{to}"
    for later in story.later:
        yield f"  failed again: {later.id}, {later.kind.reason or NONE}, status {later.kind.status or NONE}"
    if not (story.receipts or story.later):
        yield "  none"
    yield "\nnext:"
    for step in advice(letter, replayed=bool(story.receipts), configured=configured):
        yield f"  {printable(step)}"


def _facts(letter: Letter, now_ms: int) -> list[tuple[str, str | None]]:
    def text(value: object) -> str | None:
        return None if value is None else str(value)

    def at(time_ms: int | None) -> str | None:
        return None if time_ms is None else time_text(time_ms)

    return [
        ("tenant", letter.kind.tenant),
        ("endpoint", letter.kind.endpoint),
        ("reason", letter.kind.reason),
        ("fault", letter.kind.fault),
        ("outcome", letter.kind.outcome),
        ("status", text(letter.kind.status)),
        ("attempts", text(letter.attempts)),
        ("waited", None if letter.waited_s is None else f"{letter.waited_s:g} s"),
        ("webhook-id", letter.webhook_id),
        ("source", text(letter.source)),
        ("event time", at(letter.event_time_ms)),
        ("first attempt", at(letter.first_attempt_ms)),
        ("last attempt", at(letter.last_attempt_ms)),
        ("dead letter at", f"{time_text(letter.at_ms)} ({age(letter.at_ms, now_ms)} ago), offset {letter.offset}"),
        ("error", letter.error),
        ("response", letter.response),
        ("receiver's ref", letter.receiver_ref),
        ("first letter", letter.replay_of),
        ("replays before", text(letter.replays)),
    ]


def body_lines(body: bytes | None, form: str) -> list[str]:
    """The body as text (what does not print is replaced), as indented JSON, or as a hex dump. Raises Failed."""
    if body is None:
        return ["(there is none)"]
    if form == "hex":
        starts = range(0, len(body), _HEX_LINE)
        return [_hex_line(start, body[start : start + _HEX_LINE]) for start in starts]
    if form == "json":
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Failed("the body is no JSON: --body=text or --body=hex shows it") from error
        # Not as the letters themselves: a text in it may hold what moves a terminal's cursor.
        return json.dumps(parsed, indent=2, ensure_ascii=True).splitlines()
    return [printable(line.replace("\t", "    ")) for line in body.decode(errors="replace").split("\n")]


def _hex_line(start: int, part: bytes) -> str:
    shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"{start:08x}  {part.hex(' '):<{3 * _HEX_LINE}} {shown}"
