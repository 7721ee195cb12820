"""Every acceptance test gets a system of its own: prefix, topics, endpoint server, workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.harness import System


@pytest_asyncio.fixture
async def system(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> AsyncIterator[System]:
    """Ended, with all its processes, when the test ends."""
    async with System(kafka_bootstrap, tmp_path, redis_url) as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs real services; what may take longest begins first.

    Several run at once, and none of the long ones should begin when nothing else is left to do.
    """
    for item in items:
        if "acceptance" in item.path.parts:
            item.add_marker(pytest.mark.real)
    items.sort(key=_allowed_s, reverse=True)


def _allowed_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0
