"""What has to fit together among the limits that endpoints share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

from supervisor.settings.environment import Environment
from supervisor.settings.names import Path
from supervisor.settings.source import Reading

# All of a scope must mean the same by it.
_OF_A_SCOPE = ("rate", "rate_burst", "max_in_flight", "retry.budget_ratio", "retry.budget_per_s", "retry.budget_burst")


class Chosen(Protocol):
    """The options in force for one endpoint."""

    @property
    def path(self) -> Path:
        """Where the endpoint stands."""
        ...

    def get(self, name: str) -> Any:
        """The value in force."""
        ...

    def has(self, name: str) -> bool:
        """Whether it is set."""
        ...

    def sound(self, *names: str) -> bool:
        """Whether none of them has a fault already."""
        ...

    def where(self, name: str) -> Path:
        """The path where it was set, or would be."""
        ...


def whole_name(tenant: str, scope: str | None) -> str | None:
    """Of a scope: two tenants' own never meet."""
    return scope if scope is None or scope.startswith("global:") else f"{tenant}/{scope}"


def budgeted(endpoints: Iterable[Chosen]) -> frozenset[str]:
    """The scopes that have a retry budget: those that two endpoints or more name."""
    named = Counter(whole_name(chosen.path[1], chosen.get("scope")) for chosen in endpoints)
    return frozenset(scope for scope, count in named.items() if scope is not None and count > 1)


def check_scopes(endpoints: Iterable[Chosen], reading: Reading) -> None:
    """A burst needs a rate, and a scope has one of each."""
    first: dict[str, Chosen] = {}
    for chosen in endpoints:
        if not chosen.sound("scope", *_OF_A_SCOPE):
            continue
        if chosen.has("rate_burst") and not chosen.has("rate"):
            reading.fault(chosen.where("rate_burst"), "needs RATE too")
        scope = whole_name(chosen.path[1], chosen.get("scope"))
        if scope is None:
            continue
        other = first.setdefault(scope, chosen)
        for name in _OF_A_SCOPE:
            if chosen.get(name) != other.get(name):
                reading.fault(
                    chosen.where(name),
                    f"must be the same for all endpoints of the scope {scope}, and is another (or none) in "
                    f"{reading.place(other.where(name))}",
                )


def check_quotas(environment: Environment, reading: Reading) -> None:
    """Half a quota is none."""
    for tenant, options in sorted(environment.tenants.items()):
        parts = {name: getattr(options.quota, name) for name in ("requests", "window_s")}
        paths = {name: ("tenants", tenant, "quota", name) for name in parts}
        given = [name for name, value in parts.items() if value is not None]
        if len(given) == 1 and reading.broken.isdisjoint(paths.values()):
            (lacking,) = parts.keys() - given
            reading.fault(paths[lacking], f"required with QUOTA__{given[0].upper()}")
