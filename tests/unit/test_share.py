"""Who gets which partition: everything is given, evenly, and little moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Partition
from delivery.policy.share import share

names = st.lists(st.uuids().map(str), min_size=1, max_size=8, unique=True)
queues = st.integers(1, 60).map(lambda n: [Partition(f"webhooks.acme.e{i}.queue", 0) for i in range(n)])


def _owners(members: list[str], partitions: list[Partition]) -> dict[Partition, str]:
    topics = {p.topic for p in partitions}
    shared = share(dict.fromkeys(members, topics), partitions)
    owners = {partition: member for member, mine in shared.items() for partition in mine}
    assert sum(map(len, shared.values())) == len(owners), "nothing is given twice"
    return owners


@given(names, queues)
def test_every_partition_is_given_to_one_member_and_nobody_has_more_than_an_equal_share(
    members: list[str], partitions: list[Partition]
) -> None:
    owners = _owners(members, partitions)
    assert owners.keys() == set(partitions)
    most = -(-len(partitions) // len(members))
    assert max(list(owners.values()).count(member) for member in members) <= most


@given(names, queues)
def test_the_same_members_share_in_the_same_way_in_whatever_order_they_are_named(
    members: list[str], partitions: list[Partition]
) -> None:
    assert _owners(members, partitions) == _owners(sorted(members), partitions[::-1])


def test_a_member_that_joins_moves_little_more_than_its_own_share() -> None:
    partitions = [Partition(f"q{n}", 0) for n in range(300)]
    moved = 0
    for trial in range(10):
        two, three = ([f"{trial}-{n}" for n in range(count)] for count in (2, 3))
        before, after = _owners(two, partitions), _owners(three, partitions)
        moved += sum(before[p] != after[p] for p in partitions)
    # 1,000 have to move to the new one; in turns, 2,000 would.
    assert moved <= 1_150


def test_a_partition_goes_only_to_members_that_subscribe_to_its_topic() -> None:
    partitions = [Partition("new", n) for n in range(4)] + [Partition("old", 0)]
    shared = share({"a": ["old"], "b": ["old", "new"], "c": ["old"]}, partitions)
    assert set(partitions[:4]) <= set(shared["b"])
    assert sum(map(len, shared.values())) == 5
    assert share({"a": ["old"]}, partitions) == {"a": [Partition("old", 0)]}
    assert share({}, partitions) == {}
