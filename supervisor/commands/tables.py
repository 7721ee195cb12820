"""Tables on a terminal, in a pipe and in a file."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

# Where nobody looks at a window nothing is wrapped or cut.
_ANY_WIDTH = 1000


def show(table: Table) -> None:
    """Print it, without the blanks that fill up its last column."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_ANY_WIDTH)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
