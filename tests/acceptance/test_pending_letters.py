"""How many dead letters wait, by the metrics of running workers, and by the list beside them."""

from __future__ import annotations

import json

import pytest

from supervisor.demo.scripts import always
from tests.acceptance.harness import System, Worker, until
from tests.acceptance.letters import letter, write

PENDING, AGE = "delivery_dead_letters_pending", "delivery_oldest_dead_letter_age_seconds"


async def told(workers: list[Worker], tenant: str) -> list[float]:
    """The figures for this tenant, of those workers that have one."""
    found = []
    for worker in workers:
        lines = (await worker.get("/metrics"))[1].splitlines()
        found += [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f'{PENDING}{{tenant="{tenant}"}}')]
    return found


@pytest.mark.asyncio
async def test_one_worker_tells_what_the_list_counts_and_a_replay_lowers_it(system: System) -> None:
    for name in ("billing", "crm"):
        path = system.endpoint("acme", name, system.source("orders"))
        system.server.script(path, always(204))
    system.endpoint("zoo", "billing", system.source("orders"))
    await system.create(system.source("orders"))
    await system.create(
        *(f"{system.prefix}.{tenant}.dead-letters" for tenant in ("acme", "zoo")),
        *(system.queue(*name) for name in (("acme", "billing"), ("acme", "crm"), ("zoo", "billing"))),
        configs={"max.message.bytes": "2097152"},
    )
    made = [letter(system, n, endpoint="crm" if n % 3 else "billing") for n in range(30)]
    await write(system, [*made, made[0]])
    workers = [await system.run(), await system.run()]

    async def says(tenant: str, number: int) -> bool:
        return await told(workers, tenant) == [number]

    await until(lambda: says("acme", 30), 60, "30 letters, told by one worker")
    await until(lambda: says("zoo", 0), 60, "none, told by one worker")
    assert max([await worker.metric(AGE, tenant="acme") for worker in workers]) > 0
    status, _, error = await system.command("dead-letters", "replay", "--yes", "--endpoint", "billing")
    assert status == 0, error
    await until(lambda: says("acme", 20), 60, "20 letters after the replay of 10")
    _, out, _ = await system.command("dead-letters", "list", "--pending", "--tenant", "acme", "--json")
    assert len([line for line in out.splitlines() if "id" in json.loads(line)]) == 20
