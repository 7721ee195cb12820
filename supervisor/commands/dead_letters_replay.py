"""`delivery dead-letters replay`: say what would be sent, ask, send, and say what was sent."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from delivery.model import DeadLetterReason, Outcome
from delivery.policy.letter_book import Choice, LetterBook, Which, choose
from delivery.replay import Tally
from supervisor.commands.dead_letters import Wanted, read_book, readable, topics_with_letters
from supervisor.commands.dead_letters_list import printable
from supervisor.commands.dead_letters_progress import progress
from supervisor.commands.dead_letters_run import Run, TakenOver
from supervisor.commands.kafka import connection_of, run, topics_of
from supervisor.configuration import Configuration
from supervisor.failure import Failed, Misused

GO_ON: Final = "Run the same command again to go on: what was sent has a receipt and is not sent twice."
GO_ON_AGAIN: Final = "Run it again without --again for what is still pending; with --again all are sent once more."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was typed, beside the filters."""

    dry_run: bool = False
    limit: int | None = None
    rate: float | None = None
    yes: bool = False
    again: bool = False
    to: str | None = None

    @property
    def go_on(self) -> str:
        """How to go on after an early end."""
        return GO_ON_AGAIN if self.again else GO_ON


class Chooser:
    """Chooses among a tenant's letters, the same way for the estimate and for good. `left` is what the limit leaves."""

    def __init__(self, configuration: Configuration, wanted: Wanted, wish: Wish) -> None:
        self._endpoints = [(endpoint.tenant, endpoint.name) for endpoint in configuration.endpoints]
        self._which = Which.ALL if wish.again and wanted.which is Which.PENDING else wanted.which
        self._unknown = Outcome.UNKNOWN in wanted.letters.outcomes
        self._unconfirmed = DeadLetterReason.UNCONFIRMED in wanted.letters.reasons
        self._to = wish.to
        self.left = wish.limit

    def choose(self, tenant: str, book: LetterBook) -> Choice:
        """Raises Misused when letters of endpoints that there are no more are among them."""
        known = {name for owner, name in self._endpoints if owner == tenant}
        choice = choose(
            book,
            self._which,
            known=known,
            to=self._to,
            unknown=self._unknown,
            unconfirmed=self._unconfirmed,
            limit=self.left,
        )
        if choice.removed:
            counts = ", ".join(f"{printable(n) or '(none)'} {count}" for n, count in sorted(choice.removed.items()))
            raise Misused(
                [
                    f"letters of endpoints that {tenant} does not have any more: {counts}. "
                    "--to ENDPOINT sends them to another, --endpoint chooses those of others"
                ]
            )
        if self.left is not None:
            self.left -= len(choice.chosen)
        return choice


def main(configuration: Configuration, wanted: Wanted, wish: Wish) -> int:
    """Raises Misused or Failed; 1 when not all that was chosen is sent."""
    _check(configuration, wanted, wish)
    if wish.dry_run or not wish.yes:
        choices = run(configuration, _estimate(configuration, wanted, wish))
        total = sum(len(choice.chosen) for choice in choices.values())
        _say(choices, "would be sent again" if wish.dry_run else "to send again, about")
        if wish.dry_run or not total:
            return 0
        click.confirm(f"About {total} events go into their queues. Go on?", abort=True, err=True)
    return run(configuration, _replay(configuration, wanted, wish))


def _check(configuration: Configuration, wanted: Wanted, wish: Wish) -> None:
    faults = []
    if wanted.which is not Which.PENDING and not wish.again:
        faults.append(f"--{wanted.which.value}: letters that were sent again are sent once more only with --again")
    if wish.to is not None:
        tenant = next(iter(wanted.tenants)) if len(wanted.tenants) == 1 else None
        known = sorted(endpoint.name for endpoint in configuration.endpoints if endpoint.tenant == tenant)
        if tenant is None:
            faults.append("--to: expected together with one --tenant, whose endpoint it is")
        elif wish.to not in known:
            faults.append(f"--to: expected an endpoint of {tenant} ({', '.join(known) or 'there is none'})")
    if faults:
        raise Misused(faults)


