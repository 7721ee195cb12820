"""`make bench`: how fast a delivery is, against what its parts cost by themselves in the same run.

The floor is the CPU of a bare aiohttp session that posts the same body (50 tasks), of an aiokafka producer and of an
aiokafka consumer, each alone in a process. Ours is the CPU of `delivery run` from the moment when events appear in
the source topic to the last committed offset. Everything talks to one Kafka node and one endpoint on loopback;
rounds are repeated, ratios are made within a round, and medians are shown. Exit status 1 when a limit is missed
that is binding already; the others are shown as missed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import statistics
import sys
import time
import uuid
from collections.abc import Sequence

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.benchmarks.load import Cost
from tests.benchmarks.report import Figure, Limit, Verdict, as_json, show
from tests.benchmarks.stage import ROOT, Endpoint, endpoint, step
from tests.benchmarks.worker import Work, bench

BOOTSTRAP = "TEST_KAFKA_BOOTSTRAP"
ROUNDS = 3

CPU = Limit(must=4.0, aim=3.0)
RATE_1 = Limit(must=0.35, aim=0.6, at_least=True)
# Two cores carry Kafka, the endpoint and the worker: the rate is what the CPU allows, not what the loops could do.
IDEAL = Limit(must=0.9, aim=0.97, at_least=True, binding=False)
# Fan-out transactions that follow one another wait 20 ms in the Kafka client (its answer to CONCURRENT_TRANSACTIONS).
P50_MS = Limit(must=20, aim=8, binding=False)
P99_MS = Limit(must=80, aim=30, binding=False)
CPU_1000 = Limit(must=4.0, aim=1.5)
IDLE_CORE = Limit(must=0.08, aim=0.03, binding=False)
IDLE_MIB = Limit(must=300, aim=150)

SLOW_S = 0.05
SLOW_ENDPOINTS = 200
BUSY = 0.9
"""Share of a core from which on a worker, which has one thread, has no time left; and of all cores, for everybody."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The parts, each alone."""

    post: Cost
    sequential: Cost
    raw: Cost
    produce: Cost
    consume: Cost

    @property
    def cpu_us(self) -> float:
        """CPU that a delivery cannot do without, in microseconds."""
        return self.post.cpu_us + self.produce.cpu_us + self.consume.cpu_us


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Everything that is repeated."""

    floor: Floor
    one: Cost
    fifty: Cost
    slow: Cost
    latencies_ms: list[float]


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


async def floor_of(bootstrap: str, served: Endpoint) -> Floor:
    """Every part once. The consumer reads what the producer wrote."""
    url = served.url("/ok/floor")
    topic = f"bench-floor-{uuid.uuid4().hex[:10]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        return Floor(
            post=await step("post", url=url, count=10_000, tasks=50),
            sequential=await step("post", url=url, count=3_000, tasks=1),
            raw=await step("raw", url=url, count=10_000, tasks=50),
            produce=await step("produce", bootstrap=bootstrap, topic=topic, count=20_000),
            consume=await step("consume", bootstrap=bootstrap, topic=topic, count=20_000),
        )
    finally:
        await admin.delete_topics([topic])
        await admin.close()


async def round_of(bootstrap: str, served: Endpoint) -> Round:
    """The floor and ours, one right after the other."""
    say("  the floor")
    floor = await floor_of(bootstrap, served)
    say("  50 endpoints")
    async with bench(bootstrap, served, Work(endpoints=50)) as running:
        fifty = await running.deliver(10_000)
        latencies_ms = await running.latencies_ms(per_s=100, seconds=8)
    say("  1 endpoint")
    async with bench(bootstrap, served, Work(endpoints=1)) as running:
        one = await running.deliver(5_000)
    say(f"  {SLOW_ENDPOINTS} endpoints at {1000 * SLOW_S:.0f} ms")
    async with bench(bootstrap, served, Work(endpoints=SLOW_ENDPOINTS, script=f"after-{SLOW_S}")) as running:
        slow = await running.deliver(60 * SLOW_ENDPOINTS)
    return Round(floor=floor, one=one, fifty=fifty, slow=slow, latencies_ms=latencies_ms)


def figures_of(rounds: Sequence[Round]) -> list[Figure]:
    """Medians over the rounds."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    def floor(name: str, of: Sequence[Cost]) -> Figure:
        return Figure(name=f"floor: {name}", value=median([cost.cpu_us for cost in of]), unit="µs")

    ideal_per_s = SLOW_ENDPOINTS / SLOW_S
    percentiles = [statistics.quantiles(r.latencies_ms, n=100) for r in rounds]
    return [
        floor("POST with a bare aiohttp session, 50 tasks", [r.floor.post for r in rounds]),
        floor("aiokafka produce", [r.floor.produce for r in rounds]),
        floor("aiokafka consume", [r.floor.consume for r in rounds]),
        Figure(name="floor: sum", value=median([r.floor.cpu_us for r in rounds]), unit="µs"),
        floor("POST on a raw socket, 50 tasks (for comparison)", [r.floor.raw for r in rounds]),
        Figure(name="50 endpoints: CPU per delivery", value=median([r.fifty.cpu_us for r in rounds]), unit="µs"),
        Figure(name="50 endpoints: deliveries", value=median([r.fifty.per_s for r in rounds]), unit="/s"),
        Figure(
            name="50 endpoints: CPU per delivery against the floor",
            value=median([r.fifty.cpu_us / r.floor.cpu_us for r in rounds]),
            unit="×",
            limit=CPU,
        ),
        Figure(name="1 endpoint: CPU per delivery", value=median([r.one.cpu_us for r in rounds]), unit="µs"),
        Figure(
            name="1 endpoint: CPU per delivery against the floor",
            value=median([r.one.cpu_us / r.floor.cpu_us for r in rounds]),
            unit="×",
            limit=CPU,
        ),
        Figure(name="1 endpoint: deliveries", value=median([r.one.per_s for r in rounds]), unit="/s"),
        Figure(
            name="1 endpoint: bare aiohttp loop", value=median([r.floor.sequential.per_s for r in rounds]), unit="/s"
        ),
        Figure(
            name="1 endpoint: rate against the bare loop",
            value=median([r.one.per_s / r.floor.sequential.per_s for r in rounds]),
            unit="×",
            limit=RATE_1,
        ),
        Figure(
            name=f"{SLOW_ENDPOINTS} endpoints at {1000 * SLOW_S:.0f} ms: share of the ideal {ideal_per_s:,.0f}/s",
            value=median([r.slow.per_s / ideal_per_s for r in rounds]),
            unit="",
            limit=IDEAL,
            excuse=_cpu_bound([r.slow for r in rounds]),
        ),
        Figure(
            name="produced to received at 100/s: p50",
            value=median([p[49] for p in percentiles]),
            unit="ms",
            limit=P50_MS,
        ),
        Figure(
            name="produced to received at 100/s: p99",
            value=median([p[98] for p in percentiles]),
            unit="ms",
            limit=P99_MS,
        ),
    ]


