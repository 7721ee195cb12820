"""How a command ends when it cannot do what it was asked: in words, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable


class Failed(Exception):
    """It failed at run time: exit status 1. The text is one line for the person who typed the command."""


class Misused(Exception):
    """The settings or the command line cannot be used: exit status 2. One line for each of `faults`."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))
