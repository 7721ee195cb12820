"""From three levels of options to endpoints: the nearest wins, option by option; then what must fit together."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from delivery.model import (
    Endpoint,
    HaltLimits,
    Network,
    Quota,
    Rate,
    RetryBudget,
    RetryLimits,
    SharedLimits,
    Signing,
)
from delivery.naming import dead_letter_topic, queue_topic
from supervisor.configuration import OwnTopics
from supervisor.settings.environment import Environment
from supervisor.settings.fields import bound
from supervisor.settings.files import TlsFiles
from supervisor.settings.limits import whole_name
from supervisor.settings.names import Path
from supervisor.settings.options import EndpointOptions, Options
from supervisor.settings.source import Reading
from supervisor.settings.texts import TOPIC_MAX
from supervisor.settings.urls import missing

HEADER_ROOM = 65_536
"""Bytes of a queue record beside the event's body: key, headers and what Kafka adds."""

_NETWORK = frozenset(field.name for field in dataclasses.fields(Network))


def _defaults(kind: type[Any], group: str = "") -> dict[str, Any]:
    return {f"{group}{field.name}": field.default for field in dataclasses.fields(kind)}


DEFAULTS = {
    **_defaults(Endpoint),
    **_defaults(Network),
    **_defaults(RetryLimits, "retry."),
    **_defaults(RetryBudget, "retry.budget_"),
    **_defaults(HaltLimits, "halt."),
}
"""By the option's name, `retry.base_s` for one in a group."""

