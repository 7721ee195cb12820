"""`delivery demo`: a worker against an embedded broker and four endpoints, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from delivery.naming import dead_letter_topic, delivery_group, queue_topic
from delivery.topics import TopicWanted
from supervisor import logs
from supervisor.configuration import Log, LogFormat, LogLevel
from supervisor.demo import scrape
from supervisor.demo.embedded import EmbeddedBroker, EmbeddedUnavailable
from supervisor.demo.report import show
from supervisor.demo.roles import Role
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.stage import PREFIX, TENANT, TOPIC, TYPE, configuration, prepare
from supervisor.demo.summary import Arrival, Evidence, Summary
from supervisor.wiring import build
from supervisor.worker import Worker

EVENTS = 200
# Twenty a second, for ten seconds.
BATCH = 5
BATCH_EVERY_S = 0.25
# The dead endpoint halts about 3, 13, 23 and 33 s after the start.
BURSTS = 4
LONGEST_S = 45.0
READY_S = 20.0
QUEUED_S = 5.0
LOOK_S = 0.1
# With --serve, after the first events: enough to see something move.
TRICKLE_EVERY_S = 0.5

FAILED = 1
# As a shell reports a program that SIGINT ended.
INTERRUPTED = 130


class DemoFailed(Exception):
    """The demo could not be carried through; the text says why."""


def main(serve: bool) -> int:
    """Run the demo; with `serve` until SIGINT or SIGTERM. Returns the exit status: 1 when anything went wrong."""
    logs.configure(Log(format=LogFormat.TEXT, level=LogLevel.WARNING), _Stderr())  # type: ignore[arg-type]
    try:
        embedded = EmbeddedBroker()
    except EmbeddedUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(Demo(embedded, serve=serve).run())
    except DemoFailed as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    finally:
        embedded.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Stderr:
    """Whatever `sys.stderr` is at the moment: a progress bar takes its place, and lines go above the bar."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


