"""Which topics there have to be, and what is wrong with one that is there."""

from __future__ import annotations

import dataclasses

import pytest

from delivery.model import Endpoint
from supervisor.configuration import Configuration, KafkaConnection, OwnTopics
from supervisor.own_topics import (
    TopicFound,
    TopicWanted,
    creation_fault,
    faults,
    largest_bytes,
    misconfigured,
    retention_s,
    wanted,
)

QUEUE = TopicWanted(
    name="webhooks.acme.billing.queue",
    replication_factor=3,
    configs={
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "max.message.bytes": "2097152",
        "min.insync.replicas": "2",
    },
)
FOUND = TopicFound(name=QUEUE.name, partitions=1, replication_factor=3, configs=QUEUE.configs)


def endpoint(tenant: str, name: str, *, enabled: bool = True) -> Endpoint:
    return Endpoint(tenant=tenant, name=name, url="https://example.com/", topics=frozenset({"orders"}), enabled=enabled)


def found(*, partitions: int = 1, replication_factor: int = 3, **configs: str) -> TopicFound:
    changed = {name.replace("_", "."): text for name, text in configs.items()}
    return dataclasses.replace(
        FOUND,
        partitions=partitions,
        replication_factor=replication_factor,
        configs={**QUEUE.configs, **changed},
    )


def test_each_endpoint_has_a_queue_and_each_tenant_its_dead_letters_and_orders_have_one_topic() -> None:
    configuration = Configuration(
        kafka=KafkaConnection(bootstrap_servers="k:9092"),
        prefix="p.q",
        endpoints=(endpoint("acme", "a"), endpoint("acme", "b", enabled=False), endpoint("zoo", "a")),
        tenants=("acme", "empty", "zoo"),
    )
    assert [topic.name for topic in wanted(configuration)] == [
        "p.q.acme.a.queue",
        "p.q.acme.b.queue",
        "p.q.zoo.a.queue",
        "p.q.acme.dead-letters",
        "p.q.zoo.dead-letters",
        "p.q.control",
    ]


def test_the_settings_decide_how_topics_are_made() -> None:
    own = OwnTopics(
        replication_factor=5, min_isr=3, queue_retention_s=60, dead_letter_retention_s=120, max_message_bytes=70_000
    )
    configuration = Configuration(
        kafka=KafkaConnection(bootstrap_servers="k:9092"), endpoints=(endpoint("acme", "a"),), own_topics=own
    )
    queue, dead_letters, control = wanted(configuration)
    assert queue.partitions == dead_letters.partitions == control.partitions == 1
    assert queue.replication_factor == dead_letters.replication_factor == control.replication_factor == 5
    assert queue.configs == {
        "cleanup.policy": "delete",
        "retention.ms": "60000",
        "max.message.bytes": "70000",
        "min.insync.replicas": "3",
    }
    assert dead_letters.configs == {**queue.configs, "retention.ms": "120000"}
    assert control.configs == {"cleanup.policy": "compact", "min.insync.replicas": "3"}


def test_a_topic_as_wanted_has_no_fault() -> None:
    assert faults(FOUND, QUEUE) == []
    assert misconfigured(FOUND) is None


def test_a_control_topic_that_forgets_orders_is_a_fault() -> None:
    control = TopicWanted(name="webhooks.control", replication_factor=3, configs={"cleanup.policy": "compact"})
    made = TopicFound(
        name=control.name,
        partitions=1,
        replication_factor=3,
        configs={"cleanup.policy": "delete", "retention.ms": "1", "max.message.bytes": "1"},
    )
    assert faults(made, control) == ["cleanup.policy is delete instead of compact"]


def test_a_topic_that_is_more_than_wanted_has_no_fault() -> None:
    more = found(
        replication_factor=5,
        retention_ms="-1",
        max_message_bytes="99999999",
        min_insync_replicas="3",
    )
    assert faults(more, QUEUE) == []


def test_what_the_cluster_does_not_tell_is_no_fault() -> None:
    assert faults(dataclasses.replace(FOUND, configs={}), QUEUE) == []
    assert misconfigured(dataclasses.replace(FOUND, configs={})) is None


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        (found(partitions=4), "has 4 partitions instead of 1"),
        (found(replication_factor=2), "replication factor is 2, less than 3"),
        (found(cleanup_policy="compact"), "cleanup.policy is compact instead of delete"),
        (found(retention_ms="1000"), "retention.ms is 1000, less than 604800000"),
        (found(max_message_bytes="1048588"), "max.message.bytes is 1048588, less than 2097152"),
        (found(min_insync_replicas="1"), "min.insync.replicas is 1, less than 2"),
    ],
)
def test_each_thing_that_is_less_than_wanted_is_one_fault(topic: TopicFound, words: str) -> None:
    assert faults(topic, QUEUE) == [words]


def test_more_replicas_in_sync_than_there_are_replicas_is_a_fault() -> None:
    assert "nothing can be written" in " ".join(faults(found(min_insync_replicas="4"), QUEUE))


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_topic_cannot_be_a_queue(policy: str) -> None:
    assert policy in (misconfigured(found(cleanup_policy=policy)) or "")


def test_a_topic_with_more_than_one_partition_cannot_be_a_queue() -> None:
    assert misconfigured(found(partitions=4)) == "has 4 partitions, a queue has one"


def test_a_queue_that_is_only_smaller_than_wanted_can_be_used() -> None:
    assert misconfigured(found(retention_ms="1", replication_factor=1)) is None


def test_a_refused_replication_factor_names_the_setting_and_is_not_lowered() -> None:
    text = creation_fault("InvalidReplicationFactorError: only 1 broker", QUEUE)
    assert "DELIVERY_OWN_TOPICS__REPLICATION_FACTOR" in text
    assert "3 replicas" in text


def test_another_refusal_is_passed_on() -> None:
    assert creation_fault("TopicAuthorizationFailedError", QUEUE) == "cannot be created: TopicAuthorizationFailedError"


def test_retention_and_largest_record_are_read_from_what_was_found() -> None:
    assert retention_s(FOUND) == 604_800.0
    assert retention_s(found(retention_ms="-1")) == float("inf")
    assert largest_bytes(FOUND) == 2_097_152
    nothing = dataclasses.replace(FOUND, configs={})
    assert retention_s(nothing) is largest_bytes(nothing) is None
