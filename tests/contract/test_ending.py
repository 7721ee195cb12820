"""Ending what runs in the background."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from supervisor.ending import AGAIN_S, CLOSE_S, ROUNDS, close, end
from tests.virtual_time import in_virtual_time, time_passes


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _swallows_a_cancellation() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await _for_ever()
    await _for_ever()


@in_virtual_time
async def test_a_task_that_has_swallowed_its_cancellation_is_cancelled_again() -> None:
    tasks = [asyncio.create_task(run()) for run in (_for_ever, _swallows_a_cancellation)]
    await time_passes(0.1)
    assert await end(tasks) == []
    assert all(task.cancelled() for task in tasks)


@in_virtual_time
async def test_a_task_that_never_ends_is_given_up_and_named() -> None:
    async def stubborn() -> None:
        for _ in range(ROUNDS + 1):
            with contextlib.suppress(asyncio.CancelledError):
                await _for_ever()

    task = asyncio.create_task(stubborn(), name="stubborn")
    await time_passes(0.1)
    began = asyncio.get_running_loop().time()
    assert await end([task]) == ["stubborn"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(ROUNDS * AGAIN_S)
    task.cancel()
    await asyncio.wait([task])


@in_virtual_time
async def test_what_has_ended_by_itself_stays_as_it_is() -> None:
    async def fails() -> None:
        raise RuntimeError("dead")

    task = asyncio.create_task(fails())
    await time_passes(0.1)
    await end([task])
    await end([])
    assert isinstance(task.exception(), RuntimeError)


@in_virtual_time
async def test_a_part_that_does_not_close_is_given_up_and_named() -> None:
    began = asyncio.get_running_loop().time()
    parts = {"quick": asyncio.create_task(asyncio.sleep(0.2)), "stuck": asyncio.create_task(_for_ever())}
    assert await close(parts) == ["stuck"]
    assert asyncio.get_running_loop().time() - began >= CLOSE_S
    assert await close({}) == []
