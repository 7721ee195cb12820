"""What is told when records were gone before they were read: never skipped in silence."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from delivery.model import Partition
from delivery.ports import Meter

log = structlog.get_logger(__name__)


def gap_reporter(meter: Meter) -> Callable[[Partition, int, int], None]:
    """For a reader: told the offset that it wanted and the one that it goes on at."""

    def report(partition: Partition, missed: int, found: int) -> None:
        count = max(0, found - missed)
        log.error(
            "records were gone before they were read" if count else "the topic is not the one it was",
            topic=partition.topic,
            partition=partition.partition,
            first_lost=missed,
            goes_on_at=found,
            lost=count,
        )
        meter.lost(partition.topic, count)

    return report
