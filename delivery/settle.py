"""The only code that completes an offset."""

from __future__ import annotations

from delivery.commit_pump import CommitPump
from delivery.model import DeadLetterReason, Delivery, OutgoingRecord
from delivery.naming import dead_letter_topic
from delivery.policy.attempt_facts import AttemptFacts
from delivery.policy.dead_letter import LetterHead, dead_letter, shrink
from delivery.ports import DeadLetters, DeadLetterTooLarge, Meter
from delivery.tenure import Tenure

# A commit that is acknowledged wakes; what was refused, or could not be tried, is asked for again so often.
LOOK_S = 0.1


class Settle:
    """Completes deliveries. What a former owner reports is dropped: the queue goes on where its owner stands."""

    def __init__(self, pump: CommitPump, dead_letters: DeadLetters, prefix: str, meter: Meter) -> None:
        self._pump = pump
        self._dead_letters = dead_letters
        self._prefix = prefix
        self._meter = meter

    def complete(self, tenure: Tenure, delivery: Delivery) -> None:
        """Mark the record done and drop it from the mailbox."""
        mailbox = tenure.mailbox
        if tenure.lost or mailbox is None:
            return
        mailbox.pop()
        tenure.settled_to = delivery.queue.offset + 1 if len(mailbox) else mailbox.next_offset
        self._pump.mark(tenure.partition, tenure.settled_to)

    def hurry(self) -> None:
        """Commit what is settled at once."""
        self._pump.hurry()

    @property
    def open(self) -> bool:
        """False while the group rebalances, when nothing can be committed."""
        return self._pump.open

    async def put_beside(self, tenure: Tenure, text: str) -> None:
        """Have Kafka acknowledge this text beside the offset where the queue stands. Raises CommitRefused."""
        await self._pump.put_beside(tenure.partition, tenure.settled_to, text)

    async def keep_up(self, tenure: Tenure, most: int) -> None:
        """Wait until at most `most` offsets are settled and not known to be committed: so many are sent twice at most.

        Ends with the tenure, and when there is nothing to wait for: what was settled before a queue was another's for a
        moment is not committed any more.
        """
        partition = tenure.partition
        if self._ahead(tenure) <= most:
            return
        self._pump.watched[partition] = tenure.wake
        try:
            while tenure.exit() is None and self._ahead(tenure) > most and self._pump.marked(partition):
                self._pump.hurry()
                await tenure.wait(LOOK_S)
        finally:
            self._pump.watched.pop(partition, None)

    def _ahead(self, tenure: Tenure) -> int:
        return tenure.settled_to - self._pump.acknowledged(tenure.partition)

    async def dead_letter(
        self, tenure: Tenure, delivery: Delivery, reason: DeadLetterReason, facts: AttemptFacts
    ) -> None:
        """Have Kafka acknowledge the dead letter, then complete. Raises DeadLetterUnwritable, DeadLetterTooLarge."""
        endpoint = tenure.endpoint
        head = LetterHead(
            topic=dead_letter_topic(self._prefix, endpoint.tenant),
            tenant=endpoint.tenant,
            endpoint=endpoint.name,
            reason=reason,
            excerpt_bytes=endpoint.excerpt_bytes,
        )
        await write_dead_letter(self._dead_letters, dead_letter(delivery, head, facts))
        self._meter.dead_letter(endpoint, reason)
        self.complete(tenure, delivery)


async def write_dead_letter(dead_letters: DeadLetters, record: OutgoingRecord) -> None:
    """Have Kafka acknowledge it, smaller if it must be. Raises DeadLetterUnwritable, DeadLetterTooLarge."""
    try:
        await dead_letters.write(record)
    except DeadLetterTooLarge:
        limit = await dead_letters.limit_bytes(record.topic)
        smaller = None if limit is None else shrink(record, limit)
        if smaller is None:
            raise
        await dead_letters.write(smaller)
