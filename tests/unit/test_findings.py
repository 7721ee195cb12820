"""What `delivery check` concludes from what it saw."""

from __future__ import annotations

import dataclasses

from delivery.model import Endpoint
from delivery.topics import TopicFound
from supervisor.commands.findings import Finding, RedisSeen, Result, Seen, findings
from supervisor.commands.queues import Waiting
from supervisor.commands.requirements import acls, partitions_text
from supervisor.configuration import Configuration, KafkaConnection, OwnTopics
from supervisor.lag import Lag
from supervisor.own_topics import wanted

CONFIGURATION = Configuration(
    kafka=KafkaConnection(bootstrap_servers="k:9092"),
    endpoints=(
        Endpoint(tenant="acme", name="billing", url="https://example.com/s3cret", topics=frozenset({"orders"})),
    ),
    tenants=("acme",),
)
QUEUE = "webhooks.acme.billing.queue"
FOUND = {
    topic.name: TopicFound(name=topic.name, partitions=1, replication_factor=3, configs=topic.configs)
    for topic in wanted(CONFIGURATION)
}
FINE = Seen(
    names=frozenset({"orders", *FOUND}),
    found=FOUND,
    created=(),
    refused={},
    offsets_retention_min={1: 10_080},
    brokers=3,
    redis=RedisSeen(version="Redis 8.0.1", eviction="noeviction"),
)


def found(seen: Seen, configuration: Configuration = CONFIGURATION) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings(configuration, wanted(configuration), seen)}


def test_a_cluster_as_wanted_has_only_fine_lines() -> None:
    report = found(FINE)
    assert {finding.result for finding in report.values()} == {Result.FINE}
    own = {f"topic {QUEUE}", "topic webhooks.acme.dead-letters", "topic webhooks.control"}
    assert {"Kafka", "Redis", "source orders"} | own == report.keys()


def test_a_redis_that_does_not_answer_is_wrong_and_one_that_evicts_is_warned_of() -> None:
    away = found(dataclasses.replace(FINE, redis=RedisSeen(fault="does not answer")))["Redis"]
    assert away == Finding(what="Redis", result=Result.WRONG, detail="DELIVERY_REDIS__URL: does not answer")
    for policy in ("noeviction", "volatile-lru", "volatile-ttl", ""):
        seen = RedisSeen(version="Valkey 9.1", eviction=policy)
        assert found(dataclasses.replace(FINE, redis=seen))["Redis"].result is Result.FINE
    for policy in ("allkeys-lru", "allkeys-random"):
        seen = RedisSeen(version="Redis 7.0", eviction=policy)
        warned = found(dataclasses.replace(FINE, redis=seen))["Redis"]
        assert warned.result is Result.WARNING
        assert policy in warned.detail


def test_a_missing_source_topic_and_a_missing_queue_are_wrong() -> None:
    seen = dataclasses.replace(FINE, names=frozenset(), found={})
    report = found(seen)
    assert report["source orders"].result is Result.WRONG
    assert report[f"topic {QUEUE}"].result is Result.WRONG
    assert "--create-topics" in report[f"topic {QUEUE}"].detail


def test_a_topic_that_was_just_made_is_told_so_and_one_that_could_not_be_made_is_wrong() -> None:
    seen = dataclasses.replace(FINE, created=[QUEUE], refused={"webhooks.acme.dead-letters": "cannot be created: x"})
    report = found(seen)
    assert report[f"topic {QUEUE}"].result is Result.CREATED
    assert report["topic webhooks.acme.dead-letters"] == Finding(
        what="topic webhooks.acme.dead-letters", result=Result.WRONG, detail="cannot be created: x"
    )


def test_a_queue_with_four_partitions_is_wrong() -> None:
    queue = dataclasses.replace(FOUND[QUEUE], partitions=4)
    report = found(dataclasses.replace(FINE, found={**FOUND, QUEUE: queue}))
    assert report[f"topic {QUEUE}"].result is Result.WRONG


