"""How the services are reached: settings in, connections out, which connect when they are used."""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_reader import KafkaReader
from delivery.adapters.memory_ledger import MemoryLedger
from delivery.adapters.memory_limits import MemoryLimits
from delivery.adapters.memory_slots import MemorySlots
from delivery.adapters.redis_board import RedisBoard
from delivery.adapters.redis_connection import RedisConnection
from delivery.adapters.redis_ledger import RedisLedger
from delivery.adapters.redis_limits import RedisLimits
from delivery.adapters.redis_slots import RedisSlots
from delivery.fallback_ledger import FallbackLedger
from delivery.fallback_limits import FallbackLimits
from delivery.limits import Limits, Slots
from delivery.model import Partition
from delivery.ports import Clock, LedgerAway
from supervisor.clock import SystemClock
from supervisor.configuration import Configuration, ProcessLimits
from supervisor.topics import TopicsClient


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """What differs between Kafka and the embedded broker.

    The embedded one creates topics on first use, has no settings of topics, and cannot give back offsets that a
    transaction committed.
    """

    connection: KafkaConnection
    topics: TopicsClient | None = None
    embedded: bool = False


def kafka_connection(configuration: Configuration) -> KafkaConnection:
    """The clients' arguments. Raises OSError or ssl.SSLError when a TLS file cannot be used."""
    kafka = configuration.kafka
    options: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "security_protocol": str(kafka.security_protocol),
        "client_id": "delivery",
    }
    if kafka.security_protocol.uses_sasl:
        options["sasl_mechanism"] = str(kafka.sasl_mechanism)
        options["sasl_plain_username"] = kafka.sasl_plain_username
        options["sasl_plain_password"] = kafka.sasl_plain_password
    if kafka.security_protocol.uses_tls:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
        context.check_hostname = kafka.ssl_check_hostname
        if kafka.ssl_certfile is not None:
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile, kafka.ssl_password)
        options["ssl_context"] = context
    return KafkaConnection(
        options=options,
        session_timeout_s=configuration.process.session_timeout_s,
        max_poll_interval_s=configuration.process.max_poll_interval_s,
        max_message_bytes=max(configuration.own_topics.max_message_bytes, 2 * 1_048_576),
    )


def half_reader(
    connection: KafkaConnection,
    process: ProcessLimits,
    on_gap: Callable[[Partition, int, int], None],
    partition_bytes: int | None,
) -> KafkaReader:
    """One of the two readers of a worker, with half of the bytes that may wait for loops and lanes."""
    return KafkaReader(
        connection,
        mailbox_records=process.mailbox_records,
        buffer_bytes=process.buffer_bytes // 2,
        on_gap=on_gap,
        partition_bytes=partition_bytes,
    )


def redis_connection(configuration: Configuration) -> RedisConnection | None:
    """None when no Redis is configured."""
    if configuration.redis_url is None:
        return None
    return RedisConnection(configuration.redis_url, f"{configuration.prefix}:probe")


def shared_ledger(
    redis: RedisConnection | None, prefix: str, worker_id: str, clock: Clock
) -> FallbackLedger | MemoryLedger:
    """What all workers know of endpoints; of a worker alone, what it knows itself."""
    own = MemoryLedger(clock.monotonic)
    return own if redis is None else FallbackLedger(RedisLedger(redis, prefix, worker_id, clock), own)


def shared_limits(redis: RedisConnection | None, prefix: str, clock: Clock) -> Limits:
    """One book for all workers; for a worker alone, its own."""
    own = MemoryLimits(clock)
    return own if redis is None else FallbackLimits(RedisLimits(redis, prefix), own)


def shared_slots(
    redis: RedisConnection | None, prefix: str, worker_id: str, clock: Clock
) -> tuple[Slots, dict[str, Callable[[], Coroutine[Any, Any, None]]]]:
    """The requests at once of all workers, or of a worker alone; and what has to run for ever for them."""
    if redis is None:
        return MemorySlots(clock), {}
    slots = RedisSlots(redis, prefix, worker_id)
    return slots, {"calls for slots": slots.run}


@contextlib.asynccontextmanager
async def _redis_of(configuration: Configuration) -> AsyncIterator[RedisConnection]:
    redis = redis_connection(configuration)
    if redis is None:
        raise LedgerAway("not set")
    try:
        yield redis
    finally:
        await redis.stop()


@contextlib.asynccontextmanager
async def ledger_of(configuration: Configuration) -> AsyncIterator[RedisLedger]:
    """What workers know of queues, for a command, which owns none. Raises LedgerAway when there is no Redis."""
    async with _redis_of(configuration) as redis:
        yield RedisLedger(redis, configuration.prefix, "", SystemClock())


@contextlib.asynccontextmanager
async def board_of(configuration: Configuration) -> AsyncIterator[RedisBoard]:
    """The live board, for a command. Raises LedgerAway when there is no Redis."""
    async with _redis_of(configuration) as redis:
        yield RedisBoard(redis, configuration.prefix)
