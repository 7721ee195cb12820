"""The command line. Commands are imported when they are used, so that help is there at once."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from supervisor.cli_dead_letters import dead_letters
from supervisor.environment import configuration
from supervisor.failure import Failed, Misused

FAILED = 1
MISUSED = 2

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Commands(click.Group):
    """Turns what goes wrong into words and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Misused as error:
            _say(error.faults)
            ctx.exit(MISUSED)
        except Failed as error:
            _say([f"delivery: {error}"])
            ctx.exit(FAILED)
        except Exception as error:
            # Neither its text nor the stack: both may hold what a log must not.
            last = traceback.extract_tb(error.__traceback__)[-1]
            _say([f"delivery: unexpected {type(error).__name__} at {Path(last.filename).name}:{last.lineno}"])
            ctx.exit(FAILED)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from supervisor.version import version

        click.echo(f"delivery {version()}")
        ctx.exit()


@click.group(cls=Commands, context_settings=CONTEXT)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Deliver events from Kafka as signed webhooks. Settings come from DELIVERY_… variables."""


@cli.command()
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
def run(processes: int) -> None:
    """Run a worker until SIGTERM or SIGINT."""
    from supervisor.commands.run import main as run_worker

    sys.exit(run_worker(configuration(), processes))


@cli.command()
@click.option("--serve", is_flag=True, help="Stay up until it is stopped.")
def demo(serve: bool) -> None:
    """See it work: everything embedded, no services needed."""
    from supervisor.demo.run import main as run_demo

    sys.exit(run_demo(serve))


@cli.command()
@click.option("--create-topics", is_flag=True, help="Create missing topics of our own.")
def check(create_topics: bool) -> None:
    """Check settings, Kafka and topics.

    Prints the partitions and ACLs that are needed, too.
    """
    from supervisor.commands.check import main as run_check

    sys.exit(run_check(configuration(), create=create_topics))


@cli.command()
@click.argument("tenant")
@click.option("--topic", required=True, help="An existing source topic.")
@click.option("--type", "event_type", required=True, help="The event's type, like order.paid.")
@click.option("--data", required=True, help="JSON; '-' reads standard input, '@file' a file.")
@click.option("--id", "event_id", help="The event's id (webhook-id); made up when not given.")
@click.option("--key", help="The record's key.")
def send(tenant: str, topic: str, event_type: str, data: str, event_id: str | None, key: str | None) -> None:
    """Write one event to a source topic.

    It is TENANT's; the endpoints that get it are listed.
    """
    from supervisor.commands.send import Wish
    from supervisor.commands.send import main as run_send

    wish = Wish(tenant=tenant, topic=topic, event_type=event_type, data=data, event_id=event_id, key=key)
    sys.exit(run_send(configuration(), wish))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(as_json: bool) -> None:
    """Show each endpoint's loop and its queue's lag."""
    from supervisor.commands.status import main as run_status

    sys.exit(run_status(configuration(), as_json=as_json))


@cli.group()
def endpoint() -> None:
    """Give orders for one endpoint; all workers obey, now and after restarts."""


def _order(kind: str, tenant: str, name: str, *, as_json: bool, **more: Any) -> None:
    from delivery.policy.orders import OrderKind
    from supervisor.commands.endpoint import Wish
    from supervisor.commands.endpoint import main as run_order

    wish = Wish(tenant=tenant, endpoint=name, kind=OrderKind(kind), as_json=as_json, **more)
    sys.exit(run_order(configuration(), wish))


_tenant = click.argument("tenant")
_name = click.argument("name", metavar="ENDPOINT")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_json = click.option("--json", "as_json", is_flag=True, help="For programs.")


@endpoint.command()
@_tenant
@_name
@click.option("--reason", default="", help="Shown to others.")
@_json
def pause(tenant: str, name: str, reason: str, as_json: bool) -> None:
    """Send nothing until it is resumed; events stay queued."""
    _order("pause", tenant, name, as_json=as_json, detail=reason)


@endpoint.command()
@_tenant
@_name
@click.option(
    "--from",
    "start",
    type=click.Choice(["oldest", "latest"]),
    help="Where a queue goes on that has lost its offset (halt reason offset_lost).",
)
@_json
def resume(tenant: str, name: str, start: str | None, as_json: bool) -> None:
    """Lift a pause, a disabling after 410, or the halt of a queue that has lost its offset."""
    from delivery.policy.orders import ResumeFrom

    _order("resume", tenant, name, as_json=as_json, resume_from=None if start is None else ResumeFrom(start))


@endpoint.command()
@_tenant
@_name
@click.option("--record", "everything", flag_value=False, default=False, help="The record in hand (the default).")
@click.option("--all", "everything", flag_value=True, help="All that is queued by now.")
@_yes
@_json
def cancel(tenant: str, name: str, everything: bool, yes: bool, as_json: bool) -> None:
    """Make the record in hand, or all that is queued, dead letters (cancelled)."""
    _order("cancel-all" if everything else "cancel-record", tenant, name, as_json=as_json, yes=yes)


@endpoint.command()
@_tenant
@_name
@_yes
@_json
def drain(tenant: str, name: str, yes: bool, as_json: bool) -> None:
    """Make all that is queued by now dead letters (drained), without a request."""
    _order("drain", tenant, name, as_json=as_json, yes=yes)


@endpoint.command()
@_tenant
@_name
@_yes
@_json
def drop(tenant: str, name: str, yes: bool, as_json: bool) -> None:
    """Dead-letter what waits for an endpoint that is configured no more, and delete its queue."""
    from supervisor.commands.drop import Wish
    from supervisor.commands.drop import main as run_drop

    sys.exit(run_drop(configuration(), Wish(tenant=tenant, endpoint=name, yes=yes, as_json=as_json)))


cli.add_command(dead_letters)


def main() -> None:
    """The entry point of `delivery`."""
    cli(prog_name="delivery")
