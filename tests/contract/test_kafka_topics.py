"""What the Kafka client's answers about offsets are taken for."""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import GroupCoordinatorNotAvailableError
from aiokafka.structs import OffsetAndMetadata

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.model import Partition
from tests.virtual_time import in_virtual_time

QUEUE = Partition("p.acme.billing.queue", 0)


class Admin:
    """Gives the answers in their order; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def list_consumer_group_offsets(self, _group: str, partitions: list[TopicPartition]) -> Any:
        """The next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Topics(KafkaTopics):
    """With an admin client that was made here."""

    def __init__(self, admin: Admin) -> None:
        super().__init__(KafkaConnection(options={}))
        self._client = admin


@in_virtual_time
async def test_a_coordinator_that_is_loading_is_not_taken_for_one_that_has_no_offset() -> None:
    """It answers for no partition at all; taken for "never committed", fan-out would skip to the newest record."""
    found = {TopicPartition(*QUEUE): OffsetAndMetadata(41, "")}
    topics = Topics(Admin({}, GroupCoordinatorNotAvailableError(), {}, found))
    assert await topics.committed("group", [QUEUE]) == {QUEUE: 41}


@in_virtual_time
async def test_a_group_that_never_committed_says_so() -> None:
    topics = Topics(Admin({TopicPartition(*QUEUE): OffsetAndMetadata(-1, "")}))
    assert await topics.committed("group", [QUEUE]) == {QUEUE: None}
