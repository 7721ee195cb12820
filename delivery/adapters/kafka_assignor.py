"""The group's assignor: `policy.share` in the words of Kafka's consumer protocol."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from delivery.model import Partition
from delivery.policy.share import share

VERSION = 0


class FewMovesAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka ships no types
    """Balanced, and a member more or less moves little. All members of a group have to use it."""

    name = "delivery-few-moves"

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Computed by the group's leader for everybody."""
        topics = {topic for metadata in members.values() for topic in metadata.subscription}
        partitions = [Partition(topic, p) for topic in topics for p in cluster.partitions_for_topic(topic) or ()]
        shared = share({member: metadata.subscription for member, metadata in members.items()}, partitions)
        return {member: _assignment(mine) for member, mine in shared.items()}

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What a member says about itself when it joins."""
        return ConsumerProtocolMemberMetadata(VERSION, sorted(topics), b"")

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Nothing is remembered: the same members get the same again."""


def _assignment(partitions: Iterable[Partition]) -> ConsumerProtocolMemberAssignment:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    return ConsumerProtocolMemberAssignment(VERSION, sorted(by_topic.items()), b"")
