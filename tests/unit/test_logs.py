"""Log lines: how they look, where they go, and what must not be in them."""

from __future__ import annotations

import errno
import io
import json
import logging
from typing import Any

import pytest
import structlog

from supervisor.configuration import Log, LogFormat, LogLevel
from supervisor.logs import configure

SECRET = "S3CRET"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(errno.EPIPE, "reader is gone")


def configured(
    stream: io.StringIO, level: LogLevel = LogLevel.INFO, form: LogFormat = LogFormat.AUTO
) -> structlog.typing.FilteringBoundLogger:
    configure(Log(format=form, level=level), stream)
    return structlog.get_logger("delivery.test")  # type: ignore[no-any-return]


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_where_nobody_looks_and_begins_with_when_and_what() -> None:
    stream = io.StringIO()
    configured(stream).info("halted", endpoint="acme/billing", streak=5)
    (line,) = lines(stream)
    assert list(line) == ["timestamp", "level", "event", "endpoint", "streak"]
    assert (line["level"], line["event"], line["streak"]) == ("info", "halted", 5)


def test_a_line_is_text_on_a_terminal() -> None:
    stream = Terminal()
    configured(stream).info("halted")
    assert "halted" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(("form", "is_json"), [(LogFormat.JSON, True), (LogFormat.TEXT, False)])
def test_a_given_format_wins_over_what_the_stream_is(form: LogFormat, is_json: bool) -> None:
    stream = Terminal() if is_json else io.StringIO()
    configured(stream, form=form).info("halted")
    assert stream.getvalue().startswith("{") is is_json


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    log = configured(stream, LogLevel.WARNING)
    log.info("quiet")
    logging.getLogger("some.library").info("quiet")
    log.warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_lines_of_libraries_come_out_in_the_same_form_with_their_name() -> None:
    stream = io.StringIO()
    configured(stream)
    logging.getLogger("some.library").warning("%s happened", "it")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("it happened", "warning", "some.library")


@pytest.mark.parametrize("name", ["httpx", "httpcore", "httpcore.http11", "aiohttp.access"])
@pytest.mark.parametrize("url", [pytest.param(f"https://h/hook?token={SECRET}", id="LG-01")])
def test_an_http_client_does_not_log_the_url_of_a_request(name: str, url: str) -> None:
    stream = io.StringIO()
    configured(stream, LogLevel.DEBUG)
    logging.getLogger(name).info("HTTP Request: POST %s", url)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.TEXT])
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param(f"https://h/hook?token={SECRET}", "https://h/…", id="LG-01"),
        pytest.param(f"https://user:{SECRET}@h/x", "https://h/…", id="LG-04"),
        (f"redis://:{SECRET}@redis:6379/0", "redis://redis:6379/…"),
        (f"key whsec_{SECRET}AAAA= is bad", "whsec_… is bad"),
        (f"authorization: Bearer {SECRET}123", "Bearer …"),
    ],
)
def test_what_may_be_secret_is_taken_out_of_every_line(form: LogFormat, text: str, kept: str) -> None:
    stream = io.StringIO()
    log = configured(stream, form=form)
    log.info("one", error=text)
    logging.getLogger("some.library").warning("two %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("three")
    assert SECRET not in stream.getvalue()
    assert stream.getvalue().count(kept) >= 3


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.TEXT])
def test_a_traceback_shows_no_local_variables(form: LogFormat) -> None:
    stream = Terminal()
    log = configured(stream, form=form)

    def fails(password: str) -> None:
        raise RuntimeError(len(password))

    try:
        fails("x" * 9)
    except RuntimeError:
        log.exception("crashed")
    assert "RuntimeError" in stream.getvalue()
    assert "x" * 9 not in stream.getvalue()


def test_the_kafka_client_is_heard_only_when_something_is_wrong() -> None:
    stream = io.StringIO()
    configured(stream)
    logging.getLogger("aiokafka.consumer.group_coordinator").warning("Heartbeat failed")
    logging.getLogger("aiokafka").error("broken")
    assert [line["event"] for line in lines(stream)] == ["broken"]


def test_a_reader_that_is_gone_ends_nothing() -> None:
    log = configured(Broken())
    log.error("nobody hears this")
    logging.getLogger("some.library").error("nor this")


def test_a_value_that_json_does_not_know_is_written_as_text() -> None:
    stream = io.StringIO()
    configured(stream).info("halted", error=ValueError("no"), topics=frozenset({"a"}))
    (line,) = lines(stream)
    assert line["error"] == "no"
