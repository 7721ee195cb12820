"""Topics as they are and as they should be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicFound:
    """A topic as the cluster describes it. `configs` has Kafka's own names and texts, those not set included."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicWanted:
    """A topic as it is to be created."""

    name: str
    replication_factor: int
    configs: Mapping[str, str]
    partitions: int = 1
