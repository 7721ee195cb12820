"""What the demo is made of: four endpoints that behave differently, and a worker's settings for them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

from delivery.model import Endpoint, Network, SigningKey
from supervisor.configuration import Configuration, HttpListen, KafkaConnection, OwnTopics, Start
from supervisor.demo.roles import BUCKET, FLAKY_SHARE, RETRY_AFTER_S, Role
from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import Act, Asked, Script, always, flaky, reply

TENANT = "acme"
TOPIC = "orders"
PREFIX = "demo"
TYPE = "order.placed"

# With this one no event is refused more than three times in a row, and all of them take about 25 s.
FLAKY_SEED = 30


@dataclasses.dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


def limiting(per_s: float, clock: Callable[[], float]) -> Script:
    """204 while there are tokens, else 429 with `Retry-After`; the bucket holds one second's worth."""
    bucket = _Bucket(per_s, clock())

    def script(_asked: Asked) -> Act:
        now = clock()
        bucket.tokens = min(per_s, bucket.tokens + (now - bucket.filled_at) * per_s)
        bucket.filled_at = now
        if bucket.tokens < 1:
            return reply(429, {"retry-after": str(RETRY_AFTER_S)})
        bucket.tokens -= 1
        return reply(204)

    return script


def prepare(server: ScriptedServer, clock: Callable[[], float]) -> None:
    """Give the server its scripts."""
    server.script(Role.HEALTHY.path, always(204))
    server.script(Role.FLAKY.path, flaky(FLAKY_SEED, [(FLAKY_SHARE, reply(503))]))
    server.script(Role.DEAD.path, always(404))
    server.script(Role.LIMITING.path, limiting(BUCKET, clock))


def configuration(bootstrap: str, server: ScriptedServer) -> Configuration:
    """Defaults throughout, except for what the demo's surroundings need. Nothing comes from the environment."""
    network = Network(allow_networks=("127.0.0.0/8",), allow_ports=frozenset({server.port}), allow_http=True)
    endpoints = tuple(
        Endpoint(
            tenant=TENANT,
            name=role.value,
            url=server.url(role.path),
            topics=frozenset({TOPIC}),
            secrets=(SigningKey(key=hashlib.sha256(role.value.encode()).digest()),),
            network=network,
        )
        for role in Role
    )
    return Configuration(
        kafka=KafkaConnection(bootstrap_servers=bootstrap),
        prefix=PREFIX,
        http=HttpListen(port=0),
        endpoints=endpoints,
        tenants=(TENANT,),
        start=Start.EARLIEST,
        own_topics=OwnTopics(create=True, replication_factor=1, min_isr=1),
    )
