"""Signing keys: as given at start, or from a file that is read again when it changes."""

from __future__ import annotations

import os
from pathlib import Path

from delivery.model import Endpoint, SigningKey
from delivery.ports import Clock, KeyUnreadable
from supervisor.settings.signing import signing_keys

# A rotated secret is in use within this time; a stat() for every request would cost more than it tells.
LOOK_S = 1.0


class FileKeys:
    """`delivery.ports.Keys`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read: dict[str, tuple[float, tuple[int, int], tuple[SigningKey, ...]]] = {}

    def of(self, endpoint: Endpoint) -> tuple[SigningKey, ...]:
        """The keys in force. Raises KeyUnreadable, naming the endpoint and the file."""
        path = endpoint.secrets_file
        if path is None:
            return endpoint.secrets
        known = self._read.get(path)
        now = self._clock.monotonic()
        if known is not None and now - known[0] < LOOK_S:
            return known[2]
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            keys = known[2] if known is not None and known[1] == stamp else signing_keys(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise KeyUnreadable(f"{endpoint.label}: no signing keys in {path} ({type(error).__name__})") from None
        self._read[path] = (now, stamp, keys)
        return keys
