"""What waits in a queue."""

from __future__ import annotations

import pytest

from supervisor.lag import lag


@pytest.mark.parametrize(("committed", "start", "end"), [pytest.param(10, 1000, 1000, id="MX-03")])
def test_records_that_retention_took_do_not_count_as_waiting_but_as_lost(committed: int, start: int, end: int) -> None:
    found = lag(start=start, end=end, committed=committed)
    assert (found.waiting, found.lost) == (0, 990)


def test_what_follows_the_committed_offset_waits() -> None:
    found = lag(start=5, end=20, committed=12)
    assert (found.first, found.waiting, found.lost) == (12, 8, 0)


def test_without_a_committed_offset_everything_waits_and_nothing_is_known_to_be_lost() -> None:
    found = lag(start=5, end=20, committed=None)
    assert (found.first, found.waiting, found.lost) == (5, 15, 0)


def test_an_offset_behind_the_end_belongs_to_a_topic_made_anew_which_is_read_from_its_start() -> None:
    found = lag(start=0, end=3, committed=500)
    assert (found.first, found.waiting, found.lost) == (0, 3, 0)
