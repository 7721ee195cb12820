"""Several processes under one: replaced when they die, stopped together. With small processes of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.family import Child, Family, restart_pause_s

# Notes its start and each signal in a file, and ends after as many signals as it was told.
LIVES = """
import os, pathlib, signal, sys
told = pathlib.Path(sys.argv[1])
def note(line):
    with told.open("a") as file:
        file.write(line + "\\n")
signals = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
note(f"start {os.getpid()} {os.environ['MARK']}")
for _ in range(int(sys.argv[2])):
    note(f"signal {int(signal.sigwait(signals))}")
"""


def child(told: Path, *, signals: int = 1, mark: str = "x") -> Child:
    command = (sys.executable, "-c", LIVES, str(told), str(signals))
    return Child(name=told.name, command=command, environment={**os.environ, "MARK": mark})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what another process writes
            await asyncio.sleep(0.01)


def lines(told: Path) -> list[str]:
    return told.read_text().splitlines() if told.exists() else []


def starts(told: Path) -> list[str]:
    return [line for line in lines(told) if line.startswith("start")]


@pytest.mark.asyncio
async def test_all_children_run_with_their_own_environment_until_the_stop_and_the_status_is_0(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    family = Family([child(one, mark="1"), child(two, mark="2")])
    running = asyncio.create_task(family.run())
    await until(lambda: bool(starts(one) and starts(two)))
    assert starts(one)[0].endswith(" 1")
    assert starts(two)[0].endswith(" 2")
    family.stop(signal.SIGTERM)
    assert await running == 0
    assert lines(one)[-1] == lines(two)[-1] == f"signal {int(signal.SIGTERM)}"


@pytest.mark.asyncio
async def test_a_child_that_dies_is_replaced_and_the_others_live_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    family = Family([child(one), child(two)], first_pause_s=0.01)
    running = asyncio.create_task(family.run())
    await until(lambda: bool(starts(one) and starts(two)))
    os.kill(int(starts(one)[0].split()[1]), signal.SIGKILL)
    await until(lambda: len(starts(one)) == 2)
    assert len(starts(two)) == 1
    family.stop(signal.SIGTERM)
    assert await running == 0


@pytest.mark.asyncio
async def test_the_second_signal_is_passed_on_too_and_nobody_is_replaced_after_the_first(tmp_path: Path) -> None:
    one = tmp_path / "one"
    family = Family([child(one, signals=2)], first_pause_s=0.01)
    running = asyncio.create_task(family.run())
    await until(lambda: bool(starts(one)))
    family.stop(signal.SIGINT)
    await until(lambda: f"signal {int(signal.SIGINT)}" in lines(one))
    assert not running.done()
    family.stop(signal.SIGTERM)
    assert await running == 0
    assert len(starts(one)) == 1


@pytest.mark.asyncio
async def test_a_stop_ends_the_wait_for_a_replacement(tmp_path: Path) -> None:
    missing = Child(name="missing", command=(str(tmp_path / "no-such-program"),), environment={})
    family = Family([missing], first_pause_s=600.0)
    running = asyncio.create_task(family.run())
    await asyncio.sleep(0)
    family.stop(signal.SIGTERM)
    async with asyncio.timeout(20):
        assert await running == 0


def test_the_pause_before_a_replacement_doubles_up_to_half_a_minute() -> None:
    assert [restart_pause_s(deaths) for deaths in (1, 2, 3, 4, 5, 6, 7, 1000)] == [1, 2, 4, 8, 16, 30, 30, 30]
