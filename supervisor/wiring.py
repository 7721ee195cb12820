"""The composition root: settings in, a worker out. Nothing else knows the adapters."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from delivery.adapters.aiohttp_transport import AiohttpTransport
from delivery.adapters.http_sender import HttpSender
from delivery.adapters.kafka_connection import QUEUE_FETCH_BYTES, forbid_topic_creation
from delivery.adapters.kafka_member import KafkaMember
from delivery.adapters.kafka_producers import KafkaDeadLetters, KafkaLaneProducers
from delivery.adapters.kafka_reader import KafkaReader
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.adapters.prometheus_meter import PrometheusMeter
from delivery.adapters.redis_board import RedisBoard
from delivery.attempts import AttemptLog, ToldToAll
from delivery.commit_pump import CommitPump
from delivery.fallback_ledger import FallbackLedger
from delivery.fanout import Fanout
from delivery.intake import Intake
from delivery.loop import DeliveryLoop
from delivery.naming import delivery_group, fanout_group, fanout_transactional_id, queue_topic
from delivery.policy.fan_out import FanoutPlan
from delivery.policy.request import RequestMaker
from delivery.policy.subscribe import Subscriptions
from delivery.settle import Settle
from delivery.starting_points import CommittedStart, OldestStart
from delivery.surroundings import Surroundings
from supervisor.board import LiveBoard
from supervisor.clock import SystemClock
from supervisor.configuration import Configuration, Start
from supervisor.connections import (
    Broker,
    half_reader,
    kafka_connection,
    redis_connection,
    shared_ledger,
    shared_limits,
    shared_slots,
)
from supervisor.following import Following, pending_letters
from supervisor.gaps import gap_reporter
from supervisor.gauges import gauges
from supervisor.keys import FileKeys
from supervisor.own_topics import wanted
from supervisor.sweep import Sweep
from supervisor.topics import Topics
from supervisor.version import version
from supervisor.view import offset_lost_states
from supervisor.worker import Worker

log = structlog.get_logger(__name__)


def build(configuration: Configuration, broker: Broker | None = None) -> Worker:
    """A worker that has done nothing yet."""
    if broker is None:
        broker = Broker(connection=kafka_connection(configuration))
    if not broker.embedded:
        forbid_topic_creation()
    return _Building(configuration, broker).worker()


class _Building:
    """The parts in the order in which they need each other."""

    def __init__(self, configuration: Configuration, broker: Broker) -> None:
        self.configuration = configuration
        self.broker = broker
        self.connection = broker.connection
        self.clock = SystemClock()
        # What tells this life of this process from every other worker, and from its own earlier ones.
        self.worker_id = uuid.uuid4().hex
        self.meter = PrometheusMeter()
        self.queues = {
            queue_topic(configuration.prefix, endpoint.tenant, endpoint.name): endpoint
            for endpoint in configuration.endpoints
        }
        self.subscriptions = Subscriptions(
            configuration.endpoints, configuration.broadcast_topics, configuration.tenants
        )
        self.kafka_topics = KafkaTopics(self.connection)
        self.topics = Topics(
            broker.topics or self.kafka_topics,
            own=wanted(configuration),
            sources=self.subscriptions.topics,
            create=configuration.own_topics.create or broker.embedded,
            most_bytes=self.connection.max_message_bytes,
            clock=self.clock,
            on_change=self.subscribe,
            on_missing=lambda topics: self.control.queues_missing(topics & self.queues.keys()),
        )
        self._build_ledger()
        self.following = Following(
            self.connection,
            configuration.prefix,
            self.topics.exists,
            self.clock,
            lambda queue: self.sweep.ordered(queue),
        )
        self.control = self.following.control
        self.shared_services |= self.following.services
        self.forever |= self.following.forever
        self._build_kafka()
        self._build_loops()

    def _build_ledger(self) -> None:
        prefix = self.configuration.prefix
        self.redis = redis_connection(self.configuration)
        self.shared_services: dict[str, Any] = {}
        self.forever: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self.ledger = shared_ledger(self.redis, prefix, self.worker_id, self.clock)
        if isinstance(self.ledger, FallbackLedger):
            self.forever["ledger"] = self.ledger.run
        self.slots, listening = shared_slots(self.redis, prefix, self.worker_id, self.clock)
        self.forever |= listening

    def _build_kafka(self) -> None:
        configuration = self.configuration
        groups = delivery_group(configuration.prefix), fanout_group(configuration.prefix)
        self.delivery_member, self.fanout_member = (
            KafkaMember(self.connection, self.kafka_topics, group, self.clock) for group in groups
        )
        self.delivery_reader = self._reader(QUEUE_FETCH_BYTES)
        self.fanout_reader = self._reader(None)
        self.lane_producers = KafkaLaneProducers(
            self.connection, configuration.prefix, fanout_group(configuration.prefix)
        )
        self.dead_letters = KafkaDeadLetters(self.connection, self.topics.exists, self.topics.limit_bytes)
        self.pump = CommitPump(self.delivery_member, configuration.process.commit_interval_s)
        self.delivery_member.before_rebalance = self.pump.before_rebalance
        self.delivery_member.after_rebalance = self.pump.reassigned
        self.letters = pending_letters(
            self.connection, configuration.prefix, self.topics.exists, self.delivery_member, self.queues, self.clock
        )
        self.forever["count of dead letters"] = self.letters.run

    def _build_loops(self) -> None:
        configuration = self.configuration
        self.transport = AiohttpTransport()
        self.surroundings = Surroundings(
            member=self.delivery_member,
            sender=HttpSender(self.transport, self.clock),
            keys=FileKeys(self.clock),
            settle=Settle(self.pump, self.dead_letters, configuration.prefix, self.meter),
            ledger=self.ledger,
            limits=shared_limits(self.redis, configuration.prefix, self.clock),
            slots=self.slots,
            attempts=ToldToAll(AttemptLog(), self.meter),
            meter=self.meter,
            clock=self.clock,
            disable=self.control.disable,
        )
        self.sweep = Sweep(
            sweep_s=configuration.process.sweep_s,
            make_loop=self._make_loop(version()),
            orders=self.control,
            ledger=self.ledger,
            meter=self.meter,
            clock=self.clock,
        )

    def _reader(self, partition_bytes: int | None) -> KafkaReader:
        return half_reader(self.connection, self.configuration.process, gap_reporter(self.meter), partition_bytes)

    def _make_loop(self, program_version: str) -> Any:
        makers = {e.label: RequestMaker(e, program_version) for e in self.configuration.endpoints}
        return lambda tenure: DeliveryLoop(tenure, makers[tenure.endpoint.label], self.surroundings)

    def subscribe(self) -> None:
        """Join for what exists: a missing topic in a subscription would be asked for, and so created."""
        self.fanout_member.subscribe(self.topics.sources)
        self.delivery_member.subscribe(
            [queue for queue, endpoint in self.queues.items() if endpoint.enabled and self.topics.usable(queue)]
        )

    def worker(self) -> Worker:
        """Everything put together."""
        intake = self._intake()
        fanout = self._fanout(intake)
        services: Mapping[str, Any] = {
            **self.shared_services,
            "topics": self.kafka_topics,
            "dead letters": self.dead_letters,
            "delivery reader": self.delivery_reader,
            "fan-out reader": self.fanout_reader,
            "delivery member": self.delivery_member,
            "fan-out member": self.fanout_member,
        }
        worker = Worker(
            configuration=self.configuration,
            metrics=self.meter,
            services=services,
            forever={
                **self.forever,
                "topics": self.topics.run,
                "delivery member": self.delivery_member.run,
                "fan-out member": self.fanout_member.run,
                "delivery reader": self.delivery_reader.run,
                "fan-out reader": self.fanout_reader.run,
                "intake": lambda: self.following.before(intake.run),
                "fan-out": fanout.run,
                "commit pump": self.pump.run,
                "sweep": self.sweep.run,
            },
            transport=self.transport,
            topics=self.topics,
            queues=self.queues,
            members=(self.delivery_member, self.fanout_member),
            intake=intake,
            fanout=fanout,
            pump=self.pump,
            sweep=self.sweep,
            clock=self.clock,
            shares=self._redis_up,
        )
        return self._watched(worker, intake)

    def _watched(self, worker: Worker, intake: Intake) -> Worker:
        members, readers = (self.delivery_member, self.fanout_member), (self.delivery_reader, self.fanout_reader)
        redis_up = None if self.redis is None else self._redis_up
        self.meter.watch(gauges(worker, intake, members, readers, redis_up, self.clock, self.letters))
        return worker

    def _redis_up(self) -> bool:
        return self.redis is not None and self.redis.up

    def _intake(self) -> Intake:
        return Intake(
            member=self.delivery_member,
            reader=self.delivery_reader,
            pump=self.pump,
            ledger=self.ledger,
            clock=self.clock,
            notes=self.control,
            meter=self.meter,
            queues=self.queues,
            on_ready=self.sweep.ready,
            on_lost=self.sweep.lost,
        )

    def _join_board(self, fanout: Fanout, intake: Intake) -> None:
        if self.redis is None:
            return
        prefix = self.configuration.prefix
        board = LiveBoard(
            RedisBoard(self.redis, prefix),
            self.redis,
            worker=self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            transactional_ids=lambda: [fanout_transactional_id(prefix, *source) for source in fanout.sources],
            abort=self.lane_producers.abort,
            states=lambda: [*self.sweep.states(), *offset_lost_states(intake.tenures.values())],
            proven=self.delivery_member.proven,
            clock=self.clock,
        )
        # It connects Redis and disconnects it when it has left, as the last that needs it.
        self.shared_services["live board"], self.forever["live board"] = board, board.run

    def _fanout(self, intake: Intake) -> Fanout:
        fanout = Fanout(
            member=self.fanout_member,
            reader=self.fanout_reader,
            producers=self.lane_producers,
            starting_points=self._starting_points(),
            plan=FanoutPlan(self.subscriptions, self.configuration.prefix),
            topics=self.topics,
            meter=self.meter,
        )
        self._join_board(fanout, intake)
        return fanout

    def _starting_points(self) -> CommittedStart | OldestStart:
        if self.broker.embedded:
            return OldestStart(self.fanout_reader)
        return CommittedStart(
            self.fanout_member,
            self.fanout_reader,
            self.control,
            self.topics.partitions,
            from_latest=self.configuration.start is Start.LATEST,
        )
