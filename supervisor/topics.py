"""The topics as they are: watched, created where allowed, and never brought into being by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from delivery.policy.fan_out import TopicLimits
from delivery.ports import Clock, Unreachable
from supervisor.own_topics import TopicFound, TopicWanted, creation_fault, faults, misconfigured

log = structlog.get_logger(__name__)

LIST_S = 3.0
# Settings of topics change by hand and rarely; a thousand of them are not described all the time.
DESCRIBE_S = 60.0
# Dead letters come at most at half a second's distance per endpoint; a list of topics serves all of them.
FRESH_S = 1.0
MISSING_LOG_S = 60.0
CREATED_S = 5.0
CREATED_LOOK_S = 0.1


class TopicsClient(Protocol):
    """What is asked of Kafka about topics. All of it raises Unreachable."""

    async def existing(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that exist; creates none."""
        ...

    async def describe(self, names: Collection[str]) -> Mapping[str, TopicFound]:
        """Partitions and settings of existing topics."""
        ...

    async def create(self, wanted: Collection[TopicWanted]) -> Mapping[str, str]:
        """Create; the error text of each that could not be created."""
        ...


class Topics:
    """What exists, what of it can be used, and who has to know when that changes."""

    def __init__(
        self,
        client: TopicsClient,
        *,
        own: Collection[TopicWanted],
        sources: Collection[str],
        create: bool,
        most_bytes: int,
        clock: Clock,
        on_change: Callable[[], None],
        on_missing: Callable[[frozenset[str]], None] = lambda _topics: None,
    ) -> None:
        """`most_bytes` is the largest record that our producers send, whatever a topic would take.

        `on_missing` is told of topics of our own that do not exist, each time, before they are created.
        """
        self._client = client
        self._most_bytes = most_bytes
        self._own = {wanted.name: wanted for wanted in own}
        self._sources = frozenset(sources)
        self._create = create
        self._clock = clock
        self._on_change = on_change
        self._on_missing = on_missing
        self._names: frozenset[str] = frozenset()
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()
        self._described_at = float("-inf")
        self._told_missing_at = float("-inf")
        self._found: dict[str, TopicFound] = {}
        self._told: dict[str, tuple[str, ...]] = {}
        self._looked_at = float("-inf")
        self._limits = TopicLimits(by_topic={})

    @property
    def limits(self) -> TopicLimits:
        """The own topics that exist, with the largest record that can be written to them."""
        return self._limits

    @property
    def sources(self) -> frozenset[str]:
        """The source topics that exist."""
        return self._sources & self._names

    @property
    def missing(self) -> frozenset[str]:
        """Source topics and own topics that do not exist."""
        return (self._sources | self._own.keys()) - self._names

    def usable(self, queue: str) -> bool:
        """The queue exists and has one partition, as a queue must."""
        found = self._found.get(queue)
        return found is not None and misconfigured(found) is None

    def trouble(self, queue: str) -> str | None:
        """Why the queue exists and still cannot be used."""
        found = self._found.get(queue)
        return None if found is None else misconfigured(found)

    async def partitions(self, topic: str) -> int | None:
        """How many partitions an existing topic has. Raises Unreachable."""
        found = await self._client.describe([topic])
        return found[topic].partitions if topic in found else None

    async def exists(self, topic: str) -> bool:
        """Whether the topic exists, by a list not older than a second. Raises Unreachable."""
        # Two hundred endpoints that are rejected at once ask at once: one of them lists for all.
        async with self._listing:
            if self._clock.monotonic() - self._listed_at > FRESH_S:
                await self._list()
        return topic in self._names

    async def limit_bytes(self, topic: str) -> int | None:
        """The largest record that can be written to the topic as it is now. Raises Unreachable."""
        found = (await self._client.describe([topic])).get(topic)
        return None if found is None else self._limit(found)

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await asyncio.sleep(LIST_S)
            try:
                await self.refresh()
            except Unreachable as error:
                log.warning("topics cannot be listed", error=str(error))

    async def refresh(self) -> None:
        """List, create what is missing and may be created, describe what is new. Raises Unreachable."""
        before = self._names
        await self._list()
        self._on_missing(frozenset(self._own.keys() - self._names))
        if self._create:
            await self._create_missing()
        self._tell_missing()
        present = self._own.keys() & self._names
        again = self._clock.monotonic() - self._described_at > DESCRIBE_S
        unknown = present if again else present - self._found.keys()
        gone = self._found.keys() - self._names
        if unknown or gone:
            for topic in gone:
                del self._found[topic]
            self._found.update(await self._client.describe(unknown))
            self._judge()
        if again:
            self._described_at = self._clock.monotonic()
        if before != self._names or unknown or gone:
            self._on_change()

    async def look_again(self) -> bool:
        """Refresh, at most once a second; False when that was done just now. Raises Unreachable."""
        if self._clock.monotonic() - self._looked_at < FRESH_S:
            return False
        await self.refresh()
        self._looked_at = self._clock.monotonic()
        return True

    async def _list(self) -> None:
        self._names = await self._client.existing(self._own.keys() | self._sources)
        self._listed_at = self._clock.monotonic()

    async def _create_missing(self) -> None:
        wanted = [topic for name, topic in self._own.items() if name not in self._names]
        if not wanted:
            return
        errors = await self._client.create(wanted)
        for name, error in errors.items():
            log.error("topic cannot be created", topic=name, error=creation_fault(error, self._own[name]))
        made = {topic.name for topic in wanted} - errors.keys()
        end = self._clock.monotonic() + CREATED_S
        await self._list()
        while made - self._names and self._clock.monotonic() < end:
            # A created topic is listed a moment later.
            await asyncio.sleep(CREATED_LOOK_S)
            await self._list()

    def _judge(self) -> None:
        known = {name: self._limit(found) for name, found in self._found.items()}
        # One that exists and cannot be described yet exists all the same.
        unknown = dict.fromkeys(self._own.keys() & self._names, self._most_bytes)
        self._limits = TopicLimits(by_topic=unknown | known)
        for name, found in self._found.items():
            why = tuple(faults(found, self._own[name]))
            if why != self._told.get(name, ()):
                log.warning("topic is not as configured", topic=name, faults=list(why))
            self._told[name] = why

    def _tell_missing(self) -> None:
        now = self._clock.monotonic()
        if self.missing and now - self._told_missing_at > MISSING_LOG_S:
            self._told_missing_at = now
            log.error("topics do not exist, waiting for them", topics=sorted(self.missing))

    def _limit(self, found: TopicFound) -> int:
        text = found.configs.get("max.message.bytes", "")
        # A record that our producer refuses would be planned, refused and planned again for ever.
        return min(int(text), self._most_bytes) if text.isdigit() else self._most_bytes
