"""Which topics of our own there have to be, and what is wrong with those that there are. Pure."""

from __future__ import annotations

from typing import Final

from delivery.naming import control_topic, dead_letter_topic, queue_topic
from delivery.topics import TopicFound, TopicWanted
from supervisor.configuration import Configuration

__all__ = ["TopicFound", "TopicWanted", "creation_fault", "faults", "misconfigured", "wanted"]

_CLEANUP: Final = "cleanup.policy"
_RETENTION: Final = "retention.ms"
_LARGEST: Final = "max.message.bytes"
_MIN_ISR: Final = "min.insync.replicas"
# Under these names the settings may be read in a broker's answer that refuses a topic.
_REPLICATION_SETTING: Final = "DELIVERY_OWN_TOPICS__REPLICATION_FACTOR"
_REFUSED_REPLICATION: Final = "InvalidReplicationFactorError"
_FOR_EVER: Final = -1


def wanted(configuration: Configuration) -> list[TopicWanted]:
    """A queue for each endpoint, also for those that are not enabled (they queue), dead letters, and orders."""
    own = configuration.own_topics

    def topic(name: str, retention_s: float) -> TopicWanted:
        return TopicWanted(
            name=name,
            replication_factor=own.replication_factor,
            configs={
                _CLEANUP: "delete",
                _RETENTION: str(int(retention_s * 1000)),
                _LARGEST: str(own.max_message_bytes),
                _MIN_ISR: str(own.min_isr),
            },
        )

    prefix = configuration.prefix
    queues = [queue_topic(prefix, endpoint.tenant, endpoint.name) for endpoint in configuration.endpoints]
    tenants = dict.fromkeys(endpoint.tenant for endpoint in configuration.endpoints)
    return [
        *(topic(name, own.queue_retention_s) for name in queues),
        *(topic(dead_letter_topic(prefix, tenant), own.dead_letter_retention_s) for tenant in tenants),
        wanted_control(configuration),
    ]


def wanted_control(configuration: Configuration) -> TopicWanted:
    """Where orders and notes stand: the newest of each key for ever. They are a few hundred bytes each."""
    own = configuration.own_topics
    return TopicWanted(
        name=control_topic(configuration.prefix),
        replication_factor=own.replication_factor,
        configs={_CLEANUP: "compact", _MIN_ISR: str(own.min_isr)},
    )


def misconfigured(found: TopicFound) -> str | None:
    """Why the queue must not be used at all.

    A second partition would have a loop of its own, so that order and pace were lost; compaction deletes events.
    """
    if found.partitions != 1:
        return f"has {found.partitions} partitions, a queue has one"
    if "compact" in found.configs.get(_CLEANUP, ""):
        return f"{_CLEANUP} is {found.configs[_CLEANUP]}, which deletes events; a queue has delete"
    return None


def faults(found: TopicFound, wanted: TopicWanted) -> list[str]:
    """What makes the topic less than what is wanted. What the cluster does not tell is no fault; more is none."""
    said = []
    if found.partitions != wanted.partitions:
        said.append(f"has {found.partitions} partitions instead of {wanted.partitions}")
    policy = found.configs.get(_CLEANUP)
    if policy is not None and policy != wanted.configs[_CLEANUP]:
        said.append(f"{_CLEANUP} is {policy} instead of {wanted.configs[_CLEANUP]}")
    if found.replication_factor < wanted.replication_factor:
        said.append(f"replication factor is {found.replication_factor}, less than {wanted.replication_factor}")
    for name in (name for name in (_RETENTION, _LARGEST, _MIN_ISR) if name in wanted.configs):
        is_now, at_least = _number(found, name), int(wanted.configs[name])
        if is_now is not None and is_now < at_least and not (name == _RETENTION and is_now == _FOR_EVER):
            said.append(f"{name} is {is_now}, less than {at_least}")
    min_isr = _number(found, _MIN_ISR)
    if min_isr is not None and min_isr > found.replication_factor:
        said.append(
            f"{_MIN_ISR} is {min_isr}, more than the {found.replication_factor} replicas: nothing can be written"
        )
    return said


def creation_fault(error: str, wanted: TopicWanted) -> str:
    """What Kafka's refusal to create the topic means for whoever wrote the settings."""
    if error.startswith(_REFUSED_REPLICATION):
        return (
            f"cannot be created with {wanted.replication_factor} replicas: "
            f"add brokers, or set {_REPLICATION_SETTING} lower ({error})"
        )
    return f"cannot be created: {error}"


def retention_s(found: TopicFound) -> float | None:
    """How long the topic keeps records; infinity for ever, None when the cluster does not tell."""
    number = _number(found, _RETENTION)
    if number is None:
        return None
    return float("inf") if number == _FOR_EVER else number / 1000


def largest_bytes(found: TopicFound) -> int | None:
    """The largest record batch that the topic takes; None when the cluster does not tell."""
    return _number(found, _LARGEST)


def _number(found: TopicFound, name: str) -> int | None:
    try:
        return int(found.configs[name])
    except (KeyError, ValueError):
        return None
