"""The attempts of a record are forgotten only when nobody can begin at it again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from delivery.model import Answer, Reply, RetryLimits, Revoked, Stopped
from delivery.policy.standing import FRESH, Standing
from tests.contract.loop_kit import QUEUE, LoopKit
from tests.virtual_time import in_virtual_time, time_passes

OK, NOT_FOUND, BUSY = Answer(status=204), Answer(status=404), Answer(status=500)
THREE = RetryLimits(max_attempts=3)


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


async def killed(kit: LoopKit, running: asyncio.Task[object]) -> None:
    """Nothing is told; the next owner finds what the ledger and Kafka have."""
    running.cancel()
    await asyncio.wait([running])
    taken = (await kit.ledger.take_over([QUEUE.topic]))[QUEUE.topic]
    kit.tenure = kit.take_over()
    kit.tenure.standing = kit.tenure.recorded = taken.standing


@in_virtual_time
@pytest.mark.parametrize("last", [BUSY, NOT_FOUND, OK], ids=["exhausted", "rejected at last", "delivered at last"])
async def test_a_record_whose_end_kafka_has_not_confirmed_keeps_its_attempts_if_its_owner_is_killed(
    last: Answer,
) -> None:
    kit = LoopKit(BUSY, BUSY, last, count=2, retry=THREE)
    kit.member.gate = asyncio.Event()
    running = kit.start()
    await time_passes(60.0)
    assert kit.sender.ids == ["msg_0"] * 3, "the next record would take the place of its attempts"
    await killed(kit, running)
    kit.member.gate.set()
    running = kit.start()
    await kit.until_settled(2)
    assert kit.sender.ids.count("msg_0") <= THREE.max_attempts + 1
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_the_attempts_of_a_record_are_not_written_down_before_kafka_has_everything_before_it() -> None:
    kit = LoopKit(OK, BUSY, BUSY, BUSY, retry=THREE)
    kit.member.gate = asyncio.Event()
    running = kit.start()
    await time_passes(60.0)
    # An owner that begins at the record before would take that one in hand, and know nothing of this one's attempts.
    assert kit.sender.ids == ["msg_0", "msg_1"]
    assert kit.ledger.records == []
    kit.member.gate.set()
    await time_passes(0.1)
    assert kit.member.offsets == {QUEUE: 1}
    assert {written.in_hand.offset for _, written in kit.ledger.records if written.in_hand is not None} == {1}
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_1", "msg_1", "msg_1", "msg_2", "msg_2", "msg_2"]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_queue_that_is_lost_meanwhile_is_handed_over_with_what_is_not_written_down_yet() -> None:
    kit = LoopKit(BUSY, OK, retry=THREE)
    running = kit.start()
    await time_passes(0.1)
    written = kit.ledger.records[-1][1]
    assert written.in_hand is not None
    kit.member.gate = asyncio.Event()
    await time_passes(1.0)
    assert (kit.tenure.standing, kit.tenure.writing, kit.tenure.settled_to) == (FRESH, True, 1)
    kit.tenure.lose()
    kit.tenure.released()
    assert await running == Revoked()
    assert kit.ledger.records[-1][1] == written, "the hand-over has said more by now"


@in_virtual_time
async def test_a_stop_does_not_wait_for_kafka_to_write_down_what_came_of_a_request() -> None:
    async def late() -> Reply:
        await time_passes(1.0)
        return BUSY

    kit = LoopKit(OK, late)
    kit.member.gate = asyncio.Event()
    running = kit.start()
    await time_passes(0.5)
    kit.tenure.stop()
    assert await running == Stopped()
    assert [written.in_hand.offset for _, written in kit.ledger.records if written.in_hand is not None] == [1]
    assert kit.ledger.records[-1][1] == kit.tenure.standing != Standing()
