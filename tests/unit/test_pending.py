"""How many dead letters wait and since when: the same that the list of pending ones says, as long as it is followed."""

from __future__ import annotations

import random

from delivery.policy.letter_book import LetterBook, LetterFilter, Which
from delivery.policy.pending import PendingCount
from tests.unit.test_letter_book import NOW
from tests.unit.test_letters import Stored


def letter(number: int, offset: int) -> Stored:
    return Stored(offset=offset, timestamp=NOW + offset, headers=(("dead-letter-id", b"dl_%d" % number),))


def receipt(number: int, offset: int) -> Stored:
    return Stored(offset=offset, timestamp=NOW + offset, headers=(("dead-letter-replayed", b"dl_%d" % number),))


def counted(*records: Stored) -> PendingCount:
    count = PendingCount()
    for record in records:
        count.add(record)
    return count


def test_an_empty_topic_has_none_and_no_oldest() -> None:
    assert (counted().number, counted().oldest_ms()) == (0, None)


def test_a_receipt_ends_the_wait_and_the_next_letter_is_the_oldest() -> None:
    count = counted(letter(1, 0), letter(2, 1), letter(3, 2), receipt(1, 3), receipt(2, 4))
    assert (count.number, count.oldest_ms()) == (1, NOW + 2)
    count.add(receipt(3, 5))
    assert (count.number, count.oldest_ms()) == (0, None)


def test_a_letter_that_was_written_twice_is_one_and_as_old_as_its_first_copy() -> None:
    count = counted(letter(1, 0), letter(1, 1))
    assert (count.number, count.oldest_ms()) == (1, NOW)


def test_a_copy_behind_the_receipt_does_not_wait() -> None:
    assert counted(letter(1, 0), receipt(1, 1), letter(1, 2)).number == 0


def test_what_retention_deleted_waits_no_more() -> None:
    count = counted(letter(1, 0), letter(2, 1), letter(1, 2), letter(3, 3))
    count.deleted_before(2)
    assert (count.number, count.oldest_ms()) == (2, NOW + 2)
    count.deleted_before(4)
    assert (count.number, count.oldest_ms()) == (0, None)


def test_a_record_that_names_nothing_does_not_count() -> None:
    assert counted(Stored(headers=()), Stored(headers=(("dead-letter-id", b"\xff"),))).number == 0


def test_at_every_moment_it_says_what_a_list_of_the_topic_would_say() -> None:
    """Random letters, copies, receipts and deletions; the list reads the topic anew each time."""
    dice = random.Random(20_240_501)
    for _ in range(200):
        topic: list[Stored] = []
        start, count = 0, PendingCount()
        for offset in range(40):
            number = dice.randrange(8)
            topic.append(receipt(number, offset) if dice.random() < 0.3 else letter(number, offset))
            count.add(topic[-1])
            if dice.random() < 0.1:
                start = dice.randrange(start, offset + 1)
                count.deleted_before(start)
                if any(r.headers[0][0] == "dead-letter-replayed" for r in topic[:start]):
                    # A receipt that is gone said something of copies that stand before and behind it.
                    break
            book = LetterBook(LetterFilter(), "acme")
            for record in topic[start:]:
                book.add(record)
            listed = list(book.entries(Which.PENDING))
            assert count.number == len(listed)
            assert count.oldest_ms() == (listed[0].at_ms if listed else None)
