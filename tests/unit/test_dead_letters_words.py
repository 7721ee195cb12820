"""What `delivery dead-letters` says about letters, and how it shows bodies and ages."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from delivery.model import DeadLetterReason, Fault, Outcome, Position
from delivery.policy.letters import Kind, Letter
from supervisor.commands.dead_letters_advice import advice
from supervisor.commands.dead_letters_list import age, as_data, printable
from supervisor.commands.dead_letters_show import body_lines
from supervisor.failure import Failed

LETTER = Letter(
    id="dl_1",
    kind=Kind(
        tenant="acme",
        endpoint="billing",
        reason=DeadLetterReason.REJECTED,
        fault=Fault.ENDPOINT,
        status=422,
        outcome=Outcome.CONFIRMED,
    ),
    offset=3,
    at_ms=1_700_000_000_000,
    webhook_id="msg_1",
    receiver_ref="req-9",
    source=Position(topic="orders", partition=0, offset=7),
    event_time_ms=1_600_000_000_000,
)
UNCONFIRMED = DeadLetterReason.UNCONFIRMED
REPLAY = "delivery dead-letters replay --tenant acme --id dl_1"


def said(*, replayed: bool = False, configured: bool = True, left_out: str | None = None, **kind: Any) -> list[str]:
    letter = dataclasses.replace(LETTER, kind=LETTER.kind._replace(**kind), left_out=left_out)
    return advice(letter, replayed=replayed, configured=configured)


@pytest.mark.parametrize("reason", [None, *DeadLetterReason])
def test_every_reason_has_its_advice_and_the_command_that_sends_again(reason: DeadLetterReason | None) -> None:
    steps = said(reason=reason)
    assert len(steps) == 2
    assert steps[-1].endswith(f"{REPLAY} --reason unconfirmed" if reason is UNCONFIRMED else REPLAY)


def test_one_that_must_not_arrive_twice_is_looked_for_first_and_sent_only_by_its_reason() -> None:
    steps = said(reason=UNCONFIRMED, outcome=Outcome.UNKNOWN)
    assert "Look for webhook-id msg_1" in steps[1]
    assert steps[-1].endswith(f"{REPLAY} --reason unconfirmed")


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "secret"), (404, "URL"), (429, "--rate"), (None, "error"), (422, "422")]
)
def test_a_refusal_is_explained_by_its_status(status: int | None, hint: str) -> None:
    assert hint in said(status=status)[0]


def test_one_that_may_have_been_received_is_looked_for_first() -> None:
    steps = said(outcome=Outcome.UNKNOWN)
    assert "Look for webhook-id msg_1" in steps[1]
    assert "req-9" in steps[1]
    assert steps[-1].endswith(f"{REPLAY} --outcome unknown")
    assert not any("webhook-id" in step for step in said())


def test_one_whose_endpoint_is_gone_can_go_elsewhere() -> None:
    assert f"{REPLAY} --to ENDPOINT" in said(configured=False)[-1]


def test_one_that_was_sent_again_needs_again() -> None:
    assert said(replayed=True)[-1].endswith(f"{REPLAY} --again")


def test_one_that_lacks_parts_of_the_event_says_where_they_are() -> None:
    steps = said(left_out="value")
    assert len(steps) == 1
    assert "orders/0/7" in steps[0]
    assert "replay" not in steps[0]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400, "1 d"), (864_000, "10 d")]
)
def test_an_age_is_told_in_its_largest_unit(seconds: int, shown: str) -> None:
    assert age(1_700_000_000_000 - seconds * 1_000, 1_700_000_000_000) == shown


def test_a_body_is_shown_as_text_json_or_hex() -> None:
    assert body_lines(b"a\tb\n\x1b[2J\xff", "text") == ["a    b", "\ufffd[2J\ufffd"]
    assert body_lines(b'{"a": "\\u001b\\u009b"}', "json") == ["{", '  "a": "\\u001b\\u009b"', "}"]
    assert body_lines(bytes(range(60, 78)), "hex") == [
        "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK",
        "00000010  4c 4d                                            LM",
    ]
    assert body_lines(b"", "hex") == []
    assert body_lines(None, "text") == ["(there is none)"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_is_a_fault_in_words(body: bytes) -> None:
    with pytest.raises(Failed, match="no JSON"):
        body_lines(body, "json")


def test_nothing_that_moves_a_cursor_reaches_a_terminal() -> None:
    assert printable("ok \x1b]0;x\x07\u202e\n") == "ok \ufffd]0;x\ufffd\ufffd\ufffd"


def test_a_line_for_programs_has_plain_words_and_times() -> None:
    data = as_data(LETTER, replayed=False)
    assert (data["state"], data["reason"], data["outcome"], data["status"]) == ("pending", "rejected", "confirmed", 422)
    assert (data["source"], data["at"], data["replay_of"]) == ("orders/0/7", "2023-11-14T22:13:20.000Z", None)
