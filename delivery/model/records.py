"""Kafka's records, and events, deliveries and requests made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes | None]]
"""Kafka record headers, in order, repeated names and null values included."""


class Record(Protocol):
    """A record as a Kafka consumer hands it out; `aiokafka.ConsumerRecord` fits as it is."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Partition(NamedTuple):
    """A topic's partition; equal to and hashed like `aiokafka.TopicPartition`."""

    topic: str
    partition: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a record stands in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a source record says, independent of who receives it. `time_ms` is the source record's time."""

    id: str
    type: str | None
    tenant: str | None
    time_ms: int
    source: Position
    content_type: str
    key: bytes | None = dataclasses.field(repr=False)
    body: bytes = dataclasses.field(repr=False)
    headers: Headers = dataclasses.field(repr=False)
    has_value: bool = True

    @property
    def value(self) -> bytes | None:
        """The record's value as it was: None when there is none, which `body` does not tell from an empty one."""
        return self.body if self.has_value else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event on its way to one endpoint: a record of that endpoint's queue."""

    event: Event
    queue: Position
    queued_ms: int
    replay_of: str | None = None
    replays: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """The exact request: what is signed is what is sent. Header names are lower case.

    `left_out` counts the event's headers that should have gone along and cannot: no HTTP header can carry them.
    """

    url: str = dataclasses.field(repr=False)
    headers: tuple[tuple[bytes, bytes], ...] = dataclasses.field(repr=False)
    body: bytes = dataclasses.field(repr=False)
    left_out: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRecord:
    """A record to be written to partition 0 of one of our own topics."""

    topic: str
    key: bytes | None = dataclasses.field(repr=False)
    value: bytes | None = dataclasses.field(repr=False)
    headers: Headers = dataclasses.field(repr=False)
