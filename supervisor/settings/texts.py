"""Values with a grammar of their own: topics, globs, statuses, headers, ports, networks, host and port."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from delivery.model import Answering, RetryUnsafe
from delivery.policy.request import header_fault
from supervisor.settings.faults import expected
from supervisor.settings.fields import NoJson, choice, entries, is_none, load_json, whole
from supervisor.settings.names import shown

TOPIC_MAX = 249
"""Longest name of a topic that Kafka takes (org.apache.kafka.common.internals.Topic)."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_GLOB = re.compile(r"[!-~]{1,256}")
_STATUS = re.compile(r"[1-9][0-9]{2}")
_UNAVAILABLE = "503+retry-after"
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")

_SCOPE = re.compile(r"(?:global:)?[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)/(s|min|h)")
_PER = {"s": 1.0, "min": 60.0, "h": 3_600.0}
_LEAST_RATE = 0.1 / 3_600
_MOST_RATE = 100_000.0

_MOST_HEADERS = 64
_LONGEST_HEADER = 8_192
_OURS = "webhook-"


def topic(value: Any) -> str:
    """The name of a topic, by Kafka's rule; names that begin with two underscores are Kafka's own."""
    name = value.strip() if isinstance(value, str) else ""
    if len(name) > TOPIC_MAX or name in {".", ".."} or not _TOPIC.fullmatch(name) or name.startswith("__"):
        raise expected(
            f"expected names of Kafka topics: 1 to {TOPIC_MAX} letters, digits, '.', '_' and '-', "
            "no pattern, none of Kafka's own (__…)"
        )
    return name


def topic_prefix(value: Any) -> str:
    """What the names of our own topics begin with."""
    name = value.strip() if isinstance(value, str) else ""
    if len(name) > TOPIC_MAX or not _PREFIX.fullmatch(name):
        raise expected("expected letters, digits, '_' and '-', in parts joined by single dots, like webhooks")
    return name


def glob(value: Any) -> str:
    """A pattern with `*`, `?` and `[…]`."""
    pattern = value.strip() if isinstance(value, str) else ""
    if not _GLOB.fullmatch(pattern):
        raise expected("expected patterns like order.* in printable ASCII without blanks, at most 256 characters each")
    return pattern


def statuses(value: Any) -> Mapping[int, Answering]:
    """`404=retry,429=rejected`, or the same as a JSON object.

    From 300 to 599. A 2xx is not among them: it says that the endpoint has the event, and sending it again or
    calling it failed would contradict the one thing that receiver and sender agree on.
    """
    what = "expected statuses from 300 to 599 like 404=retry,409=delivered (delivered, rejected or retry; 2xx is fixed)"
    if isinstance(value, str) and value.strip().startswith("{"):
        value = _object(value, what)
    if isinstance(value, dict):
        pairs = [(str(status), meaning) for status, meaning in value.items()]
    else:
        pairs = []
        for entry in entries(value, what.removeprefix("expected ")):
            status, _, meaning = str(entry).partition("=")
            pairs.append((status.strip(), meaning))
    read = choice(Answering)
    found: dict[int, Answering] = {}
    for status, meaning in pairs:
        try:
            found[int(status) if _STATUS.fullmatch(status) else 0] = read(meaning)
        except ValueError:
            raise expected(what) from None
    if not found or len(found) != len(pairs) or any(not 300 <= status <= 599 for status in found):
        raise expected(what + (", each once" if len(found) != len(pairs) else ""))
    return found


def retry_unsafe(value: Any) -> RetryUnsafe:
    """`401,429,503+Retry-After`, or `none`: no answer allows to send an event again that must not arrive twice."""
    if is_none(value):
        return RetryUnsafe(statuses=frozenset(), unavailable=False)
    what = "statuses from 300 to 599 like 401,429 (503+Retry-After: a 503 that has a Retry-After), or none"
    found = [str(entry).strip() for entry in entries(value, what)]
    conditional = [entry for entry in found if entry.lower() == _UNAVAILABLE]
    plain = [entry for entry in found if entry.lower() != _UNAVAILABLE]
    if not all(_STATUS.fullmatch(entry) and 300 <= int(entry) <= 599 for entry in plain):
        raise expected(f"expected {what}")
    return RetryUnsafe(statuses=frozenset(map(int, plain)), unavailable=bool(conditional))


def _object(value: str, what: str) -> dict[str, Any]:
    try:
        loaded = load_json(value)
    except NoJson as error:
        raise expected(f"{what}: it has {error}") from None
    if not isinstance(loaded, dict):
        raise expected(what)
    return loaded


