"""One commit: how it ends, and who waits for what goes beside its offset."""

from __future__ import annotations

import asyncio

import structlog

from delivery.model import Partition
from delivery.ports import CommitRefused

log = structlog.get_logger(__name__)

# A cancelled commit has nothing to wait for.
CANCEL_S = 0.1


class Text:
    """What somebody waits for to be put beside an offset."""

    __slots__ = ("done", "offset", "partition", "refused", "text")

    def __init__(self, partition: Partition, offset: int, text: str) -> None:
        self.partition, self.offset, self.text = partition, offset, text
        self.done = asyncio.Event()
        self.refused: str | None = None

    def end(self, refused: str | None) -> None:
        """It is there, or is not; what was said first counts."""
        if not self.done.is_set():
            self.refused = refused
            self.done.set()


def _is_refused(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and isinstance(task.exception(), CommitRefused)


def why(task: asyncio.Task[None], partitions: int) -> str | None:
    """Why a commit that has been waited for is not known to have been taken; None: it was."""
    if not task.done() or task.cancelled():
        return "given up"
    error = task.exception()
    if error is None:
        return None
    if _is_refused(task):
        log.warning("commit refused", partitions=partitions, error=str(error))
    else:
        log.error("commit failed", partitions=partitions, exc_info=error)
    return str(error) or type(error).__name__


async def ended(task: asyncio.Task[None], timeout_s: float) -> None:
    """Wait for a commit; cancel one that takes longer.

    It would be retried after the rebalance, with the new generation, over the new owner's offset.
    """
    _, late = await asyncio.wait([task], timeout=timeout_s)
    if late:
        log.warning("commit given up", after_s=round(timeout_s, 3))
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_S)