def test_queues_that_keep_events_longer_than_the_broker_keeps_offsets_are_warned_of() -> None:
    report = found(dataclasses.replace(FINE, offsets_retention_min={1: 10_080, 2: 1_440}))
    assert report["offsets.retention.minutes"].result is Result.WARNING
    assert "1440 (1 d)" in report["offsets.retention.minutes"].detail


def test_a_queue_that_keeps_events_for_ever_is_warned_of() -> None:
    for_ever = dataclasses.replace(FOUND[QUEUE], configs={**FOUND[QUEUE].configs, "retention.ms": "-1"})
    report = found(dataclasses.replace(FINE, found={**FOUND, QUEUE: for_ever}))
    assert "for ever" in report["offsets.retention.minutes"].detail


def test_brokers_that_do_not_tell_are_taken_to_have_kafkas_default() -> None:
    silent = dataclasses.replace(FINE, offsets_retention_min={1: None})
    assert "offsets.retention.minutes" not in found(silent)
    longer = dataclasses.replace(CONFIGURATION, own_topics=OwnTopics(queue_retention_s=8 * 86_400.0))
    assert "Kafka's default" in found(silent, longer)["offsets.retention.minutes"].detail


def test_more_replicas_in_sync_than_replicas_are_wrong_settings() -> None:
    wrong = dataclasses.replace(CONFIGURATION, own_topics=OwnTopics(replication_factor=1, min_isr=2))
    assert "DELIVERY_OWN_TOPICS__MIN_ISR" in found(FINE, wrong)["settings"].detail


def test_an_endpoint_that_takes_larger_events_than_its_queue_is_warned_of() -> None:
    small = dataclasses.replace(FOUND[QUEUE], configs={**FOUND[QUEUE].configs, "max.message.bytes": "1048576"})
    report = found(dataclasses.replace(FINE, found={**FOUND, QUEUE: small}))
    assert report["endpoint acme/billing"].result is Result.WARNING


def test_no_line_shows_a_url() -> None:
    assert "s3cret" not in str(found(FINE))


def test_needed_partitions_and_acls_are_listed() -> None:
    assert partitions_text(wanted(CONFIGURATION)) == "3 topics of our own, 3 partitions, 9 replicas"
    named = {(acl.resource, acl.name, acl.prefixed) for acl in acls(CONFIGURATION)}
    assert {
        ("topic", "orders", False),
        ("topic", "webhooks.", True),
        ("group", "webhooks.delivery", False),
        ("group", "webhooks.fanout", False),
        ("transactional-id", "webhooks.fanout", True),
        ("transactional-id", "webhooks.replay", True),
    } <= named


def test_the_queue_of_a_removed_endpoint_is_a_warning_with_its_lag() -> None:
    old = "webhooks.acme.old.queue"
    for exact, number in ((True, "3"), (False, "up to 3")):
        waiting = Waiting(lag=Lag(first=0, waiting=3, lost=0), exact=exact)
        report = found(dataclasses.replace(FINE, removed={old: waiting}))
        assert report[f"topic {old}"].result is Result.WARNING
        assert (
            report[f"topic {old}"].detail == f"removed endpoint: neither filled nor read, {number} event(s) wait in it"
        )


def test_a_dead_letter_topic_that_keeps_letters_too_briefly_or_takes_too_small_ones_is_wrong() -> None:
    name = "webhooks.acme.dead-letters"
    for setting, value in (("retention.ms", "604800000"), ("max.message.bytes", "1048588")):
        topic = FOUND[name]
        less = dataclasses.replace(topic, configs={**topic.configs, setting: value})
        finding = found(dataclasses.replace(FINE, found=FOUND | {name: less}))[f"topic {name}"]
        assert finding.result is Result.WRONG
        assert finding.detail == f"{setting} is {value}, less than {topic.configs[setting]}"
