"""`delivery dead-letters list` and `show` on real Kafka."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator

import pytest

from delivery.model import Answer, DeadLetterReason, OutgoingRecord
from delivery.policy.letters import Receipt, receipt_record
from tests.acceptance.harness import System
from tests.acceptance.letters import TIMED_OUT, ids, letter, write

MANY = 100_000
MOST_S = 20.0
MOST_BYTES = 150 * 1_000_000

# Not ru_maxrss: that begins with what the process had that started this one.
MEASURED = """
import pathlib, runpy, sys
try:
    runpy.run_module("supervisor", run_name="__main__", alter_sys=True)
finally:
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    print(status["VmHWM"].split()[0], file=sys.stderr)
"""


async def _topics(system: System, *tenants: str) -> None:
    for tenant in tenants:
        await system.create(
            f"{system.prefix}.{tenant}.dead-letters", system.queue(tenant, "billing"),
            configs={"max.message.bytes": "2097152"},
        )  # fmt: skip


@pytest.mark.asyncio
async def test_list_counts_by_kind_and_shows_what_was_asked_for(system: System) -> None:
    for tenant in ("acme", "other"):
        system.endpoint(tenant, "billing", system.source("orders"))
    await _topics(system, "acme", "other")
    made = [
        letter(system, 1),
        letter(system, 2, endpoint="crm"),
        letter(system, 3, reason=DeadLetterReason.EXHAUSTED, reply=503),
        letter(system, 4, reason=DeadLetterReason.EXHAUSTED, reply=TIMED_OUT),
        letter(system, 5, tenant="other"),
    ]
    names = ids(made)
    again = receipt_record(made[0].topic, Receipt(id=names[0], at_ms=1_700_000_000_000, run="r1"))
    await write(system, [*made, made[2], again])

    status, out, error = await system.command("dead-letters", "list")
    assert (status, error) == (0, "")
    assert out.startswith("4 pending dead letters\n")
    assert names[0] not in out
    assert all(out.count(name) == 1 for name in names[1:]), "the one that was written twice is one"

    async def listed(*options: str) -> list[str]:
        status, out, error = await system.command("dead-letters", "list", "--json", *options)
        assert (status, error) == (0, "")
        return [json.loads(line)["id"] for line in out.splitlines()]

    assert await listed() == names[1:]
    assert await listed("--replayed") == names[:1]
    assert await listed("--all", "--tenant", "acme") == names[:4]
    assert await listed("--status", "5xx") == [names[2]]
    assert await listed("--outcome", "unknown", "--endpoint", "billing") == [names[3]]
    assert await listed("--until", "1h") == []
    assert await listed("--since", "1h", "--reason", "rejected", "--id", names[4]) == [names[4]]


@pytest.mark.asyncio
async def test_list_says_what_was_typed_wrong(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await _topics(system, "acme")
    wrong = await system.command("dead-letters", "list", "--status", "four", "--since", "tomorrow")
    assert wrong[0] == 2
    assert "--status: expected" in wrong[2]
    assert "--since: expected" in wrong[2]
    status, _, error = await system.command("dead-letters", "list", "--tenant", "nobody")
    assert (status, error) == (2, "--tenant: nobody has no dead-letter topic (expected one of: acme)\n")
    assert (await system.command("dead-letters", "list", "--reason", "bored"))[0] == 2
    status, out, _ = await system.command("dead-letters", "list")
    assert (status, out) == (0, "0 pending dead letters\n")


@pytest.mark.asyncio
async def test_show_tells_all_of_one_letter_and_what_to_do(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await _topics(system, "acme")
    answer = Answer(status=422, excerpt=b"no customer\x1b[2J", headers=((b"x-request-id", b"req-77"),))
    refused = letter(system, 1, reply=answer, headers=(("trace", b"abc"),), value=b'{"total": 12}')
    silent = letter(system, 2, reply=TIMED_OUT, reason=DeadLetterReason.EXHAUSTED, value=b"\xff\x00", endpoint="gone")
    await write(system, [refused, silent])
    first, second = ids([refused, silent])

    status, out, error = await system.command("dead-letters", "show", first)
    assert (status, error) == (0, "")
    for said in (first, "pending", "rejected", "422", "req-77", "no customer", "orders/0/1", "trace: abc", "msg_1",
                 "13 bytes", f"delivery dead-letters replay --tenant acme --id {first}"):  # fmt: skip
        assert said in out
    assert '"total"' not in out, "the body is shown only when it is asked for"
    assert "\x1b" not in out
    assert '"total": 12' in (await system.command("dead-letters", "show", first, "--body=json"))[1]
    assert '{"total": 12}' in (await system.command("dead-letters", "show", first, "--body"))[1]

    status, out, _ = await system.command("dead-letters", "show", second, "--body=hex", "--tenant", "acme")
    assert "00000000  ff 00" in out
    assert "--outcome unknown --to ENDPOINT" in out
    assert "Look for webhook-id msg_2 there first" in out
    assert (await system.command("dead-letters", "show", second, "--body=json"))[0] == 1
    missing = await system.command("dead-letters", "show", "dl_none")
    assert (missing[0], missing[1]) == (1, "")
    assert "there is no dead letter dl_none" in missing[2]


def _many(system: System) -> Iterator[OutgoingRecord]:
    """One in ten has 404. Only the ids differ: to make each anew would take longer than what is measured."""
    patterns = [letter(system, n, reply=503 if n else 404, value=b"x" * 1_000) for n in range(10)]
    for number in range(MANY):
        pattern = patterns[number % 10]
        headers = tuple((n, b"dl_%026d" % number if n == "dead-letter-id" else value) for n, value in pattern.headers)
        yield dataclasses.replace(pattern, headers=headers)


@pytest.mark.asyncio
@pytest.mark.timeout(300)
@pytest.mark.serial
async def test_a_hundred_thousand_are_listed_within_20_s_and_150_mb(system: System) -> None:
    system.endpoint("acme", "billing", system.source("orders"))
    await _topics(system, "acme")
    await write(system, _many(system))
    environ = {k: v for k, v in os.environ.items() if not k.startswith("DELIVERY_")} | system.settings
    for options in (("--status", "404"), ("--status", "404", "--json"), ()):
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MEASURED, "dead-letters", "list", *options, env=environ,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, error = await process.communicate()
        took_s = time.monotonic() - began
        assert process.returncode == 0, error.decode()
        expected = MANY // 10 if options else MANY
        said = len(out.splitlines()) if "--json" in options else int(out.split()[0])
        assert said == expected
        used = int(error.split()[-1]) * 1_024
        print(f"\n{options}: {took_s:.1f} s, {used / 1e6:.0f} MB")
        assert used < MOST_BYTES, options
        assert took_s < MOST_S, options
