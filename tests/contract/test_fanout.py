"""A fan-out lane that another producer fenced, or whose transaction hangs, and what the fan-out says of its lanes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from delivery.fanout import FENCED_S, WRITE_S, Fanout
from delivery.lanes import LaneProducer
from delivery.model import OutgoingRecord, Partition
from delivery.policy.fan_out import FanoutPlan, TopicLimits
from delivery.policy.subscribe import Subscriptions
from delivery.ports import Fenced
from tests.fakes import FakeMember, FakeReader, FakeRecord, RecordingMeter, endpoint
from tests.virtual_time import in_virtual_time, others, time_passes

SOURCE = Partition("orders", 0)
QUEUE = "p.acme.billing.queue"


class Broker:
    """`LaneProducers` and `StartingPoints`: only the latest producer may write, and what it wrote is kept."""

    def __init__(self) -> None:
        self.started_at: list[float] = []
        self.written: list[OutgoingRecord] = []
        self.committed = 0
        self.latest: Producer | None = None
        self.open = 0
        self.gates: deque[asyncio.Event] = deque()

    async def start(self, partition: Partition) -> LaneProducer:
        """Fences the former one."""
        self.started_at.append(asyncio.get_running_loop().time())
        self.latest = Producer(self)
        self.open += 1
        return self.latest

    async def of(self, partition: Partition, producer: LaneProducer) -> int | None:
        """What is committed."""
        return self.committed


class Producer:
    """`LaneProducer`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def write(self, records: Sequence[OutgoingRecord], offsets: Mapping[Partition, int]) -> None:
        """All or nothing."""
        if self._broker.gates:
            await self._broker.gates[0].wait()
        if self._broker.latest is not self:
            raise Fenced
        self._broker.written += records
        self._broker.committed = offsets[SOURCE]

    async def close(self) -> None:
        """Count."""
        self._broker.open -= 1


class Topics:
    """`OwnTopics`: all that is needed exists."""

    limits = TopicLimits(by_topic={QUEUE: None, "p.acme.dead-letters": None})

    async def look_again(self) -> bool:
        """Nothing new."""
        return False


class Scene:
    """One source partition that is ours, and a fan-out."""

    def __init__(self) -> None:
        self.broker, self.member, self.reader = Broker(), FakeMember(SOURCE), FakeReader()
        self.fanout = Fanout(
            member=self.member,
            reader=self.reader,
            producers=self.broker,
            starting_points=self.broker,
            plan=FanoutPlan(Subscriptions((endpoint(),), frozenset(), ("acme",)), "p"),
            topics=Topics(),
            meter=RecordingMeter(),
        )

    def produce(self, *offsets: int) -> None:
        """Events that the endpoint subscribes to."""
        self.reader.add(*(FakeRecord(offset=n, headers=(("webhook-id", b"msg_%d" % n),)) for n in offsets))

    @property
    def ids(self) -> list[str]:
        """What was queued."""
        return [(dict(record.headers)["webhook-id"] or b"").decode() for record in self.broker.written]


@in_virtual_time
async def test_a_worker_that_was_taken_for_dead_starts_its_lane_anew_and_queues_everything_once() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.fanout.run())
    scene.produce(0, 1)
    await others()
    assert scene.ids == ["msg_0", "msg_1"]
    aborter = await scene.broker.start(SOURCE)
    await aborter.close()
    fenced_at = asyncio.get_running_loop().time()
    scene.produce(2)
    await time_passes(FENCED_S / 2)
    assert scene.ids == ["msg_0", "msg_1"], "it wrote nothing as the fenced one"
    await time_passes(FENCED_S)
    assert scene.ids == ["msg_0", "msg_1", "msg_2"]
    assert scene.broker.started_at[-1] == fenced_at + FENCED_S
    assert scene.broker.open == 1, "the fenced producer is closed"
    task.cancel()
    await scene.fanout.stop()


@in_virtual_time
async def test_a_fenced_lane_whose_partition_is_anothers_by_then_fences_nobody() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.fanout.run())
    await others()
    await scene.broker.start(SOURCE)
    scene.produce(0)
    await others()
    scene.member.assign()
    await time_passes(10 * FENCED_S)
    assert len(scene.broker.started_at) == 2
    assert scene.ids == []
    task.cancel()


@in_virtual_time
async def test_a_lane_counts_as_open_until_its_last_transaction_has_ended() -> None:
    scene = Scene()
    gate = asyncio.Event()
    scene.broker.gates.append(gate)
    task = asyncio.create_task(scene.fanout.run())
    scene.produce(0)
    await others()
    assert scene.fanout.sources == {SOURCE}
    scene.member.assign()
    await others()
    assert scene.fanout.sources == {SOURCE}, "lost, and still in a transaction"
    gate.set()
    await others()
    assert scene.fanout.sources == frozenset()
    task.cancel()


@in_virtual_time
async def test_a_transaction_that_never_ends_is_given_up_and_its_events_are_queued_by_the_next_producer() -> None:
    scene = Scene()
    scene.broker.gates.append(asyncio.Event())
    task = asyncio.create_task(scene.fanout.run())
    scene.produce(0, 1)
    await time_passes(WRITE_S - 1)
    assert len(scene.broker.started_at) == 1, "Kafka may be slow"
    scene.broker.gates.clear()
    await time_passes(2)
    assert scene.ids == ["msg_0", "msg_1"]
    assert len(scene.broker.started_at) == 2
    assert scene.broker.open == 1, "the one that hung is closed"
    task.cancel()
    await scene.fanout.stop()