# Of two limits the first must not be above the second. When only the second is set, the first's default follows it.
_ORDERED = (
    ("connect_timeout_s", "timeout_s"),
    ("excerpt_bytes", "max_answer_bytes"),
    ("retry.base_s", "retry.max_wait_s"),
    ("halt.pause_s", "halt.max_s"),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The options in force for one endpoint, each with the path where it was set."""

    path: Path
    values: dict[str, tuple[Any, Path]] = dataclasses.field(repr=False)
    broken: frozenset[str]

    def get(self, name: str) -> Any:
        """The value in force."""
        value = self.values[name][0] if name in self.values else None
        return DEFAULTS.get(name) if value is None else value

    def has(self, name: str) -> bool:
        """Whether it is set, and not unset again nearer."""
        return name in self.values and self.values[name][0] is not None

    def sound(self, *names: str) -> bool:
        """Whether none of them has a fault already."""
        return self.broken.isdisjoint(names)

    def where(self, name: str) -> Path:
        """The path where it was set, or where this endpoint would set it."""
        return self.values[name][1] if name in self.values else (*self.path, *name.split("."))


def chosen_endpoints(environment: Environment, reading: Reading) -> Iterator[Chosen]:
    """The options in force for each endpoint, in the order of their names."""
    broken = sorted(reading.broken)
    all_levels = _level(("defaults",), environment.defaults, broken)
    for tenant, options in sorted(environment.tenants.items()):
        tenants = _level(("tenants", tenant), options, broken)
        for name, nearest in sorted(options.endpoints.items()):
            path = ("tenants", tenant, "endpoints", name)
            levels = (all_levels, tenants, _level(path, nearest, broken))
            values = {key: value for level, _ in levels for key, value in level.items()}
            yield Chosen(path=path, values=values, broken=frozenset().union(*(faulty for _, faulty in levels)))


def _level(
    path: Path, options: EndpointOptions, broken: Sequence[Path]
) -> tuple[dict[str, tuple[Any, Path]], frozenset[str]]:
    values: dict[str, tuple[Any, Path]] = {}
    for name in options.model_fields_set:
        value = getattr(options, name)
        if isinstance(value, Options):
            for inner in value.model_fields_set:
                values[f"{name}.{inner}"] = (getattr(value, inner), (*path, name, inner))
        elif name in EndpointOptions.model_fields:
            values[name] = (value, (*path, name))
    if "secrets" in values:
        # One option in two forms: a file further out must not survive secrets given nearer.
        values.setdefault("secrets_file", (None, values["secrets"][1]))
    depth = len(path)
    return values, frozenset(".".join(fault[depth:]) for fault in broken if fault[:depth] == path)


@dataclasses.dataclass(slots=True, kw_only=True)
class EndpointChecks:
    """Notes in `reading` what does not fit together."""

    reading: Reading
    prefix: str
    own_topics: OwnTopics
    tls: TlsFiles

    def check(self, chosen: Chosen) -> None:
        """Look at one endpoint."""
        self._url(chosen)
        self._topics(chosen)
        self._secrets(chosen)
        self._limits(chosen)
        self._files(chosen)

    def _url(self, chosen: Chosen) -> None:
        if not chosen.sound("url", "allow_http", "allow_ports", "allow_networks"):
            return
        if not chosen.has("url"):
            self.reading.fault(chosen.where("url"), "required: a URL like https://example.com/hooks")
            return
        fault = missing(
            chosen.get("url"),
            allow_http=chosen.get("allow_http"),
            allow_ports=chosen.get("allow_ports"),
            allow_networks=chosen.get("allow_networks"),
        )
        if fault is not None:
            self.reading.fault(chosen.where("url"), fault)

    def _topics(self, chosen: Chosen) -> None:
        where = chosen.where("topics")
        if chosen.sound("topics"):
            if not chosen.has("topics"):
                self.reading.fault(where, "required: names of source topics like orders,invoices")
            elif any(topic.startswith(f"{self.prefix}.") for topic in chosen.get("topics")):
                self.reading.fault(where, f"expected source topics; those that begin with {self.prefix}. are our own")
        tenant, endpoint = chosen.path[1], chosen.path[3]
        ours = (queue_topic(self.prefix, tenant, endpoint), dead_letter_topic(self.prefix, tenant))
        if max(map(len, ours)) > TOPIC_MAX:
            self.reading.fault(
                ("topic_prefix",), f"expected a shorter prefix: Kafka's topics have at most {TOPIC_MAX} characters"
            )

    def _secrets(self, chosen: Chosen) -> None:
        if not chosen.sound("secrets", "signing") or chosen.get("signing") is Signing.NONE:
            return
        if not chosen.has("secrets"):
            self.reading.fault(
                chosen.where("secrets"), "required: whsec_… (or its _FILE twin), or SIGNING=none to send unsigned"
            )

    def _limits(self, chosen: Chosen) -> None:
        attempts, schedule = "retry.max_attempts", "retry.schedule"
        if chosen.has(attempts) and chosen.has(schedule):
            self.reading.fault(
                chosen.where(schedule),
                "cannot be together with RETRY__MAX_ATTEMPTS, as its entries are the attempts: "
                "set one of them to none here",
            )
        for low, high in _ORDERED:
            if chosen.has(low) and chosen.sound(low, high) and chosen.get(low) > chosen.get(high):
                self.reading.fault(
                    chosen.where(low), f"must not be above {_variable(high)} ({bound(chosen.get(high))})"
                )
        most = self.own_topics.max_message_bytes - HEADER_ROOM
        if chosen.sound("max_event_bytes") and chosen.get("max_event_bytes") > most:
            self.reading.fault(
                chosen.where("max_event_bytes"),
                f"must not be above {most:,}: DELIVERY_OWN_TOPICS__MAX_MESSAGE_BYTES less {HEADER_ROOM:,} for headers",
            )

    def _files(self, chosen: Chosen) -> None:
        authorities, certificate, key = (
            chosen.get(name) for name in ("ca_file", "client_cert_file", "client_key_file")
        )
        if authorities is not None and (fault := self.tls.authority_fault(authorities)):
            self.reading.fault(chosen.where("ca_file"), fault)
        if certificate is not None and (fault := self.tls.certificate_fault(certificate, key)):
            self.reading.fault(chosen.where("client_cert_file"), fault)
        if key is not None and certificate is None and chosen.sound("client_cert_file"):
            self.reading.fault(chosen.where("client_key_file"), "needs CLIENT_CERT_FILE too")


def _variable(name: str) -> str:
    return name.upper().replace(".", "__")


def endpoint_of(chosen: Chosen, budgeted: Collection[str] = ()) -> Endpoint:
    """The frozen endpoint; only for options without a fault. `budgeted`: the scopes whose retries are counted."""
    given = {name: value for name, (value, _) in chosen.values.items() if value is not None}
    for low, high in _ORDERED:
        if high in given and low not in given:
            given[low] = min(DEFAULTS[low], given[high])
    groups: dict[str, dict[str, Any]] = {"": {}, "retry": {}, "halt": {}, "network": {}, "quota": {}}
    for name, value in given.items():
        group, _, option = name.rpartition(".")
        groups["network" if option in _NETWORK else group][option] = value
    endpoint, retry = groups[""], groups["retry"]
    scope = whole_name(chosen.path[1], endpoint.pop("scope", None))
    budget = RetryBudget(**{f.name: retry.pop(f"budget_{f.name}", f.default) for f in dataclasses.fields(RetryBudget)})
    shared = SharedLimits(
        scope=scope,
        max_in_flight=endpoint.pop("max_in_flight", None),
        budget=budget if scope in budgeted else None,
        rate=_rate(endpoint.pop("rate", None), endpoint.pop("rate_burst", None)),
        quota=Quota(**groups["quota"]) if groups["quota"] else None,
    )
    endpoint["topics"] = frozenset(endpoint["topics"])
    if (schedule := retry.pop("schedule", None)) is not None:
        retry.update(schedule_s=schedule, max_attempts=len(schedule) + 1)
    return Endpoint(
        tenant=chosen.path[1],
        name=chosen.path[3],
        retry=RetryLimits(**retry),
        halt=HaltLimits(**groups["halt"]),
        network=Network(**groups["network"]),
        shared=shared,
        **endpoint,
    )


def _rate(per_s: float | None, burst: int | None) -> Rate | None:
    return None if per_s is None else Rate(per_s=per_s, burst=burst or max(1, int(per_s)))


def doubled_queues(prefix: str, endpoints: Iterable[Endpoint]) -> list[str]:
    """Queue topics that two endpoints would share; the rule for names leaves none."""
    seen: set[str] = set()
    doubled = []
    for endpoint in endpoints:
        topic = queue_topic(prefix, endpoint.tenant, endpoint.name)
        if topic in seen:
            doubled.append(topic)
        seen.add(topic)
    return doubled
