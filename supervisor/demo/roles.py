"""The demo's endpoints and how they behave."""

from __future__ import annotations

import enum

RETRY_AFTER_S = 1
# As many requests a second as the endpoint takes, and at once.
BUCKET = 10.0
FLAKY_SHARE = 0.25


class Role(enum.StrEnum):
    """The endpoints, by name."""

    HEALTHY = "healthy"
    FLAKY = "flaky"
    DEAD = "dead"
    LIMITING = "rate-limiting"

    @property
    def path(self) -> str:
        """Where the scripted server has it."""
        return f"/{self.value}"

    @property
    def behaviour(self) -> str:
        """How it answers, in a few words."""
        return {
            Role.HEALTHY: "204",
            Role.FLAKY: f"{FLAKY_SHARE:.0%} 503",
            Role.DEAD: "always 404",
            Role.LIMITING: f"429 past {BUCKET:g}/s",
        }[self]
