"""Event → the endpoints that it is queued for."""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Collection, Iterable
from typing import Final

from delivery.model import Endpoint, Event
from delivery.policy.event import EVENT_TIME, RENAMED, SOURCE
from delivery.policy.record_size import HEADER_OVERHEAD, record_size

_REMEMBERED_ROUTES: Final = 4096
_LONGEST_REMEMBERED_TYPE: Final = 256
"""Longer types are routed each time: what a producer writes must not fill this process' memory."""

_NUMBERS: Final = 64
"""Two slashes, a partition (10), an offset and a time (20 each), in characters, rounded up."""


class Unrouted(enum.StrEnum):
    """Why an event is queued for nobody."""

    NO_SUBSCRIBER = "no_subscriber"
    NO_TENANT = "no_tenant"
    UNKNOWN_TENANT = "unknown_tenant"


Route = tuple[Endpoint, ...] | Unrouted


class Subscriptions:
    """Who gets which event. Endpoints that are not enabled are subscribed too: they queue and do not send."""

    __slots__ = ("_broadcast", "_by_topic", "_routes", "_tenants")

    def __init__(
        self, endpoints: Iterable[Endpoint], broadcast_topics: Collection[str] = (), tenants: Collection[str] = ()
    ) -> None:
        """`tenants` are those known besides the endpoints' own: one without endpoints is not unknown."""
        self._by_topic: dict[str, list[tuple[Endpoint, re.Pattern[str] | None]]] = {}
        known = set(tenants)
        for endpoint in endpoints:
            known.add(endpoint.tenant)
            pattern = _compiled(endpoint.event_types)
            for topic in endpoint.topics:
                self._by_topic.setdefault(topic, []).append((endpoint, pattern))
        self._tenants = frozenset(known)
        self._broadcast = frozenset(broadcast_topics)
        self._routes: dict[tuple[str, str | None, str | None], Route] = {}

    @property
    def topics(self) -> frozenset[str]:
        """Every source topic that somebody lists."""
        return frozenset(self._by_topic)

    def route(self, event: Event) -> Route:
        """The subscribed endpoints in the order of the settings, at least one; or why there is none.

        An event with a tenant goes to that tenant's endpoints. One without goes to somebody only when exactly one
        tenant lists its topic or the topic is broadcast, so that no tenant's event reaches another by omission.
        """
        asked = (event.source.topic, event.tenant, event.type)
        route = self._routes.get(asked)
        if route is not None:
            return route
        if event.tenant is not None and event.tenant not in self._tenants:
            return Unrouted.UNKNOWN_TENANT
        route = self._find(*asked)
        if event.type is None or len(event.type) <= _LONGEST_REMEMBERED_TYPE:
            if len(self._routes) >= _REMEMBERED_ROUTES:
                self._routes.clear()
            self._routes[asked] = route
        return route

    def _find(self, topic: str, tenant: str | None, event_type: str | None) -> Route:
        listed = self._by_topic.get(topic, [])
        if tenant is not None:
            listed = [item for item in listed if item[0].tenant == tenant]
        elif topic not in self._broadcast and len({endpoint.tenant for endpoint, _ in listed}) > 1:
            return Unrouted.NO_TENANT
        subscribed = tuple(endpoint for endpoint, pattern in listed if _matches(pattern, event_type))
        return subscribed or Unrouted.NO_SUBSCRIBER


def fits(event: Event, endpoint: Endpoint, queue_limit_bytes: int | None) -> str | None:
    """Why the event cannot be queued for the endpoint; None when it can.

    `queue_limit_bytes` is the `max.message.bytes` of the queue topic, None when it is not known. The record's size
    is estimated from above, as a batch of one.
    """
    if len(event.body) > endpoint.max_event_bytes:
        return f"the body has {len(event.body)} bytes, the endpoint takes {endpoint.max_event_bytes}"
    if queue_limit_bytes is None:
        return None
    ours = len(SOURCE) + len(event.source.topic) + len(EVENT_TIME) + _NUMBERS + 2 * HEADER_OVERHEAD
    size = record_size(event.key, event.value, event.headers) + ours + len(RENAMED) * len(event.headers)
    if size > queue_limit_bytes:
        return f"the queue record would have up to {size} bytes, its topic takes {queue_limit_bytes}"
    return None


def _compiled(globs: tuple[str, ...]) -> re.Pattern[str] | None:
    """One expression for all globs; None stands for "every event, with a type or without"."""
    if "*" in globs:
        return None
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs) or r"(?!)")


def _matches(pattern: re.Pattern[str] | None, event_type: str | None) -> bool:
    if pattern is None:
        return True
    return event_type is not None and pattern.match(event_type) is not None
