"""Reply → verdict, metric class and outcome."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import (
    Answer,
    Answering,
    Delivered,
    Endpoint,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    OurFault,
    Outcome,
    Rejected,
    Retry,
    RetryLimits,
    StatusClass,
    Unsendable,
    Verdict,
)
from delivery.policy.classify import classify, outcome, status_class

ENDPOINT = Endpoint(tenant="acme", name="billing", url="https://example.com/", topics=frozenset({"orders"}))
NOW_S = 1_700_000_000.0
NINE = (400, 404, 405, 410, 413, 414, 415, 422, 501)


def verdict_of(status: int, *headers: tuple[bytes, bytes], statuses: dict[int, Answering] | None = None) -> Verdict:
    endpoint = Endpoint(
        tenant="acme", name="b", url="https://example.com/", topics=frozenset(), statuses=statuses or {}
    )
    return classify(Answer(status=status, headers=headers), endpoint, NOW_S)


@pytest.mark.parametrize(
    "status", [pytest.param(code, id=f"ST-01 {code}") for code in (200, 201, 202, 204, 205, 206, 207, 226, 299)]
)
def test_every_2xx_is_delivered(status: int) -> None:
    assert verdict_of(status) == Delivered()


@pytest.mark.parametrize(
    "status",
    [pytest.param(code, id={410: "ST-08 410", 501: "ST-13 501"}.get(code, str(code))) for code in NINE],
)
def test_nine_statuses_are_rejected(status: int) -> None:
    assert verdict_of(status) == Rejected(status=status)


RETRIED = {
    "ST-03": (520, 521, 522, 523, 524, 525, 526, 527, 530, 598, 599),
    # Every 4xx that is not one of the nine is tried again here, where the case would have most of them rejected.
    "ST-05": (402, 406, 411, 412, 416, 417, 418, 421, 423, 424, 426, 428, 431, 451, 499),
    "ST-06": (403,),
    "ST-12": (100, 101, 103),
    "ST-13": (505, 507, 508, 510, 511),
    "RX-01": (300, 301, 302, 303, 304, 307, 308),
    "plain": (401, 408, 409, 425, 429, 500, 502, 503, 504, 600, 999, 0, 199),
}


@pytest.mark.parametrize(
    "status", [pytest.param(code, id=f"{case} {code}") for case, codes in RETRIED.items() for code in codes]
)
def test_everything_else_is_tried_again(status: int) -> None:
    assert isinstance(verdict_of(status), Retry)


@given(st.integers(0, 1000))
def test_the_table_in_one_sentence(status: int) -> None:
    expected = Delivered if 200 <= status < 300 else Rejected if status in NINE else Retry
    assert isinstance(verdict_of(status), expected)


@given(st.integers(0, 1000), st.sampled_from(Answering))
def test_an_endpoints_own_table_wins_for_the_status_it_names_alone(status: int, answering: Answering) -> None:
    kinds = {Answering.DELIVERED: Delivered, Answering.REJECTED: Rejected, Answering.RETRY: Retry}
    assert isinstance(verdict_of(status, statuses={status: answering}), kinds[answering])
    assert verdict_of(status, statuses={status + 1: answering}) == verdict_of(status)


@pytest.mark.parametrize("status", [pytest.param(code, id=f"RA-13 {code}") for code in (503, 500, 408, 425, 403, 302)])
def test_a_hint_counts_on_every_answer_that_is_tried_again(status: int) -> None:
    verdict = verdict_of(status, (b"Retry-After", b"20"))
    assert isinstance(verdict, Retry)
    assert verdict.hint_s == 20.0


def test_ra_13_a_hint_on_a_rejection_changes_nothing() -> None:
    assert verdict_of(400, (b"retry-after", b"20")) == Rejected(status=400)


@pytest.mark.parametrize(
    ("status", "value", "throttled"),
    [
        (429, None, True),
        (429, b"0", True),
        (503, b"20", True),
        (503, b"0", False),
        (503, None, False),
        (500, b"9", False),
    ],
)
def test_throttled_is_429_or_503_with_a_usable_hint(status: int, value: bytes | None, throttled: bool) -> None:
    verdict = verdict_of(status, *([] if value is None else [(b"retry-after", value)]))
    assert isinstance(verdict, Retry)
    assert verdict.throttled is throttled


def test_a_hint_is_capped_as_the_endpoint_says_and_measured_against_the_answers_date() -> None:
    endpoint = Endpoint(
        tenant="a", name="b", url="https://x/", topics=frozenset(), retry=RetryLimits(retry_after_max_s=50.0)
    )
    headers = (
        (b"DATE", b"Wed, 21 Oct 2026 07:27:00 GMT"),
        (b"retry-after", b"Wed, 21 Oct 2026 07:27:40 GMT"),
    )
    verdict = classify(Answer(status=429, headers=headers), endpoint, NOW_S)
    assert isinstance(verdict, Retry)
    assert verdict.hint_s == 40.0
    verdict = classify(Answer(status=429, headers=((b"retry-after", b"10"), (b"Retry-After", b"90"))), endpoint, NOW_S)
    assert isinstance(verdict, Retry)
    assert verdict.hint_s == 50.0


def test_rb_07_bytes_above_ascii_in_an_answer_are_no_fault_of_ours() -> None:
    verdict = verdict_of(500, (b"x-err", b"\xe9"), (b"retry-after", b"12\xe9"), (b"date", b"\xe9"))
    assert verdict == Retry(status_class=StatusClass.SERVER)


@pytest.mark.parametrize("kind", NoAnswerKind)
@pytest.mark.parametrize("known", [Outcome.NOT_STARTED, Outcome.UNKNOWN])
def test_no_answer_is_tried_again_and_its_outcome_is_what_the_sender_saw(kind: NoAnswerKind, known: Outcome) -> None:
    reply = NoAnswer(kind=kind, outcome=known)
    assert classify(reply, ENDPOINT, NOW_S) == Retry(status_class=status_class(reply))
    assert outcome(reply) is known


@pytest.mark.parametrize("kind", NotSentKind)
def test_what_was_not_sent_is_our_fault_unless_no_request_can_be_made_of_it(kind: NotSentKind) -> None:
    reply = NotSent(kind=kind, detail="why")
    expected: Verdict = OurFault(kind=kind, detail="why")
    if kind is NotSentKind.INVALID_REQUEST:
        expected = Unsendable(detail="why")
    assert classify(reply, ENDPOINT, NOW_S) == expected
    assert outcome(reply) is Outcome.NOT_STARTED


def test_an_answer_is_confirmed_whatever_it_says() -> None:
    assert outcome(Answer(status=500)) is Outcome.CONFIRMED


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((200, "2xx"), (226, "2xx"), (302, "3xx"), (401, "401_403"), (403, "401_403"), (429, "429"), (404, "4xx")),
        *((499, "4xx"), (503, "503"), (500, "5xx"), (599, "5xx"), (101, "other"), (600, "other"), (999, "other")),
    ],
)
def test_mx_04_statuses_are_counted_under_few_names(status: int, expected: str) -> None:
    assert status_class(Answer(status=status)).value == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (NoAnswerKind.DNS, "connect"),
        (NoAnswerKind.CONNECT, "connect"),
        (NoAnswerKind.TLS, "tls"),
        (NoAnswerKind.TIMEOUT, "timeout"),
        (NoAnswerKind.DROPPED, "dropped"),
        (NoAnswerKind.PROTOCOL, "other"),
        (NoAnswerKind.POOL, "other"),
    ],
)
def test_mx_04_missing_answers_are_counted_under_few_names(kind: NoAnswerKind, expected: str) -> None:
    assert status_class(NoAnswer(kind=kind, outcome=Outcome.UNKNOWN, detail="host.example refused")).value == expected
    assert status_class(NotSent(kind=NotSentKind.ADDRESS_REFUSED, detail="10.0.0.1")) is StatusClass.OTHER
