"""Settings: from environment variables to a frozen `Configuration`, or to a list of everything that is wrong.

Reading order: `options` and `environment` (the models), `source` (variables, JSON and files to one tree),
`fields`, `texts`, `signing` and `urls` (what a value may be), `endpoints` and `process` (what must fit together).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from pydantic import ValidationError

from supervisor.configuration import Configuration
from supervisor.settings.environment import Environment
from supervisor.settings.faults import SettingsInvalid, located
from supervisor.settings.freeze import freeze
from supervisor.settings.schema import Group, group_of
from supervisor.settings.signing import signing_keys
from supervisor.settings.source import Reading, read

__all__ = ["SettingsInvalid", "load", "signing_keys"]


def load(environ: Mapping[str, str]) -> Configuration:
    """Read and check all settings, and the files that they name.

    Raises SettingsInvalid with every fault found; neither it nor anything logged contains a value of a secret.
    """
    # At DEBUG pydantic-settings logs what its sources return, secrets included.
    logging.getLogger("pydantic_settings").disabled = True
    reading = read(environ, _names())
    configuration = freeze(_validated(reading), reading)
    if configuration is None or reading.faults:
        raise SettingsInvalid(reading.faults)
    return configuration


@functools.cache
def _names() -> Group:
    return group_of(Environment)


def _validated(reading: Reading) -> Environment:
    """The settings that are right, so that what does not fit together is found in the same run as what is wrong."""
    try:
        return Environment.of(reading)
    except ValidationError as error:
        faults = located(error)
    for path, text in faults:
        reading.fault(path, text)
        reading.drop(path)
    return Environment.of(reading)
