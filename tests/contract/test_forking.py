"""A forked command is one like any other: the tests over real services stand on that."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.forking import CAN_FORK, spawn
from tests.acceptance.harness import until

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="forks on Linux only")

WRONG = {"DELIVERY_HALT__AFTER": "5", "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": ""}
NOBODY_THERE = {
    "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9",
    "DELIVERY_REDIS__URL": "redis://127.0.0.1:9/0",
    "DELIVERY_HTTP__LISTEN": "127.0.0.1:0",
    "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__URL": "https://example.com/hook",
    "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__TOPICS": "orders",
    "DELIVERY_TENANTS__ACME__ENDPOINTS__BILLING__SIGNING": "none",
}


def environment(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DELIVERY_")} | settings


@pytest.mark.asyncio
@pytest.mark.parametrize("arguments", [["--help"], ["check"], ["run", "--processes", "none"]], ids=" ".join)
async def test_it_ends_and_says_as_one_that_was_started_anew(tmp_path: Path, arguments: list[str]) -> None:
    said = []
    for fork in (True, False):
        out, error = tmp_path / f"{fork}.out", tmp_path / f"{fork}.err"
        process = await spawn(arguments, environment(WRONG), out, error, fork=fork)
        said.append((await process.wait(), out.read_text(), error.read_text()))
    forked, anew = said
    assert forked == anew
    assert anew[1] or anew[2], "it says something"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)], ids=["SIGTERM", "SIGKILL"]
)
async def test_a_signal_reaches_it_and_two_may_wait_for_its_end(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    log = tmp_path / "log"
    process = await spawn(["run"], environment(NOBODY_THERE), log, log, fork=True)
    await until(lambda: "kafka" in log.read_text().lower(), 40, "it looks for Kafka")
    assert process.returncode is None
    process.send_signal(number)
    assert set(await asyncio.gather(process.wait(), process.wait())) == {status}
    process.kill()
    assert process.returncode == status
