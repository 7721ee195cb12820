"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that runs within this process sets up its logs, or quietens all of them, for good."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.disable(disabled)
    logging.captureWarnings(False)
    for name in ("httpx", "httpcore", "aiohttp.access", "aiokafka"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()
