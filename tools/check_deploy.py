"""Asks the tools that know: are the manifests, the image, the unit and the alert rules what their readers take?

Those of the `lint` extra are always there; systemd-analyze and promtool when they are on PATH (Debian: systemd,
prometheus). What was not checked is said, and is a fault where CI=true. Exit 1: something is wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
# Fields come and go: the oldest version that a cloud still serves, and the newest known here.
KUBERNETES = ("1.31.0", "1.37.0")
LIMIT_S = 120
# The most that `systemd-analyze security` may say: 1.1 with systemd 252, and newer ones look at more.
EXPOSURE = 1.5


class NotThere(Exception):
    """The tool is not installed."""


class Wrong(Exception):
    """What the tool said."""


def ask(*command: str) -> str:
    """Run a tool, from beside this interpreter or from PATH. Raises NotThere and Wrong."""
    beside = str(Path(sys.executable).parent)
    tool = shutil.which(command[0], path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if tool is None:
        raise NotThere(command[0])
    ended = subprocess.run(
        [tool, *command[1:]], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        raise Wrong(ended.stdout + ended.stderr)
    return ended.stdout


def compose() -> None:
    """By the Compose specification's own schema."""
    ask("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml"))


def image() -> None:
    """By hadolint."""
    ask("hadolint", str(DEPLOY / "Dockerfile"))


def kubernetes() -> None:
    """What kustomize makes, by Kubernetes' own schemas; a field that they do not know is wrong."""
    made = ask("kubectl", "kustomize", str(DEPLOY / "kubernetes"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "resources.yaml")
        file.write_text(made, encoding="utf-8")
        for version in KUBERNETES:
            ask("kubernetes-validate", "--strict", "--quiet", "--kubernetes-version", version, str(file))


def unit() -> None:
    """By systemd itself, with a program that is there; and how much of the machine the service can still reach."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "delivery.service")
        text = (DEPLOY / "systemd" / "delivery.service").read_text(encoding="utf-8")
        file.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text), encoding="utf-8")
        # Its own mistakes, warnings too, and not those of units that happen to be installed beside it.
        ask("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file))
        ask("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE * 10:.0f}", str(file))


def alerts() -> None:
    """By Prometheus: the rules, when each alert fires, and what is recorded."""
    folder = DEPLOY / "prometheus"
    for name in ("alerts", "recording"):
        ask("promtool", "check", "rules", str(folder / f"{name}.yaml"))
        ask("promtool", "test", "rules", str(folder / f"{name}.test.yaml"))


CHECKS: tuple[Callable[[], None], ...] = (compose, image, kubernetes, unit, alerts)


def main() -> int:
    """Run every check. Returns the exit status."""
    status = 0
    must = os.environ.get("CI") == "true"
    for check in CHECKS:
        try:
            check()
        except Wrong as error:
            status = 1
            print(f"deploy: {check.__name__}: wrong\n{error}")
        except NotThere as error:
            status = 1 if must else status
            print(f"deploy: {check.__name__}: not checked, there is no {error}")
        else:
            print(f"deploy: {check.__name__}: fine")
    return status


if __name__ == "__main__":
    sys.exit(main())
