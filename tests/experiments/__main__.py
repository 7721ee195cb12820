"""`make experiments`: five situations, run with the real worker against a scripted endpoint, and counted there.

What counts is what an endpoint saw, not what the sender believes. Reference figures of other senders stand beside
ours; they are printed and not run again. Exit status 1 when a target of ours is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar

from tests.experiments.dead_endpoint import DEAD_ENDPOINT
from tests.experiments.flaky_call import FLAKY_CALL
from tests.experiments.herd import HERD
from tests.experiments.one_owner import ONE_OWNER
from tests.experiments.report import Figure, Verdict, as_json, show
from tests.experiments.retry_storm import RETRY_STORM
from tests.experiments.scene import FULL, QUICK, Experiment, Scene, Stage, play
from tests.services import ROOT

EXPERIMENTS = (DEAD_ENDPOINT, RETRY_STORM, FLAKY_CALL, HERD, ONE_OWNER)
KAFKA, REDIS = "TEST_KAFKA_BOOTSTRAP", "TEST_REDIS_URL"
# Most scenes wait most of the time. More at once would be late for it on two cores.
AT_ONCE = 6

Chosen = tuple[Experiment, Scene]


class TimeBar(ProgressColumn):
    """How much of the time that a scene takes has gone by."""

    def render(self, task: Task) -> ProgressBar:
        """As rich draws its bars."""
        return ProgressBar(total=task.total, completed=min(task.elapsed or 0.0, task.total or 0.0), width=40)


class Watch:
    """Says what runs: bars on a terminal, a line at the end of each scene elsewhere."""

    def __init__(self, progress: Progress, *, quick: bool) -> None:
        self._progress, self._quick = progress, quick
        self._terminal = progress.console.is_terminal

    @contextlib.asynccontextmanager
    async def over(self, experiment: Experiment, scene: Scene) -> AsyncIterator[None]:
        """While a scene runs."""
        label, began = f"{experiment.name} {scene.name}", time.monotonic()
        task = self._progress.add_task(label, total=scene.about_s[self._quick])
        try:
            yield
        finally:
            self._progress.remove_task(task)
            if not self._terminal:
                print(f"experiments: {label}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


async def run_all(chosen: Sequence[Chosen], stage: Stage, watch: Watch) -> dict[Chosen, list[Figure]]:
    """Those that measure a rate one after the other, then the others side by side, the longest first."""
    done: dict[Chosen, list[Figure]] = {}
    places = asyncio.Semaphore(AT_ONCE)

    async def one(choice: Chosen) -> None:
        async with places, watch.over(*choice):
            done[choice] = await play(choice[1], choice[0], stage)

    for choice in chosen:
        if choice[1].alone:
            await one(choice)
    waiting = [choice for choice in chosen if not choice[1].alone]
    waiting.sort(key=lambda choice: -choice[1].about_s[stage.size.quick])
    await asyncio.gather(*(one(choice) for choice in waiting))
    return done


def in_order(chosen: Sequence[Chosen], done: dict[Chosen, list[Figure]]) -> list[Figure]:
    """Each experiment's reference figures, then ours."""
    figures: list[Figure] = []
    for experiment in dict.fromkeys(experiment for experiment, _ in chosen):
        figures += experiment.references()
        for choice in chosen:
            if choice[0] is experiment:
                figures += done[choice]
    return figures


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.experiments", description="E1 to E5, counted at the endpoint."
    )
    parser.add_argument("--quick", action="store_true", help="smaller counts, and times halved")
    parser.add_argument("--only", metavar="E2[,E3]", help="only these experiments")
    parser.add_argument("--scene", metavar="TEXT", help="only scenes whose name contains this")
    parser.add_argument("--logs", metavar="DIR", type=Path, help="keep the workers' logs there")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    return parser.parse_args()


def choose(only: str | None, scene: str | None) -> list[Chosen]:
    """The scenes that were asked for, in the order of the table."""
    names = None if only is None else set(only.upper().split(","))
    return [
        (experiment, one)
        for experiment in EXPERIMENTS
        for one in experiment.scenes
        if (names is None or experiment.name in names) and (scene is None or scene in one.name)
    ]


def main() -> int:
    """Start Kafka and Redis where none are named, run, report."""
    args = arguments()
    chosen = choose(args.only, args.scene)
    if not chosen:
        print("experiments: no such scene", file=sys.stderr)
        return 2
    if not (os.environ.get(KAFKA) and os.environ.get(REDIS)):
        with_kafka = str(ROOT / "tools" / "with_kafka.sh")
        os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"
        os.execv(with_kafka, [with_kafka, sys.executable, "-m", "tests.experiments", *sys.argv[1:]])
    began = time.monotonic()
    size = QUICK if args.quick else FULL
    columns = (TextColumn("{task.description}"), TimeBar(), TimeElapsedColumn())
    console = Console(stderr=True)

    async def measure() -> dict[Chosen, list[Figure]]:
        stage = Stage(os.environ[KAFKA], os.environ[REDIS], size, args.logs)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            return await run_all(chosen, stage, Watch(progress, quick=size.quick))

    figures = in_order(chosen, asyncio.run(measure()))
    took = f"{time.monotonic() - began:.0f} s, {os.cpu_count()} cores"
    if args.json:
        print(as_json(figures))
    else:
        show(figures, f"Experiments{', reduced' if size.quick else ''}: {took}")
    return _verdict(figures, took)


def _verdict(figures: Sequence[Figure], took: str) -> int:
    missed = [figure for figure in figures if figure.verdict is Verdict.MISSED]
    targets = len(missed) + sum(figure.verdict is Verdict.REACHED for figure in figures)
    for figure in missed:
        # Once more after the table, since of a long output often only the end is kept.
        line = f"{figure.experiment} {figure.scene}: {figure.name}: {figure.measured}, target {figure.target}"
        print(f"experiments: MISSED: {line}", file=sys.stderr)
    print(f"experiments: {len(missed)} of {targets} targets missed, {took}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
