"""The README's table of settings, made of the models: `python -m supervisor.settings.table`."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from supervisor.configuration import Configuration, HttpListen, KafkaConnection, Log, OwnTopics, ProcessLimits
from supervisor.settings.endpoints import DEFAULTS
from supervisor.settings.environment import Environment
from supervisor.settings.names import DELIMITER, FILE_SUFFIX, PREFIX, Strict
from supervisor.settings.options import EndpointOptions, QuotaOptions
from supervisor.settings.schema import Group, Leaf, group_of

_REQUIRED = "required"
_HEAD = "| name | default | unit | what it does |\n| --- | --- | --- | --- |\n"


def _defaults(kind: type[Any], group: str = "") -> dict[str, Any]:
    return {f"{group}{field.name}": field.default for field in dataclasses.fields(kind)}


def _process_defaults() -> dict[str, Any]:
    http, whole = HttpListen(), _defaults(Configuration)
    return {
        **_defaults(KafkaConnection, "kafka."),
        **_defaults(ProcessLimits),
        **_defaults(OwnTopics, "own_topics."),
        **_defaults(Log, "log."),
        "kafka.bootstrap_servers": _REQUIRED,
        "redis.url": _REQUIRED,
        "http.listen": f"{http.host}:{http.port}",
        "topic_prefix": whole["prefix"],
        "start": whole["start"],
        "strict": Strict.ERROR,
    }


def _endpoint_defaults() -> dict[str, Any]:
    return {
        **DEFAULTS,
        "url": _REQUIRED,
        "topics": _REQUIRED,
        "secrets": _REQUIRED,
        "statuses": None,
    }


def _shown(value: object) -> str:
    match value:
        case str() if value is _REQUIRED:
            return value
        case enum.Enum():
            text = str(value.value)
        case bool():
            text = str(value).lower()
        case float() if value.is_integer():
            text = str(int(value))
        case None | () | frozenset():
            return "none"
        case tuple():
            text = ",".join(str(entry) for entry in value)
        case _:
            text = str(value)
    return f"`{text}`"


def _rows(group: Group, defaults: Mapping[str, object], prefix: str, inside: str = "") -> Iterator[str]:
    kept = {name + FILE_SUFFIX for name, node in group.fields.items() if isinstance(node, Leaf) and node.keeps_file}
    for name, node in group.fields.items():
        variable = prefix + name.upper()
        if isinstance(node, Group):
            yield from _rows(node, defaults, variable + DELIMITER, f"{inside}{name}.")
        elif isinstance(node, Leaf) and name not in kept:
            twin = f", `{variable}{FILE_SUFFIX.upper()}`" if name in group.twins else ""
            later = "" if node.reads.supported else " (not supported by this version)"
            default = _shown(defaults.get(inside + name))
            text = node.description.replace("|", "\\|")
            yield f"| `{variable}`{twin} | {default} | {node.reads.unit} | {text}{later} |\n"


def table() -> str:
    """Markdown: the settings of the process with their whole names, those of endpoints by their last part."""
    whole = group_of(Environment)
    process = dataclasses.replace(
        whole, fields={name: node for name, node in whole.fields.items() if name not in {"defaults", "tenants"}}
    )
    return "".join(
        (
            "Of the process:\n\n",
            _HEAD,
            *_rows(process, _process_defaults(), PREFIX),
            f"\nOf endpoints: behind `{PREFIX}DEFAULTS__` for all, `{PREFIX}TENANTS__ACME__` for a tenant's, "
            f"`{PREFIX}TENANTS__ACME__ENDPOINTS__BILLING__` for one; the nearest wins. "
            f"`{PREFIX}TENANTS` takes them all as one JSON value (names in lower case, groups as objects), "
            f"`{PREFIX}TENANTS_FILE` the path of a file with it:\n\n",
            _HEAD,
            *_rows(group_of(EndpointOptions), _endpoint_defaults(), ""),
            f"\nOf tenants: behind `{PREFIX}TENANTS__ACME__`:\n\n",
            _HEAD,
            *_rows(group_of(QuotaOptions), {}, "QUOTA__"),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(table())
