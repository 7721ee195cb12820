"""docs/retries.md: its defaults are the settings', and its worked examples add up."""

from __future__ import annotations

import re
from pathlib import Path

from delivery.model import HaltLimits, Retry, RetryLimits, StatusClass
from delivery.policy.backoff import attempts, wait_s
from supervisor.settings.fields import durations
from supervisor.settings.table import table

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "retries.md").read_text()
DAY_S = 86_400
# Just below the end of [0, 1), from which chance is drawn.
MOST = 1 - 1e-9
FAILED = Retry(status_class=StatusClass.SERVER)


def defaults(text: str) -> dict[str, str]:
    """By name, of the lines of a table."""
    return dict(re.findall(r"^\| `([A-Z][A-Z0-9_]+)`(?:, `\w+`)? \| `?([^`|]+?)`? \|", text, re.MULTILINE))


def supported() -> str:
    return "\n".join(line for line in table().splitlines() if "not supported by this version" not in line)


def test_every_knob_on_the_page_exists_works_and_has_the_default_that_it_says() -> None:
    named, known = defaults(PAGE), defaults(supported())
    assert len(named) > 20
    assert {name: known.get(name) for name in named} == named


def test_the_schedule_of_a_day_adds_up_to_what_the_page_says() -> None:
    (schedule,) = re.findall(r"RETRY__SCHEDULE=(\S+)\n", PAGE)
    limits = RetryLimits(schedule_s=durations(schedule))
    waits = range(1, attempts(limits))
    least = sum(wait_s(limits, n, FAILED, 0.0, 0.0) for n in waits)
    most = sum(wait_s(limits, n, FAILED, MOST, MOST) for n in waits)
    assert attempts(limits) == 11
    assert f"{least:,.0f} s, or {least // 3600:.0f} h\n{least % 3600 // 60:.0f} min {least % 60:.0f} s" in PAGE
    hours, minutes = divmod(round(most / 60), 60)
    assert f"({hours} h {minutes} min in all)" in PAGE
    assert least < DAY_S < most


def test_a_day_of_holding_has_as_many_rounds_as_the_page_says() -> None:
    retry, halt = RetryLimits(), HaltLimits()
    mean_s = sum(wait_s(retry, n, FAILED, 0.5, 0.5) for n in range(1, attempts(retry)))
    spent, rounds = 0.0, 0
    while spent < DAY_S:
        spent += mean_s + min(halt.max_s, halt.pause_s * 2.0 ** min(rounds, 64))
        rounds += 1
    assert sum(min(halt.max_s, halt.pause_s * 2.0**n) for n in range(5)) == 310
    assert abs(rounds - 285) <= 1, "about 285 rounds"
    assert abs(rounds * attempts(retry) - 1_700) <= 20, "1,700 requests"
