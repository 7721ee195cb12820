"""Answers as they come off the network: broken, huge, slow, interim."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from delivery.model import Answer, NoAnswer, NoAnswerKind, NotSent, NotSentKind, Outcome, Reply
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import HANG, Act, Then, doing, raw, reply, sequence
from tests.contract.sender_kit import endpoint, outgoing, real_sender, send_once, until

pytestmark = pytest.mark.asyncio
OK = b"HTTP/1.1 200 OK\r\n"


async def answer_to(act: Act, *, timeout_s: float = 5.0, **settings: Any) -> Reply:
    async with ScriptedServer() as server:
        server.script("/hook", doing(act))
        answer = await send_once(endpoint(server.url("/hook"), **settings), timeout_s=timeout_s)
        assert server.count("/hook") == 1
        return answer


def status(answer: Reply) -> int:
    assert isinstance(answer, Answer), answer
    return answer.status


def unknown(answer: Reply) -> NoAnswerKind:
    assert isinstance(answer, NoAnswer), answer
    assert answer.outcome is Outcome.UNKNOWN
    return answer.kind


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(OK + b"content-length: 100\r\n\r\nabc", id="RB-01-short"),
        pytest.param(OK + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", id="RB-01-chunked"),
        pytest.param(OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", id="RB-01-bad-chunk"),
        pytest.param(OK + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc", id="RB-01-not-gzip"),
        pytest.param(OK + b"\r\nuntil the end", id="RB-01-until-close"),
        pytest.param(
            b"HTTP/1.1 103 X\r\n\r\n" + OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", id="RB-01-after-interim"
        ),
        pytest.param(b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\nzz\n", id="RB-01-bare-newlines"),
    ],
)
@pytest.mark.parametrize("then", [Then.CLOSE, Then.RESET])
async def test_a_broken_body_does_not_change_what_the_head_said(data: bytes, then: Then) -> None:
    assert status(await answer_to(Act(status=200, data=data, then=then))) == 200


async def test_the_status_of_a_failure_with_a_broken_body_counts_and_what_came_is_kept() -> None:
    answer = await answer_to(raw(b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\nabc"))
    assert status(answer) == 500
    assert isinstance(answer, Answer)
    assert (answer.excerpt, answer.cut) == (b"abc", True)


@pytest.mark.parametrize(("size", "cut"), [(0, False), (1024, False), (1025, True)])
@pytest.mark.parametrize("at_once", [True, False])
async def test_an_answer_says_whether_its_excerpt_is_all_of_its_body(size: int, cut: bool, at_once: bool) -> None:
    head = b"HTTP/1.1 500 X\r\ncontent-length: %d\r\n\r\n" % size
    body = b"x" * size
    late = Act(status=500, data=head, pieces=lambda: [body] if body else [], every_s=0.05)
    answer = await answer_to(raw(head + body) if at_once else late)
    assert isinstance(answer, Answer)
    assert (answer.excerpt, answer.cut) == (body[:1024], cut)


@pytest.mark.parametrize(
    ("code", "megabytes"), [pytest.param(200, 2048, id="RB-03-2GiB"), pytest.param(500, 50, id="RB-03-50MiB")]
)
async def test_of_a_huge_body_only_the_beginning_is_read(code: int, megabytes: int) -> None:
    written = 0

    def pieces() -> Iterator[bytes]:
        nonlocal written
        for _ in range(megabytes * 16):
            written += 65_536
            yield b"x" * 65_536

    head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (code, megabytes << 20)
    started = time.monotonic()
    answer = await answer_to(Act(status=code, data=head, pieces=pieces))
    assert status(answer) == code
    assert isinstance(answer, Answer)
    assert (answer.excerpt, answer.cut) == (b"x" * 1024, True)
    assert written < 16 << 20, "the rest stays in the endpoint and the socket's buffers"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(
            Act(status=200, data=OK + b"content-length: 8\r\n\r\n", pieces=lambda: [b"x"] * 8, every_s=2.0),
            id="NW-03-length",
        ),
        pytest.param(
            Act(
                status=200,
                data=OK + b"transfer-encoding: chunked\r\n\r\n",
                pieces=lambda: itertools.repeat(b"1\r\nx\r\n"),
                every_s=0.05,
            ),
            id="NW-03-endless",
        ),
        pytest.param(Act(status=200, data=OK + b"content-length: 8\r\n\r\n", then=Then.HANG), id="NW-03-never"),
    ],
)
async def test_a_dripping_body_after_a_2xx_is_left_after_a_second(act: Act) -> None:
    started = time.monotonic()
    assert status(await answer_to(act, timeout_s=15.0)) == 200
    assert time.monotonic() - started < 8


async def test_a_dripping_body_ends_with_the_attempt_when_that_is_sooner() -> None:
    act = Act(status=200, data=OK + b"content-length: 8\r\n\r\n", then=Then.HANG)
    started = time.monotonic()
    assert status(await answer_to(act, timeout_s=0.4)) == 200
    assert time.monotonic() - started < 0.9


async def test_a_dripping_head_ends_at_the_deadline_nw_03() -> None:
    head = Act(pieces=lambda: (bytes([b]) for b in OK * 10), every_s=0.05)
    started = time.monotonic()
    assert unknown(await answer_to(head, timeout_s=0.4)) is NoAnswerKind.TIMEOUT
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", id="ST-11-103"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2, id="ST-11-103-twice"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="ST-11-100"),
    ],
)
async def test_only_the_final_status_counts(before: bytes) -> None:
    assert status(await answer_to(raw(before + OK + b"content-length: 0\r\n\r\n", then=Then.KEEP))) == 200


async def test_an_interim_answer_and_nothing_else_is_a_dropped_connection_st_12() -> None:
    assert unknown(await answer_to(raw(b"HTTP/1.1 100 Continue\r\n\r\n"))) is NoAnswerKind.DROPPED


@pytest.mark.parametrize("then", [Then.CLOSE, Then.HANG])
async def test_switching_protocols_is_no_answer_st_12(then: Then) -> None:
    data = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    assert unknown(await answer_to(raw(data, then=then), timeout_s=2.0)) is NoAnswerKind.PROTOCOL


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(OK + b"broken header: : x\r\ncontent-length: 0\r\n\r\n", id="RB-05"),
        pytest.param(OK + b": x\r\ncontent-length: 0\r\n\r\n", id="RB-05-no-name"),
        pytest.param(OK + b"no colon\r\ncontent-length: 0\r\n\r\n", id="RB-05-no-colon"),
        pytest.param(OK + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n", id="RB-05-nul"),
        pytest.param(OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", id="RB-05-two-lengths"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", id="not-http"),
        pytest.param(b"HTTP/1.1 abc X\r\n\r\n", id="no-status"),
        pytest.param(b"HTTP/1.1 2000 X\r\n\r\n", id="four-digits"),
        pytest.param(OK + b"x: " + b"y" * 70_000 + b"\r\n\r\n", id="one-huge-header"),
        pytest.param(OK + b"x: yyyyyyyyy\r\n" * 6000 + b"\r\n", id="many-headers"),
        pytest.param(OK + (b"x: " + b"y" * 7000 + b"\r\n") * 10 + b"\r\n", id="huge-head"),
    ],
)
async def test_a_malformed_head_is_a_protocol_failure_of_unknown_outcome(data: bytes) -> None:
    assert unknown(await answer_to(raw(data, then=Then.HANG), timeout_s=5.0)) is NoAnswerKind.PROTOCOL


@pytest.mark.parametrize("cut", range(1, 49, 5))
async def test_a_head_that_comes_in_pieces_counts_as_soon_as_it_is_complete_rb_01(cut: int) -> None:
    data = OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n"
    pieces = [data[:cut], data[cut:47], data[47:]]
    started = time.monotonic()
    assert status(await answer_to(Act(status=200, pieces=lambda: pieces, every_s=0.02))) == 200
    assert time.monotonic() - started < 0.9, "a body that is known to be broken is not waited for"


async def test_interim_answers_without_end_are_cut_off() -> None:
    endless = Act(pieces=lambda: itertools.repeat(b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" * 100))
    assert unknown(await answer_to(endless)) is NoAnswerKind.PROTOCOL


async def test_a_head_of_sixty_kilobytes_is_fine() -> None:
    lines = (b"x: " + b"y" * 6000 + b"\r\n") * 10
    assert status(await answer_to(raw(OK + lines + b"content-length: 0\r\n\r\n"))) == 200


async def test_bytes_beyond_ascii_in_head_and_reason_are_kept_as_they_are_rb_07() -> None:
    head = b"HTTP/1.1 500 Erreur \xe9t\xe9\r\nX-Err: \xe9\r\nRetry-After: 12\xe9\r\ncontent-length: 0\r\n\r\n"
    answer = await answer_to(raw(head))
    assert status(answer) == 500
    assert isinstance(answer, Answer)
    assert dict(answer.headers)[b"X-Err"] == b"\xe9"
    assert dict(answer.headers)[b"Retry-After"] == b"12\xe9"


@pytest.mark.parametrize(
    ("code", "location"),
    [
        *(pytest.param(code, "/final", id=f"RX-01-{code}") for code in (301, 302, 303, 307, 308)),
        pytest.param(302, None, id="RX-04"),
        pytest.param(302, "http://169.254.169.254/latest/meta-data/", id="SS-09"),
    ],
)
async def test_redirects_are_reported_and_never_followed(code: int, location: str | None) -> None:
    async with ScriptedServer() as server:
        server.script("/hook", doing(reply(code, {"location": location} if location else None)))
        server.script("/final", doing(reply(200)))
        assert status(await send_once(endpoint(server.url("/hook")))) == code
        assert server.count() == 1


async def test_cookies_are_not_kept() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", doing(reply(204, {"set-cookie": "a=b; path=/"})))
        to = endpoint(server.url("/hook"))
        for _ in range(2):
            await sender.send(to, outgoing(to.url), 5.0)
        assert [seen.header("cookie") for seen in server.requests()] == [None, None]


@pytest.mark.parametrize("header", [(b"x", b"a\r\nevil: 1"), (b"x\r\ny", b"a"), (b"x", b"\xff\xfe")])
async def test_a_header_that_cannot_be_sent_makes_no_request(header: tuple[bytes, bytes]) -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        to = endpoint(server.url("/hook"))
        answer = await sender.send(to, outgoing(to.url, headers=(header,)), 5.0)
        assert isinstance(answer, NotSent)
        assert answer.kind is NotSentKind.INVALID_REQUEST
        assert server.count() == 0


@pytest.mark.parametrize("body", [b"", b"short", b"x" * 60_000])
async def test_a_connection_is_used_again_after_a_complete_answer(body: bytes) -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", sequence([reply(500, body=body), reply(204)]))
        to = endpoint(server.url("/hook"))
        assert status(await sender.send(to, outgoing(to.url), 5.0)) == 500
        assert status(await sender.send(to, outgoing(to.url), 5.0)) == 204
        assert [seen.connection for seen in server.requests()] == [1, 1]


async def test_a_connection_with_an_unread_rest_is_closed() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", sequence([reply(500, body=b"x" * 1_000_000), reply(204)]))
        to = endpoint(server.url("/hook"))
        assert status(await sender.send(to, outgoing(to.url), 5.0)) == 500
        assert status(await sender.send(to, outgoing(to.url), 5.0)) == 204
        assert [seen.connection for seen in server.requests()] == [1, 2]
        await until(lambda: len(server.open) == 1)


NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(raw(NO_CONTENT + b"ok", then=Then.KEEP), id="204-with-body"),
        pytest.param(raw(NO_CONTENT + OK + b"content-length: 0\r\n\r\n", then=Then.KEEP), id="two-at-once"),
        pytest.param(
            Act(data=NO_CONTENT, pieces=lambda: [OK + b"content-length: 0\r\n\r\n"], every_s=0.02), id="one-later"
        ),
    ],
)
async def test_what_nobody_asked_for_is_never_the_next_answer(act: Act) -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", sequence([act, reply(404)]))
        to = endpoint(server.url("/hook"))
        assert status(await sender.send(to, outgoing(to.url), 5.0)) == 204
        await until(lambda: not server.open)
        assert status(await sender.send(to, outgoing(to.url), 5.0)) == 404


async def test_a_large_request_arrives_whole() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", doing(reply(204)))
        to = endpoint(server.url("/hook"))
        body = bytes(range(256)) * 4096
        assert status(await sender.send(to, outgoing(to.url, body), 5.0)) == 204
        assert server.requests()[0].body == body


async def test_an_attempt_that_ran_out_of_time_leaves_no_connection() -> None:
    async with ScriptedServer() as server, real_sender() as sender:
        server.script("/hook", doing(HANG))
        to = endpoint(server.url("/hook"))
        assert unknown(await sender.send(to, outgoing(to.url), 0.1)) is NoAnswerKind.TIMEOUT
        await until(lambda: not server.open)
