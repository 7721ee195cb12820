"""The demo's summary as a table and in words."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from supervisor.demo.summary import WINDOW_S, Evidence, Summary


def show(summary: Summary, console: Console) -> None:
    """Print it, faults last."""
    # Narrow enough for a terminal of 80 columns.
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("endpoint", no_wrap=True)
    for name in ("events", "requests", "most/s\nin 10 s", "delivered", "in\norder"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("dead\nletters", no_wrap=True)
    for name in ("still\nqueued", "halts"):
        table.add_column(name, justify="right", no_wrap=True)
    for evidence in summary.endpoints:
        table.add_row(*_row(evidence))
    console.print(table)
    for finding in summary.findings():
        console.print(f"• {finding}", highlight=False, markup=False)
    for fault in summary.faults():
        console.print(f"WRONG: {fault}", style="bold red", highlight=False, markup=False)


def _row(evidence: Evidence) -> tuple[str, ...]:
    reasons = "\n".join(f"{count}\n{reason}" for reason, count in sorted(evidence.reasons.items()))
    return (
        f"{evidence.role}\n[dim]{evidence.role.behaviour}[/dim]",
        str(len(evidence.events)),
        str(len(evidence.arrivals)),
        f"{evidence.busiest / WINDOW_S:.1f}",
        str(len(evidence.delivered)),
        "yes" if evidence.in_order else "NO",
        reasons or "0",
        str(len(evidence.queued)),
        str(evidence.halts),
    )
