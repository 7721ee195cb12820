"""What Prometheus is told of a worker at each scrape, from its parts as they are then."""

from __future__ import annotations

from collections.abc import Callable

from delivery.adapters.kafka_member import KafkaMember
from delivery.adapters.kafka_reader import KafkaReader
from delivery.adapters.prometheus_meter import Gauges
from delivery.intake import Intake
from delivery.policy.event import event_time_ms
from delivery.ports import Clock
from supervisor.pending_letters import PendingLetters
from supervisor.view import LoopStateName, WorkerView


def gauges(
    view: WorkerView,
    intake: Intake,
    members: tuple[KafkaMember, KafkaMember],
    readers: tuple[KafkaReader, KafkaReader],
    redis_up: Callable[[], bool] | None,
    clock: Clock,
    letters: PendingLetters,
) -> Gauges:
    """All of them, answered from memory. Members and readers: those of delivery, then those of fan-out."""
    (delivery_member, fanout_member), (delivery_reader, fanout_reader) = members, readers
    return Gauges(
        states=tuple(LoopStateName),
        loop_states=lambda: {(loop.tenant, loop.endpoint): loop.state for loop in view.loops()},
        kafka_member=lambda: {"delivery": delivery_member.proven(), "fanout": fanout_member.proven()},
        assignments=lambda: {"delivery": delivery_member.epoch, "fanout": fanout_member.epoch},
        queue_lag=lambda: {
            (tenure.endpoint.tenant, tenure.endpoint.name): delivery_reader.behind(tenure.mailbox)
            for tenure in intake.tenures.values()
            if tenure.mailbox is not None
        },
        redis_up=redis_up,
        oldest_event_age_s=lambda: _oldest_ages_s(intake, delivery_reader, clock.wall()),
        buffered_bytes=lambda: delivery_reader.bytes + fanout_reader.bytes,
        dead_letters_pending=letters.numbers,
        oldest_dead_letter_age_s=letters.oldest_ages_s,
    )


def _oldest_ages_s(intake: Intake, reader: KafkaReader, now: float) -> dict[tuple[str, str], float]:
    """Where records wait that are not read yet, nothing is known."""
    ages: dict[tuple[str, str], float] = {}
    for tenure in intake.tenures.values():
        if tenure.mailbox is None:
            continue
        name, oldest = (tenure.endpoint.tenant, tenure.endpoint.name), tenure.mailbox.peek(1, 0)
        if oldest:
            ages[name] = max(0.0, now - event_time_ms(oldest[0]) / 1000)
        elif not reader.behind(tenure.mailbox):
            ages[name] = 0.0
    return ages