class Demo:
    """One run."""

    def __init__(self, embedded: EmbeddedBroker, *, serve: bool) -> None:
        self._embedded = embedded
        self._serve = serve
        self._server = ScriptedServer(keep_bodies=False)
        self._sent: list[str] = []
        self._done = False
        self._interrupted = asyncio.Event()
        self._out = _console(stderr=False)

    async def run(self) -> int:
        """From the start to the exit status."""
        await self._server.start()
        try:
            prepare(self._server, time.monotonic)
            await self._embedded.topics.create([TopicWanted(name=TOPIC, replication_factor=1, configs={})])
            summary = await self._carry_out()
        finally:
            await self._server.stop()
        if self._interrupted.is_set() and not self._serve:
            sys.stderr.write("interrupted\n")
            return INTERRUPTED
        show(summary, self._out)
        return FAILED if summary.faults() else 0

    async def _carry_out(self) -> Summary:
        worker = build(configuration(self._embedded.bootstrap, self._server), self._embedded.broker)
        stop, hurry = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupted.set)
        working = asyncio.create_task(worker.run(stop, hurry), name="worker")
        try:
            halts = await self._watched(worker, working)
        finally:
            stop.set()
            status = await working
        if status:
            raise DemoFailed("the worker did not end in order")
        return await self._evidence(halts)

    async def _watched(self, worker: Worker, working: asyncio.Task[int]) -> Mapping[str, int]:
        """Send, and look on until there is enough to see. Returns the halts of each endpoint."""
        acting = asyncio.create_task(self._act(worker), name="demo")
        await asyncio.wait([acting, working], return_when=asyncio.FIRST_COMPLETED)
        if not acting.done():
            acting.cancel()
            raise DemoFailed("the worker ended too soon")
        await acting
        return await scrape.halts(worker)

    async def _act(self, worker: Worker) -> None:
        end = time.monotonic() + LONGEST_S
        with _Bars(worker, self._server) as bars:
            await self._until(lambda: not worker.not_ready(), READY_S, bars)
            if self._serve:
                self._tell(worker)
            sending = asyncio.create_task(self._send(), name="events")
            try:
                await self._until(lambda: self._enough(worker), end - time.monotonic(), bars)
                if self._serve:
                    await self._interrupted.wait()
            finally:
                # Not cancelled: a batch that is half written would not be counted.
                self._done = True
                await sending
                await self._queued(worker)

    async def _until(self, condition: Callable[[], bool], seconds: float, bars: _Bars) -> None:
        end = time.monotonic() + seconds
        while not condition() and not self._interrupted.is_set() and time.monotonic() < end:
            bars.update(len(self._sent))
            await asyncio.sleep(LOOK_S)
        bars.update(len(self._sent))

    async def _send(self) -> None:
        while not self._done and not self._interrupted.is_set():
            fresh = len(self._sent) < EVENTS
            if not fresh and not self._serve:
                return
            await self._write(BATCH if fresh else 1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BATCH_EVERY_S if fresh else TRICKLE_EVERY_S):
                    await self._interrupted.wait()

    async def _write(self, count: int) -> None:
        numbers = range(len(self._sent) + 1, len(self._sent) + 1 + count)
        ids = [f"msg_{number:06}" for number in numbers]
        await self._embedded.write(
            TOPIC,
            [
                (
                    json.dumps({"order": number}).encode(),
                    (("webhook-id", id_.encode()), ("event-type", TYPE.encode())),
                )
                for number, id_ in zip(numbers, ids, strict=True)
            ],
            key=b"customer-1",
        )
        self._sent += ids

    async def _queued(self, worker: Worker) -> None:
        """Wait until fan-out has dealt with what was sent: only what is in a queue can be counted there."""
        end = time.monotonic() + QUEUED_S
        while time.monotonic() < end:
            if await scrape.queued(worker) >= len(self._sent) * len(Role):
                return
            await asyncio.sleep(LOOK_S)

    def _enough(self, worker: Worker) -> bool:
        if len(self._sent) < EVENTS or any(
            _delivered(self._server, role) < EVENTS for role in Role if role is not Role.DEAD
        ):
            return False
        halted = any(loop.endpoint == Role.DEAD and loop.reason for loop in worker.loops())
        return halted and self._server.count(Role.DEAD.path) >= 5 * BURSTS

    def _tell(self, worker: Worker) -> None:
        page = f"http://127.0.0.1:{worker.port}"
        self._out.print(
            f"Running until Ctrl-C.\n  status   {page}/status\n  metrics  {page}/metrics\n  ready    {page}/readyz\n"
            f"  Kafka    {self._embedded.bootstrap} (embedded), source topic {TOPIC}",
            highlight=False,
        )

    async def _evidence(self, halts: Mapping[str, int]) -> Summary:
        """Everything from where it is certain, once the worker has ended."""
        letters = [
            (letter.header("dead-letter-endpoint"), letter.header("webhook-id"), letter.header("dead-letter-reason"))
            for letter in await self._embedded.read(dead_letter_topic(PREFIX, TENANT))
        ]
        queues = {role: queue_topic(PREFIX, TENANT, role) for role in Role}
        committed = await self._embedded.committed(delivery_group(PREFIX), list(queues.values()))
        found = []
        for role, queue in queues.items():
            waiting = [r for r in await self._embedded.read(queue) if r.offset >= committed[queue]]
            found.append(
                Evidence(
                    role=role,
                    events=tuple(self._sent),
                    arrivals=[Arrival(s.webhook_id, s.at, s.status) for s in self._server.requests(role.path)],
                    dead=[(id_, reason) for endpoint, id_, reason in letters if endpoint == role],
                    queued=[record.header("webhook-id") for record in waiting],
                    halts=halts.get(role, 0),
                )
            )
        return Summary(endpoints=found, finished=not self._serve)


class _Bars:
    """Progress on standard error, when that is a terminal."""

    def __init__(self, worker: Worker, server: ScriptedServer) -> None:
        console = _console(stderr=True)
        columns = (
            TextColumn("{task.description:<14}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._worker = worker
        self._server = server
        self._sent = self._progress.add_task("events sent", total=EVENTS, note="")
        self._roles: dict[Role, TaskID] = {
            role: self._progress.add_task(role.value, total=EVENTS, note="") for role in Role
        }

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, sent: int) -> None:
        """Show how it stands."""
        if self._progress.disable:
            return
        total = max(EVENTS, sent)
        self._progress.update(self._sent, completed=sent, total=total)
        notes = {loop.endpoint: f"{loop.state} {loop.reason}" for loop in self._worker.loops()}
        for role, task in self._roles.items():
            done = _delivered(self._server, role)
            self._progress.update(task, completed=done, total=total, note=notes.get(role, "joining"))


def _delivered(server: ScriptedServer, role: Role) -> int:
    return sum(200 <= seen.status < 300 for seen in server.requests(role.path))


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    # What is not a terminal has no width of its own, and rich's 80 columns break the table's words.
    return console if console.is_terminal else Console(stderr=stderr, width=110)
