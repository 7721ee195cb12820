"""How log lines look and where they go: to standard error, ours and those of the libraries alike."""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from supervisor.configuration import Log, LogFormat

# These write the full URL of each request at INFO, and a URL may carry a secret.
_TELL_URLS: Final = ("httpx", "httpcore", "aiohttp.access")
# Warns of each rebalance and each late heartbeat, which are everyday events here.
_TALKATIVE: Final = "aiokafka"

# Everything behind a URL's host, and what stands before it, may be a credential.
_URL: Final = re.compile(
    r"\b([a-zA-Z][a-zA-Z0-9+.-]{0,20}://)(?:[^\s/?#@\"'<>\\]*@)?([^\s/?#\"'<>\\,;)\]]*)([^\s\"'<>\\]*)"
)
_SIGNING_KEY: Final = re.compile(r"\b(whs(?:ec|k)_)[A-Za-z0-9+/=_-]+")
_BEARER: Final = re.compile(r"\b(Bearer|Basic) +[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)


def configure(log: Log, stream: TextIO) -> None:
    """Send all log lines to `stream` from now on. Meant to be called once, before the first line."""
    level = logging.getLevelNamesMapping()[log.level.upper()]
    out = _NeverFails(stream)
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    as_text = log.format is LogFormat.TEXT or (log.format is LogFormat.AUTO and out.isatty())
    rendering = _text(colors=out.isatty()) if as_text else _json()
    structlog.configure(
        processors=[*common, *rendering, scrub],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering, scrub],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    for name in _TELL_URLS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.getLogger(_TALKATIVE).setLevel(max(level, logging.ERROR))


def quieten() -> None:
    """No log lines at all: for commands that say themselves what is to be said."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)


def scrub(_logger: WrappedLogger, _method: str, line: str | bytes | EventDict) -> str:
    """A finished line without what may be secret in it: URLs end after the host, keys and tokens after their kind."""
    text = str(line)
    if "://" in text:
        text = _URL.sub(_host_only, text)
    if "whs" in text:
        text = _SIGNING_KEY.sub(r"\1…", text)
    return _BEARER.sub(r"\1 …", text)


def _host_only(match: re.Match[str]) -> str:
    return match[1] + match[2] + ("/…" if len(match[3]) > 1 else match[3])


def _text(*, colors: bool) -> list[Processor]:
    # structlog's default shows the local variables of every frame, when rich is installed: secrets among them.
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def _json() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        _headline_first,
        structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
    ]


def _headline_first(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    first = {name: line.pop(name) for name in ("timestamp", "level", "event") if name in line}
    return {**first, **line}


class _NeverFails:
    """A stream whose reader may be gone or whose disk may be full: neither may end a delivery."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.isatty()
        return False
