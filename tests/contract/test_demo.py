"""`delivery demo` as a process: ends by itself, and everything that it sent is accounted for."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import sys
import time

import pytest

# Our own variables, misspelt ones among them, are not the demo's business.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("DELIVERY_")},
    "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "DELIVERY_TOPIC_PREFIX": "not the demo's",
    "DELIVERY_MISSPELT": "1",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How the process ended."""

    status: int
    out: str
    error: str
    seconds: float


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "supervisor",
        "demo",
        *arguments,
        env=ENVIRONMENT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process, started_at: float, earlier: str = "") -> Ended:
    try:
        out, error = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
    return Ended(process.returncode or 0, earlier + out.decode(), error.decode(), time.monotonic() - started_at)


def words(text: str) -> str:
    return " ".join(text.split())


def number(text: str, pattern: str) -> int:
    found = re.search(pattern, words(text))
    assert found is not None, f"{pattern!r} is not in {text!r}"
    return int(found[1])


@pytest.mark.asyncio
async def test_the_demo_ends_by_itself_within_a_minute_and_loses_nothing() -> None:
    started_at = time.monotonic()
    demo = await ended(await start(), started_at)
    assert demo.status == 0, demo.out + demo.error
    assert demo.seconds < 60
    sum_line = re.search(
        r"Nothing was lost: (\d+) delivered \+ (\d+) dead letters \+ (\d+) still queued = (\d+) events", words(demo.out)
    )
    assert sum_line is not None, demo.out
    delivered, dead, queued, events = map(int, sum_line.groups())
    assert delivered + dead + queued == events == 800
    assert "The healthy endpoint got all 200 events, in order, with 200 requests" in words(demo.out)
    assert number(demo.out, r"The dead endpoint saw (\d+) requests in the busiest 10 s") == 5
    # One burst at about 3, 13, 23 and 33 s.
    assert number(demo.out, r"its loop halted (\d+) times") >= 3
    assert number(demo.out, r"The rate-limiting endpoint answered (\d+) times 429") > 0
    assert "WRONG" not in demo.out
    assert "Traceback" not in demo.error
    assert "aiokafka" not in demo.error
    # No escape sequences where there is no terminal.
    assert "\x1b" not in demo.out + demo.error


@pytest.mark.asyncio
async def test_the_serving_demo_says_where_its_pages_are_and_ends_in_order_on_ctrl_c() -> None:
    started_at = time.monotonic()
    process = await start("--serve")
    assert process.stdout is not None
    said = ""
    while "/readyz" not in said:
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line, "the demo ended too soon"
        said += line.decode()
    page = re.search(r"http://127\.0\.0\.1:(\d+)/status", said)
    assert page is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", int(page[1]))
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert b" 200 " in answer.splitlines()[0]
    process.send_signal(signal.SIGINT)
    demo = await ended(process, started_at, said)
    assert demo.status == 0, demo.out + demo.error
    assert "Nothing was lost" in demo.out