async def _estimate(configuration: Configuration, wanted: Wanted, wish: Wish) -> dict[str, Choice]:
    connection, chooser = connection_of(configuration), Chooser(configuration, wanted, wish)
    async with topics_of(connection) as topics:
        found = await topics_with_letters(configuration, topics, wanted.tenants)
    within = await readable(connection, found.values())
    return {
        tenant: chooser.choose(
            tenant, await read_book(connection, partition, within[partition], tenant, wanted.letters)
        )
        for tenant, partition in found.items()
    }


async def _replay(configuration: Configuration, wanted: Wanted, wish: Wish) -> int:
    stop = asyncio.Event()
    _stop_on_signals(stop)
    connection, chooser = connection_of(configuration), Chooser(configuration, wanted, wish)
    async with topics_of(connection) as topics:
        found = await topics_with_letters(configuration, topics, wanted.tenants)
        if wish.yes and len(found) > 1:
            # What is refused for a later tenant has to be refused before an earlier one's events are sent. Who was
            # asked has had this look already.
            await _estimate(configuration, wanted, wish)
        with progress() as bar:
            one = Run(
                configuration=configuration, connection=connection, topics=topics, letters=wanted.letters,
                choose=chooser.choose, to=wish.to, rate=wish.rate, run_id=secrets.token_hex(8), stop=stop, bar=bar,
            )  # fmt: skip
            done = True
            for tenant, partition in found.items():
                if stop.is_set():
                    break
                try:
                    choice, tally = await one.tenant(tenant, partition)
                except TakenOver as error:
                    raise Failed(f"{error}. {wish.go_on}") from error
                done &= _report(tenant, choice, tally)
    if stop.is_set():
        click.echo(f"stopped. {wish.go_on}", err=True)
        return 1
    return 0 if done else 1


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def stop_after_the_batch(number: int) -> None:
        click.echo("stopping after this batch; once more stops at once", err=True)
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_after_the_batch, number)


def _report(tenant: str, choice: Choice, tally: Tally) -> bool:
    """Say what became of a tenant's letters; whether all that were chosen are in their queues."""
    sent = sum(tally.sent.values())
    click.echo(f"{tenant}: {sent} sent again{_counts(tally.sent)}")
    for line in _left_out(tenant, choice):
        click.echo(line)
    if tally.too_large:
        click.echo(f"{tenant}: {tally.too_large} are larger than their queue takes, and stay pending", err=True)
    missing = len(choice.chosen) - sent - tally.too_large
    if missing and not tally.stopped:
        click.echo(f"{tenant}: {missing} were deleted by the topic's retention meanwhile", err=True)
    return sent == len(choice.chosen)


def _say(choices: Mapping[str, Choice], what: str) -> None:
    for tenant, choice in choices.items():
        click.echo(f"{tenant}: {len(choice.chosen)} {what}{_counts(choice.endpoints)}")
        for line in _left_out(tenant, choice):
            click.echo(line)


def _left_out(tenant: str, choice: Choice) -> Iterator[str]:
    if choice.unknown:
        yield (
            f"{tenant}: {choice.unknown} left out, since the receiver may have acted on them: "
            "--outcome unknown sends those"
        )
    if choice.unconfirmed:
        yield (
            f"{tenant}: {choice.unconfirmed} left out, since their endpoint must not get an event twice unasked: "
            "--reason unconfirmed sends those"
        )
    if choice.broken:
        yield f"{tenant}: {choice.broken} left out, since they do not hold the whole event"


def _counts(endpoints: Mapping[str, int]) -> str:
    named: Sequence[str] = [f"{name} {count}" for name, count in sorted(endpoints.items())]
    return f": {', '.join(named)}" if named else ""
