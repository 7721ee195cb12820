"""How a replay goes through its letters: batches, pace, and how it ends early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from delivery.model import OutgoingRecord
from delivery.policy.event import REPLAY_OF
from delivery.policy.letters import RECEIPT
from delivery.ports import Fenced
from delivery.replay import MOST_BYTES, MOST_EVENTS, Replay, Terms
from tests.unit.test_letters import Stored
from tests.virtual_time import VirtualClock, in_virtual_time

LETTERS = "webhooks.acme.dead-letters"
QUEUE = "webhooks.acme.billing.queue"


class FakeTransactions:
    """Keeps what was written, with the time; `fenced_after` transactions it belongs to somebody else."""

    def __init__(self, fenced_after: int | None = None) -> None:
        self.written: list[tuple[float, list[OutgoingRecord]]] = []
        self._fenced_after = fenced_after

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        if self._fenced_after is not None and len(self.written) >= self._fenced_after:
            raise Fenced
        self.written.append((asyncio.get_running_loop().time(), list(records)))

    @property
    def events(self) -> list[int]:
        """How many events each transaction had."""
        return [sum(REPLAY_OF in dict(r.headers) for r in records) for _, records in self.written]

    def ids(self, topic: str, header: str) -> list[str]:
        """A header of all that was written to a topic."""
        records = [record for _, some in self.written for record in some if record.topic == topic]
        return [(dict(record.headers)[header] or b"").decode() for record in records]


def letter(number: int, value: bytes = b"{}") -> Stored:
    said = {"id": f"dl_{number}", "endpoint": "billing", "source": f"orders/0/{number}", "event-time": "1700000000000"}
    headers = tuple((f"dead-letter-{name}", text.encode()) for name, text in said.items())
    return Stored(topic=LETTERS, offset=number, value=value, headers=headers)


async def batches(letters: Sequence[Stored], size: int = 70) -> AsyncIterator[Sequence[Stored]]:
    for start in range(0, len(letters), size):
        yield letters[start : start + size]


def replay_of(
    producer: FakeTransactions,
    *,
    rate: float | None = None,
    limit_bytes: int | None = None,
    stop: asyncio.Event | None = None,
    to: str | None = None,
) -> Replay:
    queues = {QUEUE: limit_bytes, "webhooks.acme.crm.queue": None}
    terms = Terms(prefix="webhooks", tenant="acme", run="r1", queues=queues, to=to, rate=rate)
    return Replay(terms, producer, VirtualClock(), stop or asyncio.Event(), lambda _count: None)


def all_of(letters: Sequence[Stored]) -> dict[int, str]:
    return {one.offset: f"dl_{one.offset}" for one in letters}


@in_virtual_time
async def test_events_and_receipts_share_transactions_in_the_order_of_the_letters() -> None:
    producer, letters = FakeTransactions(), [letter(n) for n in range(1_200)]
    replay = replay_of(producer)
    chosen = {offset: name for offset, name in all_of(letters).items() if offset % 2}
    await replay.send(batches(letters), chosen)
    assert producer.events == [MOST_EVENTS, 100]
    assert producer.ids(QUEUE, REPLAY_OF) == list(chosen.values())
    assert producer.ids(LETTERS, RECEIPT) == list(chosen.values())
    assert [len(records) for _, records in producer.written] == [2 * MOST_EVENTS, 200]
    assert (replay.tally.sent, replay.tally.stopped) == ({"billing": 600}, False)


@in_virtual_time
async def test_a_transaction_holds_four_mebibytes_or_a_little_more() -> None:
    producer = FakeTransactions()
    letters = [letter(n, b"x" * 1_048_576) for n in range(10)]
    await replay_of(producer).send(batches(letters), all_of(letters))
    assert producer.events == [MOST_BYTES // 1_048_576] * 2 + [2]


@pytest.mark.parametrize(("rate", "events"), [(20.0, 10), (2_000.0, MOST_EVENTS), (0.5, 1)])
def test_the_rate_is_kept_by_pauses_between_transactions(rate: float, events: int) -> None:
    @in_virtual_time
    async def run() -> None:
        producer, letters = FakeTransactions(), [letter(n) for n in range(3 * events)]
        await replay_of(producer, rate=rate).send(batches(letters), all_of(letters))
        times = [at for at, _ in producer.written]
        assert producer.events == [events] * 3
        assert [round(at - times[0], 6) for at in times] == [round(n * events / rate, 6) for n in range(3)]

    run()


@in_virtual_time
async def test_a_stop_ends_it_after_the_batch_and_cuts_a_pause_short() -> None:
    producer, letters, stop = FakeTransactions(), [letter(n) for n in range(50)], asyncio.Event()
    replay = replay_of(producer, rate=0.01, stop=stop)
    began = asyncio.get_running_loop().time()
    asyncio.get_running_loop().call_later(5.0, stop.set)
    await replay.send(batches(letters), all_of(letters))
    assert producer.events == [1]
    assert replay.tally.stopped
    assert asyncio.get_running_loop().time() - began == pytest.approx(5.0)


@in_virtual_time
async def test_stopped_before_its_first_batch_it_sends_nothing() -> None:
    producer, letters, stop = FakeTransactions(), [letter(n) for n in range(5)], asyncio.Event()
    stop.set()
    replay = replay_of(producer, stop=stop)
    await replay.send(batches(letters), all_of(letters))
    assert (producer.written, replay.tally.stopped) == ([], True)


@in_virtual_time
async def test_taken_over_it_knows_what_it_had_sent() -> None:
    letters = [letter(n) for n in range(3 * MOST_EVENTS)]
    replay = replay_of(FakeTransactions(fenced_after=2))
    with pytest.raises(Fenced):
        await replay.send(batches(letters), all_of(letters))
    assert replay.tally.sent == {"billing": 2 * MOST_EVENTS}, "not the batch that was refused"


@in_virtual_time
async def test_what_the_queue_does_not_take_is_left_and_counted() -> None:
    producer = FakeTransactions()
    letters = [letter(0), letter(1, b"x" * 2_000), letter(2)]
    replay = replay_of(producer, limit_bytes=1_000)
    await replay.send(batches(letters), all_of(letters))
    assert producer.ids(QUEUE, REPLAY_OF) == producer.ids(LETTERS, RECEIPT) == ["dl_0", "dl_2"]
    assert replay.tally.too_large == 1


@in_virtual_time
async def test_sent_elsewhere_the_receipts_say_where() -> None:
    producer, letters = FakeTransactions(), [letter(0)]
    await replay_of(producer, to="crm").send(batches(letters), all_of(letters))
    assert producer.ids("webhooks.acme.crm.queue", REPLAY_OF) == ["dl_0"]
    assert b'"to": "crm"' in (producer.written[0][1][1].value or b"")
