"""How every Kafka client of this program is made."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import aiokafka.admin.client
import aiokafka.client
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.metadata import MetadataRequest

from delivery.adapters.kafka_assignor import FewMovesAssignor

# JoinGroup is answered when the last member has joined, at the latest after the rebalance timeout.
REBALANCE_TIMEOUT_S = 10.0
GROUP_REQUEST_TIMEOUT_S = 15.0
# How late a partition that is added to a source topic is noticed; the client's own default is 5 minutes.
METADATA_S = 30.0
# A paused and resumed partition waits for the outstanding long poll to return.
FETCH_WAIT_S = 0.1
# One fetch answer; the memory that a reader needs beside its mailboxes.
FETCH_BYTES = 16 * 1_048_576
# A queue's batches follow one another, each after the answer to the one before: the client's 16 KiB make one endpoint
# slow. Not more than the smallest limit that can be set for our own topics.
BATCH_BYTES = 65_536
# A queue's share of a fetch: two batches. With 2 MiB a worker that took queues over decoded thousands of records of
# each before the first was sent, and its other loops stood still for that long: 93 % of the rate in the storm of
# rebalances instead of 97 %.
QUEUE_FETCH_BYTES = 2 * BATCH_BYTES
# Frames and headers around the largest record.
ENVELOPE_BYTES = 65_536


def forbid_topic_creation() -> None:
    """Let no metadata request of this process create a topic.

    aiokafka 0.14 asks for automatic creation in every metadata request and has no switch for it: a deleted
    topic came back with the broker's default partitions as soon as a client looked for its leader.
    """
    creating_none = functools.partial(MetadataRequest, allow_auto_topic_creation=False)
    aiokafka.client.MetadataRequest = creating_none
    aiokafka.admin.client.MetadataRequest = creating_none


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Where Kafka is and what the clients need to know.

    `options` are aiokafka's connection arguments (bootstrap_servers, security_protocol, …). `check_crcs` is False
    for the embedded broker only: it writes control batches whose checksum aiokafka refuses.
    """

    options: Mapping[str, Any] = dataclasses.field(repr=False)
    session_timeout_s: float = 6.0
    max_poll_interval_s: float = 300.0
    max_message_bytes: int = 2 * 1_048_576
    check_crcs: bool = True

    @property
    def heartbeat_s(self) -> float:
        """A sixtieth of the session, 100 ms: the queues of a worker that left stand still until the next heartbeats."""
        return self.session_timeout_s / 60

    @property
    def proof_s(self) -> float:
        """How long an answered heartbeat proves membership: less than the broker waits before it expels."""
        return self.session_timeout_s - 1.0

    def member(self, group: str, assignor: type[FewMovesAssignor]) -> AIOKafkaConsumer:
        """A consumer that belongs to a group and is meant to read nothing."""
        return AIOKafkaConsumer(
            **self.options,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=int(self.session_timeout_s * 1000),
            heartbeat_interval_ms=int(self.heartbeat_s * 1000),
            rebalance_timeout_ms=int(REBALANCE_TIMEOUT_S * 1000),
            request_timeout_ms=int(GROUP_REQUEST_TIMEOUT_S * 1000),
            max_poll_interval_ms=int(self.max_poll_interval_s * 1000),
            metadata_max_age_ms=int(METADATA_S * 1000),
            partition_assignment_strategy=[assignor],
            max_partition_fetch_bytes=1024,
            fetch_max_bytes=1024,
            check_crcs=self.check_crcs,
        )

    def reader(self, partition_bytes: int | None = None, *, committed: bool = True) -> AIOKafkaConsumer:
        """A consumer without a group. Without `committed` it sees transactions that are open, too.

        `partition_bytes` is one partition's share of a fetch, at least the largest record unless given. A smaller one
        delays larger records only: Kafka gives the first batch of an answer whole, and the client asks for the
        partitions in another order each time.
        """
        return AIOKafkaConsumer(
            **self.options,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed" if committed else "read_uncommitted",
            fetch_max_wait_ms=int(FETCH_WAIT_S * 1000),
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=partition_bytes or self.max_message_bytes + ENVELOPE_BYTES,
            request_timeout_ms=int(GROUP_REQUEST_TIMEOUT_S * 1000),
            check_crcs=self.check_crcs,
        )

    def producer(self, request_timeout_s: float) -> AIOKafkaProducer:
        """A producer that waits for all replicas in sync.

        Not idempotent: aiokafka's idempotent producer retries for ever and is unusable after one refused record.
        """
        return AIOKafkaProducer(
            **self.options,
            acks="all",
            request_timeout_ms=int(request_timeout_s * 1000),
            max_request_size=self.max_message_bytes + ENVELOPE_BYTES,
        )

    def transactional(self, transactional_id: str, timeout_s: float) -> AIOKafkaProducer:
        """A producer that fences every other one with the same id when it starts."""
        return AIOKafkaProducer(
            **self.options,
            transactional_id=transactional_id,
            transaction_timeout_ms=int(timeout_s * 1000),
            max_batch_size=BATCH_BYTES,
            max_request_size=self.max_message_bytes + ENVELOPE_BYTES,
        )

    def admin(self) -> AIOKafkaAdminClient:
        """A client for looking at and creating topics."""
        return AIOKafkaAdminClient(**self.options, request_timeout_ms=int(GROUP_REQUEST_TIMEOUT_S * 1000))
