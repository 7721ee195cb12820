"""What the code's shape promises: who imports whom, how large things are, what is pure, and how tests are written."""

from __future__ import annotations

import ast
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PURE = ("delivery/model", "delivery/policy", "supervisor/plan.py", "supervisor/lag.py", "supervisor/own_topics.py")

# Clock, chance, I/O and logging; `datetime` and `os` have pure parts, so there only what is not.
IMPURE_MODULES = frozenset(
    {
        "aiohttp", "aiokafka", "asyncio", "contextvars", "httpx", "io", "logging", "multiprocessing", "os", "pathlib",
        "prometheus_client", "random", "redis", "secrets", "select", "signal", "socket", "structlog", "subprocess",
        "sys", "tempfile", "threading", "time", "urllib.request", "uuid",
    }
)  # fmt: skip
IMPURE_CALLS = frozenset({"now", "today", "utcnow", "open", "print", "input", "system_clock", "urandom"})

PATCHING = frozenset({"monkeypatch", "mocker", "MonkeyPatch"})
LONGEST_SLEEP_S = 1.0


def modules(*places: str) -> list[Path]:
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert found
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def imported(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def called(node: ast.Call) -> str:
    """The name that is called, without what it is an attribute of."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_import_contracts_are_kept() -> None:
    """Among them: `delivery` never imports `supervisor`, and only the composition root knows adapters."""
    if importlib.util.find_spec("importlinter") is None:
        pytest.skip("import-linter is not installed: `make lint` checks the same contracts")
    ended = run(sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_delivery_never_imports_supervisor() -> None:
    """Without the tool, too: the one contract that all others stand on."""
    wrong = [
        f"{shown(path, node)}: {name}"
        for path in modules("delivery")
        for node, name in imported(parsed(path))
        if name.partition(".")[0] in {"supervisor", "tests", "tools"}
    ]
    assert wrong == []


def test_no_module_and_no_function_is_larger_than_can_be_read() -> None:
    ended = run(sys.executable, "tools/check_sizes.py")
    assert ended.returncode == 0, ended.stdout


def test_the_policy_is_pure() -> None:
    wrong = []
    for path in modules(*PURE):
        for node, name in imported(parsed(path)):
            if name in IMPURE_MODULES or name.partition(".")[0] in IMPURE_MODULES:
                wrong.append(f"{shown(path, node)}: imports {name}")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global | ast.Nonlocal):
                wrong.append(f"{shown(path, node)}: {type(node).__name__}")
            if isinstance(node, ast.Call) and called(node) in IMPURE_CALLS:
                wrong.append(f"{shown(path, node)}: calls {called(node)}")
    assert wrong == []


def test_values_are_frozen_slotted_and_given_by_name() -> None:
    wrong = []
    for path in modules("delivery/model", "delivery/policy"):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                if "dataclass" in text and not all(f"{o}=True" in text for o in ("frozen", "slots", "kw_only")):
                    wrong.append(f"{shown(path, node)}: {node.name}")
    assert wrong == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common"}
    assert [str(path) for path in modules("delivery", "supervisor") if path.stem in drawers] == []


def test_no_test_patches_what_it_tests() -> None:
    wrong = []
    for path in modules("tests"):
        for node, name in imported(parsed(path)):
            if name.startswith(("unittest.mock", "mock", "pytest_mock")):
                wrong.append(f"{shown(path, node)}: imports {name}")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.arg) and node.arg in PATCHING:
                wrong.append(f"{shown(path, node)}: asks for {node.arg}")
            if isinstance(node, ast.Attribute) and node.attr in PATCHING:
                wrong.append(f"{shown(path, node)}: uses {node.attr}")
    assert wrong == []


def _sleeps(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and called(node) == "sleep" and node.args:
            yield node


def _constants(path: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in parsed(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, int | float):
                found |= {target.id: float(value) for target in node.targets if isinstance(target, ast.Name)}
    return found


def _longest_s(call: ast.Call, constants: dict[str, float]) -> float | None:
    """How long it sleeps; None when that is computed."""
    argument = call.args[0]
    if isinstance(argument, ast.Constant) and isinstance(argument.value, int | float):
        return float(argument.value)
    return constants.get(argument.id) if isinstance(argument, ast.Name) else None


def _in_virtual_time(path: Path) -> bool:
    return any(name.startswith("tests.virtual_time") for _, name in imported(parsed(path)))


def test_no_test_sleeps_for_luck() -> None:
    """Where time is real, a comment on a long sleep's line or above it says what is watched meanwhile."""
    wrong = []
    for path in modules("tests"):
        if _in_virtual_time(path) or "benchmarks" in path.parts:
            continue
        lines = ["", *path.read_text(encoding="utf-8").splitlines()]
        for call in _sleeps(path):
            seconds = _longest_s(call, _constants(path))
            explained = "  # " in lines[call.lineno] or lines[call.lineno - 1].lstrip().startswith("# ")
            if seconds is not None and seconds >= LONGEST_SLEEP_S and not explained:
                wrong.append(f"{shown(path, call)}: {seconds} s")
    assert wrong == []


def test_unit_tests_know_no_event_loop() -> None:
    wrong = [
        f"{shown(path, node)}: {name}"
        for path in modules("tests/unit")
        for node, name in imported(parsed(path))
        if name.partition(".")[0] in {"asyncio", "pytest_asyncio"}
    ]
    assert wrong == []
