"""The names that this system gives to its own topics, groups and transactional ids."""

from __future__ import annotations


def queue_topic(prefix: str, tenant: str, endpoint: str) -> str:
    """The one-partition topic that is the endpoint's backlog."""
    return f"{prefix}.{tenant}.{endpoint}.queue"


def dead_letter_topic(prefix: str, tenant: str) -> str:
    """The tenant's dead letters and replay receipts."""
    return f"{prefix}.{tenant}.dead-letters"


def control_topic(prefix: str) -> str:
    """The operators' orders and what is noted about topics, compacted."""
    return f"{prefix}.control"


def delivery_group(prefix: str) -> str:
    """The consumer group that shares the queues among workers."""
    return f"{prefix}.delivery"


def fanout_group(prefix: str) -> str:
    """The consumer group that shares the source partitions among workers."""
    return f"{prefix}.fanout"


def fanout_transactional_id(prefix: str, topic: str, partition: int) -> str:
    """One id per source partition: whoever starts a producer with it fences the former owner."""
    return f"{prefix}.fanout.{topic}.{partition}"
