"""README and docs say what the program does: tables are compared, and everything that they name exists."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from prometheus_client import CollectorRegistry
from standardwebhooks.webhooks import WebhookVerificationError

from delivery.adapters.prometheus_meter import Gauges, PrometheusMeter
from delivery.model import DeadLetterReason, HaltReason, Jitter, Retry, RetryLimits, SigningKey, StatusClass
from delivery.policy.backoff import wait_s
from delivery.policy.classify import REJECTED
from delivery.policy.request import signature
from supervisor.cli import cli
from supervisor.commands.status_rows import ELSEWHERE, NO_OWNER, OWNER_LOST, REMOVED, UNKNOWN, Row
from supervisor.settings.names import DELIMITER, PREFIX
from supervisor.settings.options import EndpointOptions, QuotaOptions
from supervisor.settings.schema import Group, group_of
from supervisor.settings.table import table
from supervisor.view import LoopStateName
from tests.unit.settings_environment import KEY, SECRET, is_setting

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
TABLE = ("<!-- settings table:", "<!-- end of the settings table -->")
WAITS = ("<!-- waits:", "<!-- end of waits -->")
# Just below the end of [0, 1), from which chance is drawn.
MOST = 1 - 1e-9

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def between(page: Path, marks: tuple[str, str]) -> str:
    """What stands between the line of the first mark and the second."""
    return page.read_text().partition(marks[0])[2].partition("-->\n")[2].partition(marks[1])[0]


def section(page: Path, heading: str) -> str:
    """From a heading to the next one of its kind."""
    return page.read_text().partition(f"\n{heading}\n")[2].partition(f"\n{heading.partition(' ')[0]} ")[0]


def quoted(text: str) -> list[str]:
    """Everything in backticks on one line, and every line that is indented as code."""
    blocks = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return re.findall(r"`([^`\n]+)`", text) + blocks


def waits_table() -> str:
    """The waits of the default settings: for each jitter from the least to the most, and of a 429 without a hint."""

    def shown(low: float, high: float) -> str:
        return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} – {high:.1f}"

    def column(jitter: Jitter, verdict: Retry) -> Callable[[int], tuple[float, float]]:
        limits = RetryLimits(jitter=jitter)
        return lambda attempt: (
            wait_s(limits, attempt, verdict, 0.0, 0.0),
            wait_s(limits, attempt, verdict, MOST, MOST),
        )

    server = Retry(status_class=StatusClass.SERVER)
    columns = [column(jitter, server) for jitter in (Jitter.ADDITIVE, Jitter.NONE, Jitter.EQUAL, Jitter.FULL)]
    columns.append(column(Jitter.ADDITIVE, Retry(status_class=StatusClass.TOO_MANY, throttled=True)))
    attempts = range(1, RetryLimits().max_attempts)
    lines = [
        "| after attempt | `additive` | `none` | `equal` | `full` | 429 without a hint |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for attempt in attempts:
        cells = [shown(*of(attempt)) for of in columns]
        lines.append(f"| {attempt} | {' | '.join(cells)} |")
    sums = [shown(*(sum(of(attempt)[end] for attempt in attempts) for end in (0, 1))) for of in columns]
    lines.append(f"| all | {' | '.join(sums)} |")
    return "\n".join(lines) + "\n"


def test_the_readmes_table_of_settings_is_the_one_that_is_made_of_the_models() -> None:
    assert between(README, TABLE) == table(), "python -m supervisor.settings.table makes the right one"


def test_the_table_of_waits_is_what_the_policy_computes() -> None:
    assert between(ROOT / "docs" / "rules.md", WAITS) == waits_table()


@every_page
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {m[1] for text in quoted(page.read_text()) for m in re.finditer(r"\bmake ([a-z][a-z-]*)", text)}
    assert named <= targets


@every_page
def test_every_command_and_option_that_a_page_names_exists(page: Path) -> None:
    wrong = []
    for text in quoted(page.read_text()):
        match = re.match(r"delivery ([a-z-]+)((?: [^#|]*)?)", text)
        if match is None:
            continue
        command = cli.commands.get(match[1])
        known = set() if command is None else set(_options_of(command, match[2].split()[:1]))
        wrong += [text] if command is None else []
        wrong += [f"{match[1]} {option}" for option in re.findall(r"--[a-z-]+", match[2]) if option not in known]
    assert wrong == []


def _options_of(command: click.Command, next_words: list[str]) -> Iterator[str]:
    """A command's options; of a group's those of the command that is named, of all when none is."""
    inner = command.commands if isinstance(command, click.Group) else {}
    for one in [inner[word] for word in next_words if word in inner] or [command, *inner.values()]:
        yield from (option for parameter in one.params for option in parameter.opts)


def test_the_readme_names_every_command() -> None:
    named = set(re.findall(r"^\| `delivery ([a-z-]+)", README.read_text(), re.MULTILINE))
    assert named == set(cli.commands)


@every_page
def test_every_test_and_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)", sources))
    assert {name for name in re.findall(r"`(test_\w+)`", text) if name not in known} == set()
    paths = re.findall(r"(?<![\w/.*])((?:delivery|supervisor|deploy|tools|tests|docs|\.ci)/[\w./-]*\w)", text)
    assert {path for path in paths if not (ROOT / path).exists()} == set()
    modules = re.findall(r"python -m ([\w.]+)", text)
    assert {m for m in modules if not (ROOT / (m.replace(".", "/") + ".py")).exists()} == set()


@every_page
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


@every_page
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    variables = {name.rstrip("_") for name in re.findall(rf"\b{PREFIX}[A-Z0-9_]+", text)}
    # Two that Kubernetes sets, and a family of topics' settings that is named as a whole.
    variables -= {f"{PREFIX}SERVICE", f"{PREFIX}PORT", f"{PREFIX}OWN_TOPICS"}
    assert {name for name in variables if not is_setting(name)} == set()
    options = set(_options(group_of(EndpointOptions))) | {f"QUOTA__{name}" for name in _options(group_of(QuotaOptions))}
    words = {word.partition("=")[0] for word in re.findall(r"`([A-Z][A-Z0-9_]+(?:=[^`]*)?)`", text)}
    others = {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "PLAIN", "POST", "BILLING", "BROKEN", "OWN_TOPICS"}
    named = {word for word in words if not word.startswith(PREFIX)} - others
    assert {word for word in named if word not in options | {"BROADCAST_TOPICS"}} == set()


def _options(group: Group) -> Iterator[str]:
    for name, node in group.fields.items():
        if isinstance(node, Group):
            yield from (f"{name.upper()}{DELIMITER}{inner}" for inner in _options(node))
        else:
            yield name.upper()
        if name in group.twins:
            yield f"{name.upper()}_FILE"


def test_every_metric_of_the_worker_is_described_and_no_other() -> None:
    registry = CollectorRegistry()
    nothing = Gauges(
        states=(),
        loop_states=dict,
        kafka_member=dict,
        redis_up=bool,
        assignments=dict,
        queue_lag=dict,
        oldest_event_age_s=dict,
        buffered_bytes=int,
        dead_letters_pending=dict,
        oldest_dead_letter_age_s=dict,
    )
    PrometheusMeter(registry).watch(nothing)
    families = [family for family in registry.collect() if family.name.startswith("delivery_")]
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    described = set(
        re.findall(r"^\| `(delivery_\w+)` \|", section(ROOT / "docs" / "operations.md", "## Metrics"), re.M)
    )
    assert described == names


def test_every_reason_for_a_halt_has_its_advice_or_is_called_reserved() -> None:
    parts = (ROOT / "docs" / "operations.md").read_text().split("\n## ")
    halts = next(part for part in parts if part.startswith("Halts"))
    advised = set(re.findall(r"^\| `(\w+)` \|", halts, re.MULTILINE))
    reserved = set(re.findall(r"`(\w+)`", halts.partition("The name\n")[2].partition("is reserved")[0]))
    assert advised | reserved == {reason.value for reason in HaltReason}
    assert advised & reserved == set()


def test_every_reason_for_a_dead_letter_is_described_or_called_reserved() -> None:
    text = section(README, "## Dead letters")
    described = set(re.findall(r"^\| `(\w+)` \| (?:endpoint|pipeline) \|", text, re.MULTILINE))
    reserved = set(re.findall(r"`(\w+)`", text.partition("The name ")[2].partition("is reserved")[0]))
    assert described | reserved == {reason.value for reason in DeadLetterReason}
    assert described & reserved == set()


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "rules.md"], ids=lambda page: page.name)
def test_the_rejected_statuses_are_named_as_they_are(page: Path) -> None:
    assert ", ".join(str(status) for status in sorted(REJECTED)) in page.read_text()


def test_states_in_the_operations_page_are_those_that_a_loop_can_have() -> None:
    states = section(ROOT / "docs" / "operations.md", "## Is it healthy?")
    known = {state.value for state in LoopStateName} | {OWNER_LOST, NO_OWNER, REMOVED, ELSEWHERE, UNKNOWN}
    assert set(re.findall(r"^\| `([a-z_ ]+)` \|", states, re.MULTILINE)) <= known


def test_the_fields_for_programs_are_described_as_they_are() -> None:
    lines = section(ROOT / "docs" / "operations.md", "## What a program reads").splitlines()
    cells = [line.split("|")[1:3] for line in lines if line.startswith("| `")]
    described = {name for names, of in cells if "endpoints" in of for name in quoted(names)}
    assert described == {field.name for field in dataclasses.fields(Row)}


def test_the_receivers_example_verifies_what_is_signed_and_nothing_else() -> None:
    names: dict[str, Callable[..., str]] = {}
    exec(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0], names)
    timestamp = b"%d" % time.time()
    body = b'{"total": 12}'
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": timestamp.decode(),
        "webhook-signature": signature(b"msg_1", timestamp, body, [SigningKey(key=KEY)]).decode(),
    }
    assert names["receive"](body, headers, SECRET) == "msg_1"
    with pytest.raises(WebhookVerificationError):
        names["receive"](body + b" ", headers, SECRET)
