"""A scene: something that happens between workers and a scripted endpoint, and the figures that come of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from tests.acceptance.cluster import Cluster
from tests.acceptance.harness import System, Worker, until
from tests.experiments.report import Figure, Sheet, Verdict

# A starting process needs a core for a second or two: more at once would be late for what they were started for.
_STARTING_AT_ONCE = 2
_READY_S = 90.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of an experiment is run.

    `scale` multiplies times: 0.5 at the least, as `Retry-After` is in seconds. Workers of a quick one are forked.
    """

    quick: bool
    scale: float

    def pick(self, full: int, quick: int) -> int:
        """One of two counts."""
        return quick if self.quick else full


FULL = Size(quick=False, scale=1.0)
QUICK = Size(quick=True, scale=0.5)


class Stage:
    """Where scenes take place: the services, the size, and systems of their own."""

    def __init__(self, bootstrap: str, redis: str, size: Size, logs: Path | None = None) -> None:
        """The workers' logs are kept in `logs`, in a folder for each system; without it they are thrown away."""
        self.size = size
        self._bootstrap, self._redis, self._logs = bootstrap, redis, logs
        self._starting = asyncio.Semaphore(_STARTING_AT_ONCE)

    @contextlib.asynccontextmanager
    async def system(self) -> AsyncIterator[System]:
        """A system under a topic prefix of its own, ended with all its workers."""
        with tempfile.TemporaryDirectory(prefix="experiments-") as folder:
            async with System(self._bootstrap, Path(folder), self._redis) as made:
                # Importing the command costs a second of a processor for each of some forty workers.
                made.forks = self.size.quick
                if self._logs is not None:
                    made.folder = self._logs / made.prefix
                    made.folder.mkdir(parents=True)
                yield made

    async def worker(self, system: System, **settings: str) -> Worker:
        """Start one and wait until it is ready."""
        async with self._starting:
            worker = await system.start(**settings)
            await worker.ready(_READY_S)
            return worker

    async def workers(self, system: System, count: int) -> Cluster:
        """Start so many and wait until the group has settled: each has some of the endpoints."""
        cluster = Cluster(system)
        for _ in range(count):
            await self.join(cluster)
        await until(lambda: _shared(cluster), 40, "every worker has some of the endpoints")
        return cluster

    async def join(self, cluster: Cluster) -> Worker:
        """Start one more in a cluster and wait until it is ready."""
        async with self._starting:
            worker = await cluster.add()
            await worker.ready(_READY_S)
            return worker


async def _shared(cluster: Cluster) -> bool:
    found = [await worker.loops() for worker in cluster.living]
    labels = [label for loops in found for label in loops]
    return all(found) and len(labels) == len(set(labels)) == _configured(cluster.system)


def _configured(system: System) -> int:
    return sum(name.endswith("__URL") and "__ENDPOINTS__" in name for name in system.settings)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`run` does it. `about_s` (full, quick) is how long it takes; `alone` when it measures a rate."""

    name: str
    run: Callable[[Stage, Sheet], Awaitable[None]]
    about_s: tuple[int, int]
    alone: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Scenes of ours, beside what others did (printed, not run)."""

    name: str
    title: str
    reference: Sequence[tuple[str, str, str]]
    scenes: Sequence[Scene]

    def references(self) -> list[Figure]:
        """As lines of the table."""
        return [
            Figure(experiment=self.name, scene=sender, name=name, measured=value, verdict=Verdict.REFERENCE)
            for sender, name, value in self.reference
        ]


def _where(stopped: BaseException | None) -> str:
    """The lines of ours that were waiting when a time limit struck."""
    frames = traceback.extract_tb(None if stopped is None else stopped.__traceback__)
    ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "tests" in Path(frame.filename).parts]
    return "in " + " ".join(ours[-3:])


async def play(scene: Scene, experiment: Experiment, stage: Stage) -> list[Figure]:
    """Run one scene; whatever goes wrong is a missed figure and ends no other scene."""
    sheet = Sheet(experiment.name, scene.name)
    # Generous: whatever takes so long has gone wrong.
    limit_s = 4 * scene.about_s[stage.size.quick] + 60
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            await scene.run(stage, sheet)
    except Exception as failed:
        # The first line: the rest is a log.
        said = f"{type(failed).__name__}: {failed}".splitlines()[0][:200]
        if limit.expired():
            said = f"not within {limit_s} s, {_where(failed.__cause__)}"
        sheet.judge("it comes to its end", said, "it does", False)
    return sheet.figures
