"""Figures with their limits, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


class Verdict(enum.StrEnum):
    """How a figure stands against its limits."""

    NONE = ""
    MISSED = "MISSED"
    REACHED = "reached"
    AIM = "aim reached"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a figure must reach and should reach; `at_least` tells which side is the good one.

    One that is not `binding` yet is shown as missed, and does not make the run fail.
    """

    must: float
    aim: float
    at_least: bool = False
    binding: bool = True

    def verdict(self, value: float) -> Verdict:
        """Limits themselves are reached."""
        sign = 1 if self.at_least else -1
        if sign * value < sign * self.must:
            return Verdict.MISSED
        return Verdict.AIM if sign * value >= sign * self.aim else Verdict.REACHED

    def text(self, limit: float) -> str:
        """A limit with its side."""
        return f"{'≥' if self.at_least else '≤'} {limit:g}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report. `excuse` says why a missed limit does not count."""

    name: str
    value: float
    unit: str
    limit: Limit | None = None
    excuse: str = ""

    @property
    def verdict(self) -> Verdict:
        """Against its limits; none without."""
        return Verdict.NONE if self.limit is None else self.limit.verdict(self.value)

    @property
    def missed(self) -> bool:
        """True when it makes the whole run fail."""
        return self.verdict is Verdict.MISSED and not self.excuse and self.limit is not None and self.limit.binding


def as_json(figures: Sequence[Figure]) -> str:
    """A list of objects."""
    return json.dumps(
        [
            {
                "figure": figure.name,
                "value": round(figure.value, 4),
                "unit": figure.unit,
                "must": None if figure.limit is None else figure.limit.must,
                "aim": None if figure.limit is None else figure.limit.aim,
                "verdict": str(figure.verdict),
                "excuse": figure.excuse,
            }
            for figure in figures
        ],
        indent=2,
    )


def show(figures: Sequence[Figure], title: str) -> None:
    """A table on standard output."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("figure")
    for column in ("measured", "must", "aim"):
        table.add_column(column, justify="right")
    table.add_column("")
    styles = {Verdict.MISSED: "red", Verdict.AIM: "green", Verdict.REACHED: "yellow", Verdict.NONE: ""}
    for figure in figures:
        limit = figure.limit
        table.add_row(
            figure.name,
            f"{_number(figure.value)} {figure.unit}",
            "" if limit is None else limit.text(limit.must),
            "" if limit is None else limit.text(limit.aim),
            f"{figure.verdict}{', ' if figure.excuse else ''}{figure.excuse}",
            style=styles[Verdict.NONE if figure.excuse else figure.verdict],
        )
    Console().print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
