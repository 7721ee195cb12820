"""Quota headers: which of them say that nothing is left, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Answer, Delivered, Retry
from delivery.policy.classify import classify
from delivery.policy.limit_headers import asked_s
from tests.fakes import endpoint

NOW_S = 1_800_000_000.0
CAP_S = 3600.0


def asked(*headers: tuple[str, str]) -> float | None:
    answer = Answer(status=200, headers=tuple((name.encode(), value.encode()) for name, value in headers))
    return asked_s(answer, wall_s=NOW_S, cap_s=CAP_S)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param([("RateLimit", '"default";r=0;t=30')], 30, id="an-item"),
        pytest.param([("ratelimit", "default ; r=0;t=30")], None, id="a-blank-before-a-parameter"),
        pytest.param([("RateLimit", '"a";r=5;t=90, "b";r=0;t=7 ,"c"; r=0; t=9')], 9, id="the-longest-that-is-used-up"),
        pytest.param([("RateLimit", '"a";r=0;t=5'), ("RateLimit", '"b";r=0;t=6')], 6, id="two-lines-are-one-list"),
        pytest.param([("RateLimit", '"a";r=1;t=30')], None, id="something-left"),
        pytest.param([("RateLimit", '"a";r=0')], None, id="no-time"),
        pytest.param([("RateLimit", '"a";r=0;t=1.5')], None, id="no-whole-number"),
        pytest.param([("RateLimit", '"a";r=0;t=-3')], None, id="negative"),
        pytest.param([("RateLimit", '"a";r=0;t=0')], None, id="now"),
        pytest.param([("RateLimit", '"a;r=0;t=30')], None, id="malformed"),
        pytest.param([("RateLimit", '"a";r=0;t=30, "b')], None, id="malformed-further-on"),
        pytest.param([("RateLimit", '"a,b;c";r=0;t=30')], 30, id="marks-inside-a-name"),
        pytest.param([("RateLimit", "limit=100, remaining=0, reset=30")], None, id="an-older-draft"),
        pytest.param(
            [("RateLimit", '"a";r=0;t=30'), ("RateLimit-Policy", '"a";q=9;w=60;qu="content-bytes"')], None, id="bytes"
        ),
        pytest.param(
            [("RateLimit", '"a";r=0;t=30'), ("RateLimit-Policy", '"a";q=9;qu="requests","b";qu="x"')], 30, id="requests"
        ),
        pytest.param([("RateLimit-Remaining", "0"), ("RateLimit-Reset", " 12 ")], 12, id="a-pair"),
        pytest.param([("RateLimit-Remaining", "1"), ("RateLimit-Reset", "12")], None, id="a-pair-with-something-left"),
        pytest.param([("RateLimit-Remaining", "0")], None, id="half-a-pair"),
        pytest.param([("RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "12")], None, id="halves-of-two-pairs"),
        pytest.param([("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "12")], 12, id="seconds"),
        pytest.param([("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000020")], 20, id="epoch-seconds"),
        pytest.param([("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1800000020500")], 20.5, id="epoch-ms"),
        pytest.param([("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1799999999")], None, id="past"),
        pytest.param(
            [
                ("X-RateLimit-Remaining", "0"),
                ("X-RateLimit-Reset", "1800000020"),
                ("Date", "Fri, 15 Jan 2027 08:00:05 GMT"),
            ],
            15,
            id="by-the-clock-of-the-answer",
        ),
        pytest.param(
            [
                ("X-RateLimit-Remaining", "0"),
                ("X-RateLimit-Reset", "40"),
                ("RateLimit-Remaining", "0"),
                ("RateLimit-Reset", "30"),
                ("RateLimit", '"a";r=0;t=20'),
            ],
            20,
            id="the-first-in-order",
        ),
        pytest.param([("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "9000")], CAP_S, id="capped"),
        pytest.param([("Content-Type", "text/plain"), ("X-Request-Id", "1"), ("Retry-After", "9")], None, id="others"),
    ],
)
def test_what_a_quota_header_asks_for(headers: list[tuple[str, str]], expected: float | None) -> None:
    assert asked(*headers) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"RateLimit", b"RateLimit-Policy", b"RateLimit-Remaining", b"X-RateLimit-Reset", b"Date"]),
            st.binary(max_size=40) | st.sampled_from([b"0", b'"a";r=0;t=5', b"999999999999999"]),
        ),
        max_size=6,
    )
)
def test_no_header_whatever_asks_for_less_than_nothing_or_more_than_the_cap(headers: list[tuple[bytes, bytes]]) -> None:
    found = asked_s(Answer(status=200, headers=tuple(headers)), wall_s=NOW_S, cap_s=CAP_S)
    assert found is None or 0 < found <= CAP_S


QUOTA = ((b"RateLimit-Remaining", b"0"), (b"RateLimit-Reset", b"30"))


@pytest.mark.parametrize(
    ("status", "headers", "hint_s"),
    [
        (204, QUOTA, 30),
        (429, QUOTA, 30),
        (503, QUOTA, 30),
        (500, QUOTA, None),
        (429, (*QUOTA, (b"Retry-After", b"3")), 3),
        (429, (*QUOTA, (b"Retry-After", b"junk")), 30),
        (204, ((b"Retry-After", b"3"),), None),
    ],
)
def test_retry_after_comes_first_and_quotas_count_on_2xx_429_and_503(
    status: int, headers: tuple[tuple[bytes, bytes], ...], hint_s: float | None
) -> None:
    verdict = classify(Answer(status=status, headers=headers), endpoint(), NOW_S)
    assert isinstance(verdict, Delivered | Retry)
    assert verdict.hint_s == hint_s


def test_a_503_with_a_quota_and_without_retry_after_is_not_held() -> None:
    verdict = classify(Answer(status=503, headers=QUOTA), endpoint(), NOW_S)
    assert isinstance(verdict, Retry)
    assert not verdict.throttled
