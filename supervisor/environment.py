"""The settings of a command that somebody typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.failure import Misused

if TYPE_CHECKING:
    from supervisor.configuration import Configuration


def configuration() -> Configuration:
    """What the environment says. Raises Misused with every fault of it."""
    import os

    from supervisor.settings import SettingsInvalid, load

    try:
        return load(os.environ)
    except SettingsInvalid as error:
        raise Misused(error.faults) from None
