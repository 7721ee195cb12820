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
LEAVING = b"leaving"


class FewMovesAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka ships no types
    """Balanced, and a member more or less moves little. All members of a group have to use it.

    The client knows assignors as classes: `for_one_member` makes one whose `leaving` is that member's own.
    """

    name = "delivery-few-moves"
    leaving = False

    @classmethod
    def for_one_member(cls) -> type[FewMovesAssignor]:
        """A class for one consumer; with `leaving` set it asks for nothing at the next rebalance."""
        return type(cls.__name__, (cls,), {})

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Computed by the group's leader for everybody."""
        staying = {name: member.subscription for name, member in members.items() if member.user_data != LEAVING}
        topics = {topic for subscription in staying.values() for topic in subscription}
        partitions = [Partition(topic, p) for topic in topics for p in cluster.partitions_for_topic(topic) or ()]
        shared = share(staying, partitions)
        return {member: _assignment(shared.get(member, [])) for member in members}

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What a member says about itself when it joins."""
        return ConsumerProtocolMemberMetadata(VERSION, sorted(topics), LEAVING if cls.leaving else b"")

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Nothing is remembered: the same members get the same again."""


def _assignment(partitions: Iterable[Partition]) -> ConsumerProtocolMemberAssignment:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    return ConsumerProtocolMemberAssignment(VERSION, sorted(by_topic.items()), b"")
