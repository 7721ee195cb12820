"""Which version this is."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def version() -> str:
    """The installed distribution's version; `0+unknown` when the code runs without being installed."""
    try:
        return importlib.metadata.version("webhook-delivery")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"
