"""The window of a quota."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Quota
from delivery.policy.quota import Window, taken


@given(
    st.integers(1, 5),
    st.sampled_from([1.0, 7.0, 60.0]),
    st.lists(st.floats(0, 300, allow_nan=False), min_size=1, max_size=60),
)
def test_no_window_has_more_than_the_quota_whatever_the_clock_does(
    requests: int, window_s: float, moments: list[float]
) -> None:
    quota, window, per_window = Quota(requests=requests, window_s=window_s), None, Counter[float]()
    for now in moments:  # also backwards
        window, granted, left_s = taken(window, quota, now)
        per_window[window.began_s] += granted
        if left_s > 0:
            assert math.isclose(now + left_s, window.began_s + window_s, abs_tol=1e-6)
    assert max(per_window.values(), default=0) <= requests


@given(st.floats(0, 1e9, allow_nan=False))
def test_a_window_begins_at_a_multiple_of_its_length(now: float) -> None:
    window, granted, _ = taken(None, Quota(requests=1, window_s=60.0), now)
    assert granted
    assert window.began_s % 60 == 0
    assert window.began_s <= now < window.began_s + 60


def test_a_clock_that_is_set_back_opens_no_new_window() -> None:
    quota = Quota(requests=1, window_s=60.0)
    window, *_ = taken(None, quota, 130.0)
    assert taken(window, quota, 100.0) == (Window(began_s=120.0, used=1), False, 80.0)
