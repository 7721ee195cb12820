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
    """Everything in this folder needs real services."""
    for item in items:
        if "acceptance" in item.path.parts:
            item.add_marker(pytest.mark.real)
