"""`delivery dead-letters`: what was typed, for each of its commands."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from delivery.model import DeadLetterReason, Fault, Outcome
from delivery.policy.letter_book import Which
from supervisor.environment import configuration

if TYPE_CHECKING:
    from supervisor.commands.dead_letters import Wanted

_NAMES: Final = ("tenants", "endpoints", "reasons", "faults", "statuses", "outcomes", "ids", "since", "until", "which")


@click.group("dead-letters")
def dead_letters() -> None:
    """See what failed and why, and send it again."""


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which letters are meant; the command gets them as `typed`."""

    @functools.wraps(command)
    def with_typed(**options: Any) -> None:
        command(typed={name: options.pop(name) for name in _NAMES}, **options)

    taken: Any = with_typed
    for option in reversed(_OPTIONS):
        taken = option(taken)
    return taken  # type: ignore[no-any-return]


_OPTIONS: Final = (
    click.option("--tenant", "tenants", multiple=True, help="Only this tenant's. Most can be given several times."),
    click.option("--endpoint", "endpoints", multiple=True, help="Only this endpoint's."),
    click.option("--reason", "reasons", multiple=True, type=click.Choice([r.value for r in DeadLetterReason])),
    click.option("--fault", "faults", multiple=True, type=click.Choice([fault.value for fault in Fault])),
    click.option("--status", "statuses", multiple=True, help="Like 404 or 5xx."),
    click.option("--outcome", "outcomes", multiple=True, type=click.Choice([outcome.value for outcome in Outcome])),
    click.option("--id", "ids", multiple=True, help="Only this letter."),
    click.option("--since", help="Written at this time or later: 2026-01-31T08:00:00Z, or 2h ago (s, m, h, d, w)."),
    click.option("--until", help="Written before this time."),
    click.option("--pending", "which", flag_value=Which.PENDING, type=Which, default=Which.PENDING,
                 help="Not sent again yet (the default)."),
    click.option("--replayed", "which", flag_value=Which.REPLAYED, type=Which, help="Sent again."),
    click.option("--all", "which", flag_value=Which.ALL, type=Which, help="Both."),
)  # fmt: skip


def _wanted(typed: dict[str, Any]) -> Wanted:
    from supervisor.commands.dead_letters import Typed, wanted

    return wanted(Typed(**typed))


@dead_letters.command("list")
@_filters
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Letters shown, newest.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one line for each letter.")
def list_(typed: dict[str, Any], limit: int, as_json: bool) -> None:
    """Count them by kind, and show the newest."""
    from supervisor.commands.dead_letters_list import main

    sys.exit(main(configuration(), _wanted(typed), as_json=as_json, limit=limit))


@dead_letters.command()
@click.argument("letter_id", metavar="ID")
@click.option("--tenant", help="Look among this tenant's letters only.")
@click.option(
    "--body",
    is_flag=False,
    flag_value="text",
    type=click.Choice(["text", "json", "hex"]),
    help="Show the body, too: --body (text), --body=json or --body=hex.",
)
def show(letter_id: str, tenant: str | None, body: str | None) -> None:
    """Show all that is known of one letter, and what can safely be done."""
    from supervisor.commands.dead_letters_show import main

    sys.exit(main(configuration(), letter_id, tenant=tenant, body=body))


@dead_letters.command()
@_filters
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@click.option("--limit", type=click.IntRange(min=1), help="Send at most so many, oldest first.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Events per second at most.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--again", is_flag=True, help="Send also what was sent again before.")
@click.option("--to", metavar="ENDPOINT", help="Send to this endpoint of the tenant instead of their own.")
def replay(typed: dict[str, Any], **options: Any) -> None:
    """Put dead letters into their endpoints' queues again, each once.

    Letters whose last request may have been received are left out unless --outcome unknown is given, and those that are
    unconfirmed (IDEMPOTENT=false) unless --reason unconfirmed is.
    """
    from supervisor.commands.dead_letters_replay import Wish, main

    sys.exit(main(configuration(), _wanted(typed), Wish(**options)))
