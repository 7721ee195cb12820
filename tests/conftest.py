"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

# Each of these keeps workers at hundreds of requests a second, or starts many: of each group only one runs at a time,
# beside tests that mostly wait. Two cores do not carry more without that what is measured suffers.
GROUPS = {
    "hurt workers": ("test_crashes", "test_fanout_crash", "test_shutdown"),
    "many workers": ("test_cluster", "test_outages", "test_volume"),
}
GROUP = {module: group for group, modules in GROUPS.items() for module in modules}


class _OneOfEachGroup(LoadScopeScheduling):  # type: ignore[misc,unused-ignore]
    def _split_scope(self, nodeid: str) -> str:
        return GROUP.get(Path(nodeid.partition("::")[0]).stem, nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With `--dist loadgroup`: the groups begin first. The plugin's own marker for it does nothing under pytest 9.2."""
    return _OneOfEachGroup(config, log) if config.getoption("dist") == "loadgroup" else None


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