def _cpu_bound(costs: Sequence[Cost]) -> str:
    core = statistics.median([cost.cpu_s / cost.seconds for cost in costs])
    machine = statistics.median([1 - cost.spare for cost in costs])
    if core < BUSY and machine < BUSY:
        return ""
    return f"CPU-bound (worker {core:.0%} of a core, machine {machine:.0%})"


async def thousand(bootstrap: str, served: Endpoint, fifty: Cost) -> list[Figure]:
    """What a thousand endpoints cost, idle and busy; `fifty` is a run of the same machine."""
    say("1,000 endpoints")
    async with bench(bootstrap, served, Work(endpoints=1_000)) as running:
        await asyncio.sleep(5)
        core, mib = await running.idle(20)
        busy = await running.deliver(20_000)
    return [
        Figure(name="1,000 endpoints: CPU per delivery", value=busy.cpu_us, unit="µs"),
        Figure(
            name="1,000 endpoints: CPU per delivery against 50",
            value=busy.cpu_us / fifty.cpu_us,
            unit="×",
            limit=CPU_1000,
        ),
        Figure(name="1,000 endpoints, idle: share of a core", value=core, unit="", limit=IDLE_CORE),
        Figure(name="1,000 endpoints, idle: memory", value=mib, unit="MiB", limit=IDLE_MIB),
    ]


async def measure(bootstrap: str, rounds: int, *, full: bool) -> list[Figure]:
    """All figures."""
    done: list[Round] = []
    async with endpoint() as served:
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            done.append(await round_of(bootstrap, served))
        figures = figures_of(done)
        if full:
            figures += await thousand(bootstrap, served, done[-1].fifty)
    return figures


def main() -> int:
    """Start Kafka where none is named, measure, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Speed, against the floor.")
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--full", action="store_true", help="1,000 endpoints too")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    args = parser.parse_args()
    bootstrap = os.environ.get(BOOTSTRAP)
    if not bootstrap:
        with_kafka = str(ROOT / "tools" / "with_kafka.sh")
        os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"
        os.execv(with_kafka, [with_kafka, sys.executable, "-m", "tests.benchmarks", *sys.argv[1:]])
    begun = time.monotonic()
    rounds = 1 if args.quick else ROUNDS
    figures = asyncio.run(measure(bootstrap, rounds, full=args.full))
    missed = [figure for figure in figures if figure.missed]
    if args.json:
        print(as_json(figures))
    else:
        show(figures, f"{rounds} round{'s' if rounds > 1 else ''}, {os.cpu_count()} cores, medians")
    short = sum(figure.verdict is Verdict.MISSED for figure in figures)
    say(
        f"{short} of {sum(f.limit is not None for f in figures)} limits missed, {len(missed)} of them binding, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