def headers(value: Any) -> tuple[tuple[str, str], ...]:
    """A JSON object of header names and values, in the order given; names become lower case.

    What `delivery.policy.request` would not send is refused here, before anything is sent.
    """
    what = 'expected a JSON object of header names and values like {"authorization": "Bearer …"}'
    found = _object(value, what) if isinstance(value, str) else value
    if not isinstance(found, dict) or not 0 < len(found) <= _MOST_HEADERS:
        raise expected(f"{what}, 1 to {_MOST_HEADERS} of them")
    taken: dict[str, str] = {}
    for name, content in found.items():
        lower = name.lower()
        if not isinstance(content, str) or not 0 < len(content) <= _LONGEST_HEADER:
            raise expected(f"header {shown(lower)}: expected a text of 1 to {_LONGEST_HEADER:,} characters")
        if fault := header_fault(name, content):
            raise expected(f"header {shown(lower)}: {fault}")
        if lower.startswith(_OURS):
            raise expected(f"header {shown(lower)}: names that begin with {_OURS} belong to the protocol")
        if lower in taken:
            raise expected(f"header {shown(lower)} is given twice")
        taken[lower] = content
    return tuple(taken.items())


def scope(value: Any) -> str:
    """The name of a scope."""
    name = value.strip() if isinstance(value, str) else ""
    if not _SCOPE.fullmatch(name):
        raise expected(
            "expected a name of 1 to 80 letters, digits, '.', '_' and '-' like api.example.com, "
            "or global:NAME for one of all tenants"
        )
    return name


def rate(value: Any) -> float:
    """`10/s`, `750/min`, `2.5/h` as requests per second."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    per_s = float(match[1]) / _PER[match[2]] if match else 0.0
    if not _LEAST_RATE <= per_s <= _MOST_RATE:
        raise expected("expected requests in a time like 10/s, 750/min or 2.5/h, from 0.1/h to 100000/s")
    return per_s


def token(value: Any) -> str:
    """A bearer token: printable ASCII without blanks."""
    stripped = value.strip() if isinstance(value, str) else ""
    if not _GLOB.fullmatch(stripped):
        raise expected("expected 1 to 256 printable ASCII characters without blanks")
    return stripped


def ports(value: Any) -> frozenset[int]:
    """Ports, each once or more."""
    what = "ports from 1 to 65535"
    read = whole(1, 65_535)
    try:
        return frozenset(read(entry) for entry in entries([value] if isinstance(value, int) else value, what))
    except ValueError:
        raise expected(f"expected {what}: a comma list (3000,9000) or a JSON list") from None


def networks(value: Any) -> tuple[str, ...]:
    """Networks or addresses, normalised to CIDR without host bits. Host names are not taken: they can be moved."""
    what = "networks or addresses like 10.1.0.0/16,192.168.3.207 (no host names)"
    try:
        return tuple(
            dict.fromkeys(str(ipaddress.ip_network(str(entry).strip(), strict=False)) for entry in entries(value, what))
        )
    except ValueError:
        raise expected(f"expected {what}") from None


def host_port(value: Any, *, lowest_port: int = 1) -> tuple[str, int]:
    """`host:port`, IPv6 addresses in brackets."""
    match = _HOST_PORT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not lowest_port <= int(match[3]) <= 65_535:
        raise expected(f"expected host:port like 127.0.0.1:8080 or [::1]:8080, port {lowest_port} to 65535")
    return match[1] or match[2], int(match[3])


def listen(value: Any) -> tuple[str, int]:
    """Where to listen; port 0 lets the system choose one."""
    return host_port(value, lowest_port=0)


def bootstrap_servers(value: Any) -> str:
    """`host:port[,host:port]`."""
    what = "host:port[,host:port]"
    try:
        pairs = [host_port(entry) for entry in entries(value, what)]
    except ValueError:
        raise expected(f"expected {what} like kafka-1:9092,kafka-2:9092, ports from 1 to 65535") from None
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in pairs)


def redis_url(value: Any) -> str:
    """`redis://` or `rediss://`, host, port and the number of a database. Nothing of the value is ever shown."""
    text = value.strip() if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        usable = (
            parts.scheme in {"redis", "rediss"}
            and bool(parts.hostname)
            and parts.port != 0
            and not parts.fragment
            and (parts.path in {"", "/"} or parts.path[1:].isdecimal())
            and text.isprintable()
            and " " not in text
        )
    except ValueError:
        usable = False
    if not usable:
        raise expected("expected redis://[user:password@]host:6379/0, or rediss://… over TLS")
    return text
