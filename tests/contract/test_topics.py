"""What a worker knows of its topics, by a client that can only say which exist."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

from supervisor.topics import FRESH_S, Topics, TopicsClient
from tests.virtual_time import VirtualClock, in_virtual_time, time_passes

LETTERS = "p.acme.dead-letters"


class SlowList:
    """A second for each list."""

    def __init__(self) -> None:
        self.lists = 0

    async def existing(self, names: Collection[str]) -> frozenset[str]:
        self.lists += 1
        await time_passes(1.0)
        return frozenset({LETTERS})


def nothing(*_: Any) -> None:
    """Nobody is told."""


@in_virtual_time
async def test_many_that_ask_at_once_whether_a_topic_exists_make_one_list() -> None:
    client = SlowList()
    topics = Topics(
        cast(TopicsClient, client),
        own=[],
        sources=[LETTERS],
        create=False,
        most_bytes=1,
        clock=VirtualClock(),
        on_change=nothing,
        on_missing=nothing,
    )
    assert set(await asyncio.gather(*(topics.exists(LETTERS) for _ in range(200)))) == {True}
    assert client.lists == 1
    await time_passes(FRESH_S + 0.1)
    assert not await topics.exists("p.other.dead-letters")
    assert client.lists == 2
