"""What was measured beside what had to come out, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


class Verdict(enum.StrEnum):
    """How a figure stands against its target."""

    REFERENCE = "reference"
    SHOWN = ""
    REACHED = "reached"
    MISSED = "MISSED"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line: who sent (`scene`), what is counted (`name`), and what came out."""

    experiment: str
    scene: str
    name: str
    measured: str
    target: str = ""
    expected: str = ""
    verdict: Verdict = Verdict.SHOWN


class Sheet:
    """The figures of one scene, as it finds them."""

    def __init__(self, experiment: str, scene: str) -> None:
        self._experiment, self._scene = experiment, scene
        self.figures: list[Figure] = []

    def at_most(self, name: str, value: float, limit: float, unit: str = "", expected: str = "") -> None:
        """A figure that must not be above its limit."""
        self.judge(name, f"{number(value)}{unit}", f"≤ {number(limit)}{unit}", value <= limit, expected)

    def at_least(self, name: str, value: float, limit: float, unit: str = "", expected: str = "") -> None:
        """A figure that must not be below its limit."""
        self.judge(name, f"{number(value)}{unit}", f"≥ {number(limit)}{unit}", value >= limit, expected)

    def exactly(self, name: str, value: float, wanted: float, expected: str = "") -> None:
        """A figure that must be this number."""
        self.judge(name, number(value), number(wanted), value == wanted, expected)

    def shown(self, name: str, measured: str, expected: str = "") -> None:
        """A figure without a target."""
        self._add(name, measured, "", expected, Verdict.SHOWN)

    def judge(self, name: str, measured: str, target: str, reached: bool, expected: str = "") -> None:
        """A figure with a target of its own kind."""
        self._add(name, measured, target, expected, Verdict.REACHED if reached else Verdict.MISSED)

    def _add(self, name: str, measured: str, target: str, expected: str, verdict: Verdict) -> None:
        self.figures.append(
            Figure(
                experiment=self._experiment,
                scene=self._scene,
                name=name,
                measured=measured,
                target=target,
                expected=expected,
                verdict=verdict,
            )
        )


def number(value: float) -> str:
    """Whole numbers with separators, others with as many places as matter."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def as_json(figures: Sequence[Figure]) -> str:
    """A list of objects."""
    return json.dumps([dataclasses.asdict(figure) for figure in figures], indent=2, ensure_ascii=False)


_STYLES = {Verdict.REFERENCE: "dim", Verdict.SHOWN: "", Verdict.REACHED: "green", Verdict.MISSED: "bold red"}


def show(figures: Sequence[Figure], title: str) -> None:
    """One table on standard output; what repeats from line to line is left out."""
    console = Console()
    if not console.is_terminal:
        # A file or a pipe has no width of its own, and lines that are cut say nothing.
        console = Console(width=180)
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    table.add_column("sender")
    table.add_column("counted at the endpoint")
    for column in ("measured", "target", "expected"):
        table.add_column(column, justify="right")
    table.add_column("")
    before = ("", "")
    for figure in figures:
        if before[0] and figure.experiment != before[0]:
            table.add_section()
        table.add_row(
            "" if figure.experiment == before[0] else figure.experiment,
            "" if (figure.experiment, figure.scene) == before else figure.scene,
            figure.name,
            figure.measured,
            figure.target,
            figure.expected,
            str(figure.verdict),
            style=_STYLES[figure.verdict],
        )
        before = (figure.experiment, figure.scene)
    console.print(table)
