"""Which member of a group gets which partition."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from delivery.model import Partition


def share(members: Mapping[str, Collection[str]], partitions: Collection[Partition]) -> dict[str, list[Partition]]:
    """Give every partition to one of the members that subscribe to its topic; `members` maps ids to topics.

    Rendezvous hashing with bounded loads: each partition ranks the members by a hash, and takes the first that has
    less than an equal share. So nobody has more than ceil(partitions / members) unless subscriptions differ, and one
    member more or less moves little beside its own share: a queue that moves stands still for a moment.
    """
    shared: dict[str, list[Partition]] = {member: [] for member in members}
    if not members:
        return shared
    most = -(-len(partitions) // len(members))
    topics = {member: frozenset(subscribed) for member, subscribed in members.items()}
    for partition in sorted(partitions):
        able = [member for member in members if partition.topic in topics[member]]
        if not able:
            continue
        free = [member for member in able if len(shared[member]) < most]
        # With different subscriptions the equal share can be too little for those that are able.
        chosen = max(free, key=lambda m: _rank(m, partition)) if free else min(able, key=lambda m: len(shared[m]))
        shared[chosen].append(partition)
    return shared


def _rank(member: str, partition: Partition) -> bytes:
    text = f"{member}\0{partition.topic}\0{partition.partition}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
