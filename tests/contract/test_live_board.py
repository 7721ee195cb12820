"""A worker on the live board: what it tells, what it clears up, and how it bears a Redis that is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from delivery.adapters.redis_board import LIVES_MS
from delivery.board import EndpointState, Renewed, WorkerEntry
from delivery.ports import LedgerAway
from supervisor.board import ABORT_S, ABORTS_AT_ONCE, LANE_LOOKS, RENEW_S, TELL_AGAIN_S, LiveBoard
from supervisor.view import LoopState, LoopStateName
from tests.virtual_time import EPOCH_S, VirtualClock, in_virtual_time, others, time_passes

BILLING = ("acme", "billing")
AWAY = LedgerAway("Redis does not answer")


class FakeBoard:
    """Board and connection: keeps what it is told; gives `answers` first, then that all is well."""

    def __init__(self) -> None:
        self.renewed: list[WorkerEntry] = []
        self.told: list[dict[tuple[str, str], EndpointState | None]] = []
        self.left: list[str] = []
        self.answers: deque[Renewed] = deque([Renewed(was_there=False)])
        self.away = False
        self.connected = False

    async def start(self) -> None:
        """Connect."""
        self.connected = True

    async def stop(self) -> None:
        """Disconnect."""
        self.connected = False

    async def renew(self, entry: WorkerEntry) -> Renewed:
        """Or raise."""
        if self.away:
            raise AWAY
        self.renewed.append(entry)
        return self.answers.popleft() if self.answers else Renewed()

    async def tell(self, worker: str, states: Mapping[tuple[str, str], EndpointState | None]) -> None:
        """Keep it."""
        self.told.append(dict(states))

    async def leave(self, worker: str) -> None:
        """Keep it, or raise."""
        if self.away or not self.connected:
            raise AWAY
        self.left.append(worker)


class Scene:
    """One worker, its board, and what it could be asked to abort."""

    def __init__(self) -> None:
        self.board = FakeBoard()
        self.ids: set[str] = {"p.fanout.orders.0"}
        self.loops: list[LoopState] = []
        self.proven = True
        self.aborted: list[str] = []
        self.aborting = 0
        self.most_aborting = 0
        self.abort: Callable[[str], float] = lambda _: 0.14
        self.live = LiveBoard(
            self.board,
            self.board,
            worker="w1",
            host="here",
            pid=7,
            transactional_ids=lambda: self.ids,
            abort=self._abort,
            states=lambda: self.loops,
            proven=lambda: self.proven,
            clock=VirtualClock(),
        )

    async def _abort(self, transactional_id: str) -> None:
        self.aborting += 1
        self.most_aborting = max(self.most_aborting, self.aborting)
        try:
            await time_passes(self.abort(transactional_id))
        finally:
            self.aborting -= 1
        self.aborted.append(transactional_id)

    def says(self, state: LoopStateName, **more: object) -> None:
        """How the one endpoint stands."""
        values: dict[str, object] = {"tenant": "acme", "endpoint": "billing", "state": state} | more
        self.loops = [LoopState(**values)]  # type: ignore[arg-type]


def dead(*ids: str) -> WorkerEntry:
    return WorkerEntry(worker="dead", host="there", pid=1, since=1.0, transactional_ids=ids)


@in_virtual_time
async def test_the_entry_names_what_the_fan_out_may_have_open_and_a_new_lane_almost_at_once() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.live.run())
    await time_passes(RENEW_S / 2)
    scene.ids = {"p.fanout.orders.1", "p.fanout.orders.0"}
    await time_passes(RENEW_S / LANE_LOOKS * 1.1)
    scene.ids = {"p.fanout.orders.1"}
    await time_passes(RENEW_S)
    task.cancel()
    assert [entry.transactional_ids for entry in scene.board.renewed] == [
        ("p.fanout.orders.0",),
        ("p.fanout.orders.0", "p.fanout.orders.1"),
        ("p.fanout.orders.1",),
    ]
    assert {(entry.worker, entry.host, entry.pid) for entry in scene.board.renewed} == {("w1", "here", 7)}


@in_virtual_time
async def test_three_renewals_may_fail_before_the_entry_expires() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.live.run())
    await time_passes(10.0)
    task.cancel()
    assert len(scene.board.renewed) >= 10.0 * 1000 / LIVES_MS * 4


@in_virtual_time
async def test_only_what_has_changed_is_told() -> None:
    scene = Scene()
    scene.says(LoopStateName.HALTED, reason="rejections", since=5.0, next_start_in_s=9.0)
    await scene.live.look()
    [first] = scene.board.told
    told = first[BILLING]
    assert told is not None
    assert (told.state, told.reason, told.since) == ("halted", "rejections", 5.0)
    assert told.next_start_at == EPOCH_S + asyncio.get_running_loop().time() + 9.0
    await time_passes(2.0)
    scene.says(LoopStateName.HALTED, reason="rejections", since=5.0, next_start_in_s=7.003)
    await scene.live.look()
    assert len(scene.board.told) == 1, "the same due time, computed again"
    scene.says(LoopStateName.RUNNING)
    await scene.live.look()
    told = scene.board.told[1][BILLING]
    assert told is not None
    assert (told.state, told.since, told.next_start_at) == ("running", EPOCH_S + 1002.0, None)
    await time_passes(1.0)
    await scene.live.look()
    assert len(scene.board.told) == 2, "it runs since the same time"


@in_virtual_time
async def test_the_state_of_a_queue_that_went_to_another_worker_is_taken_back() -> None:
    scene = Scene()
    scene.says(LoopStateName.RUNNING)
    await scene.live.look()
    scene.loops = []
    await scene.live.look()
    assert scene.board.told[1:] == [{BILLING: None}]


@in_virtual_time
async def test_all_is_told_again_when_the_own_entry_had_gone_and_after_some_time() -> None:
    scene = Scene()
    scene.says(LoopStateName.RUNNING)
    await scene.live.look()
    await scene.live.look()
    assert len(scene.board.told) == 1
    scene.board.answers.append(Renewed(was_there=False))
    await scene.live.look()
    assert len(scene.board.told) == 2, "Redis was emptied, perhaps"
    await time_passes(TELL_AGAIN_S)
    await scene.live.look()
    assert len(scene.board.told) == 3, "somebody who was frozen wrote over it, perhaps"


@in_virtual_time
async def test_without_proof_of_membership_nothing_is_told_of_queues_that_may_be_anothers() -> None:
    scene = Scene()
    scene.says(LoopStateName.RUNNING)
    scene.proven = False
    await scene.live.look()
    assert scene.board.renewed
    assert scene.board.told == []
    scene.proven = True
    await scene.live.look()
    assert BILLING in scene.board.told[0]


@in_virtual_time
async def test_what_a_dead_worker_left_open_is_aborted_but_nothing_that_a_living_one_has() -> None:
    scene = Scene()
    living = WorkerEntry(worker="w2", host="there", pid=2, since=1.0, transactional_ids=("p.fanout.orders.5",))
    scene.board.answers = deque(
        [Renewed(expired=(dead("p.fanout.orders.4", "p.fanout.orders.5", "p.fanout.orders.6"),), living=(living,))]
    )
    began = asyncio.get_running_loop().time()
    await scene.live.look()
    assert asyncio.get_running_loop().time() == began, "nobody waits for it"
    await time_passes(0.2)
    assert sorted(scene.aborted) == ["p.fanout.orders.4", "p.fanout.orders.6"]


@in_virtual_time
async def test_many_are_aborted_a_few_at_once_and_what_hangs_or_fails_stops_no_other() -> None:
    scene = Scene()
    ids = [f"p.fanout.orders.{number}" for number in range(40)]

    def takes_s(name: str) -> float:
        if name == ids[3]:
            raise RuntimeError("Kafka said no")
        return 3600.0 if name == ids[5] else 0.14

    scene.abort = takes_s
    scene.board.answers = deque([Renewed(expired=(dead(*ids),))])
    await scene.live.look()
    await time_passes(ABORT_S + 1.0)
    assert set(scene.aborted) == set(ids) - {ids[3], ids[5]}
    assert scene.most_aborting == ABORTS_AT_ONCE
    assert scene.aborting == 0, "nor is it waited for without end"


@in_virtual_time
async def test_redis_away_does_not_end_it_and_it_is_on_the_board_again_when_redis_is_back() -> None:
    scene = Scene()
    scene.board.away = True
    task = asyncio.create_task(scene.live.run())
    await time_passes(30.0)
    assert not task.done()
    scene.board.away = False
    await time_passes(RENEW_S)
    task.cancel()
    assert scene.board.renewed


@in_virtual_time
async def test_a_clean_stop_leaves_the_board_and_finishes_what_was_being_aborted() -> None:
    scene = Scene()
    scene.board.answers = deque([Renewed(expired=(dead("p.fanout.orders.4"),))])
    await scene.live.start()
    await scene.live.look()
    await others()
    scene.ids = set()
    await scene.live.stop()
    assert scene.aborted == ["p.fanout.orders.4"]
    assert scene.board.left == ["w1"], "before it was disconnected"
    assert not scene.board.connected


@in_virtual_time
async def test_who_stops_with_a_transaction_open_stays_on_the_board_so_that_others_abort_it() -> None:
    scene = Scene()
    await scene.live.start()
    await scene.live.look()
    await scene.live.stop()
    assert scene.board.left == []


@in_virtual_time
async def test_a_stop_without_redis_raises_nothing() -> None:
    scene = Scene()
    scene.board.away = True
    scene.ids = set()
    await scene.live.stop()
    assert scene.board.left == []
