"""How far a replay is, on a terminal; elsewhere nothing."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class RateColumn(ProgressColumn):
    """Events per second."""

    def render(self, task: Task) -> Text:
        """What has been reached lately."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f}/s")


def progress() -> Progress:
    """A bar per tenant on standard error, gone when it is done."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
