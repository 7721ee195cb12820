"""The names that this system gives to its own topics, groups and transactional ids."""

from __future__ import annotations


def queue_topic(prefix: str, tenant: str, endpoint: str) -> str:
    """The one-partition topic that is the endpoint's backlog."""
    return f"{prefix}.{tenant}.{endpoint}.queue"


def queue_owner(prefix: str, topic: str) -> tuple[str, str] | None:
    """Tenant and endpoint whose queue a topic of this name is, configured or not; None when it is no queue of ours."""
    before, dot, rest = topic.partition(f"{prefix}.")
    parts = rest.split(".")
    # Names of tenants and endpoints have no dot: with one more part it is somebody else's, under a longer prefix.
    if before or not dot or len(parts) != 3 or parts[2] != "queue" or not all(parts):
        return None
    return parts[0], parts[1]


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
    return f"{fanout_transactional_prefix(prefix)}{topic}.{partition}"


def fanout_transactional_prefix(prefix: str) -> str:
    """How the transactional ids of all lanes begin."""
    return f"{prefix}.fanout."


def replay_transactional_id(prefix: str, tenant: str) -> str:
    """One id per tenant: a replay that starts later fences the earlier."""
    return f"{prefix}.replay.{tenant}"
