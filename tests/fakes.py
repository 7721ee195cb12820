"""Small stand-ins for what the shells need from the world: they keep books, and do what they are told."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from delivery.adapters.memory_ledger import Entry, MemoryLedger
from delivery.mailbox import Mailbox
from delivery.model import (
    Answer,
    AttemptRecord,
    DeadLetterReason,
    Decided,
    Ended,
    Endpoint,
    FanoutResult,
    HaltReason,
    Headers,
    Network,
    NextStep,
    Outgoing,
    OutgoingRecord,
    Partition,
    Reply,
    Sending,
    SigningKey,
    VerdictName,
)
from delivery.policy.notes import Note
from delivery.policy.orders import NO_ORDERS, Order, Orders
from delivery.policy.standing import Standing
from delivery.ports import NOTHING, CommitRefused, TokenRefused


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FakeRecord:
    """A record as a consumer hands it out."""

    topic: str = "orders"
    partition: int = 0
    offset: int = 0
    timestamp: int = 1_800_000_000_000
    key: bytes | None = b"key"
    value: bytes | None = b"{}"
    headers: Headers = ()


def queued(offset: int, *, queue: str = "p.acme.billing.queue", **changes: Any) -> FakeRecord:
    """A record of an endpoint's queue, as fan-out writes it."""
    headers = (
        ("webhook-id", f"msg_{offset}".encode()),
        ("delivery-source", f"orders/0/{offset}".encode()),
        ("delivery-event-time", b"1800000000000"),
    )
    return dataclasses.replace(FakeRecord(topic=queue, offset=offset, headers=headers), **changes)


def endpoint(name: str = "billing", **changes: Any) -> Endpoint:
    """An endpoint with every default."""
    plain = Endpoint(
        tenant="acme",
        name=name,
        url=f"https://example.com/{name}",
        topics=frozenset({"orders"}),
        secrets=(SigningKey(key=b"k" * 32),),
        network=Network(),
    )
    return dataclasses.replace(plain, **changes)


class FakeMember:
    """`delivery.ports.Member`: assignments are given by the test, commits are kept.

    `gate`, when set, holds every commit until it is opened; otherwise one takes `takes_s`. `refusals` are raised
    first, one for each commit.
    """

    def __init__(self, *partitions: Partition) -> None:
        self.assigned = frozenset(partitions)
        self.epoch = 1 if partitions else 0
        self.settled_in = bool(partitions)
        self.is_proven = True
        self._lapsed_in = 0
        self.offsets: dict[Partition, int] = {}
        self.texts: dict[Partition, str] = {}
        self.commits: list[dict[Partition, int]] = []
        self.refusals: deque[Exception] = deque()
        self.gate: asyncio.Event | None = None
        self.takes_s = 0.0
        self.in_flight = 0
        self.most_in_flight = 0
        self.started_unsettled = 0
        self.topics: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def proven(self) -> bool:
        """As set."""
        return self.is_proven

    def lapsed(self, seen_epoch: int) -> bool:
        """As `assign` was told."""
        return self._lapsed_in > seen_epoch

    def revoke(self) -> None:
        """A rebalance has begun."""
        self.settled_in = False

    def assign(self, *partitions: Partition, lapsed: bool = False) -> None:
        """A rebalance has ended; `lapsed`, and others may have had everything meanwhile."""
        self.assigned = frozenset(partitions)
        self.epoch += 1
        if lapsed:
            self._lapsed_in = self.epoch
        self.settled_in = True
        self._changed.set()

    async def next_assignment(self, seen_epoch: int) -> None:
        """Wait for `assign`."""
        while self.epoch <= seen_epoch:
            self._changed.clear()
            await self._changed.wait()

    async def commit(
        self, offsets: Mapping[Partition, int], timeout_s: float, metadata: Mapping[Partition, str] = NOTHING
    ) -> None:
        """Keep it, unless it is to be refused or takes too long."""
        if not self.settled_in:
            self.started_unsettled += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.gate is not None:
                async with asyncio.timeout(timeout_s):
                    await self.gate.wait()
            elif self.takes_s:
                await asyncio.sleep(self.takes_s)
            if self.refusals:
                raise self.refusals.popleft()
        except TimeoutError as error:
            raise CommitRefused("TimeoutError") from error
        finally:
            self.in_flight -= 1
        self.commits.append(dict(offsets))
        self.offsets |= offsets
        for partition in offsets:
            self.texts[partition] = metadata.get(partition, "")

    async def metadata(self, partitions: Collection[Partition]) -> dict[Partition, str]:
        """What was committed beside the offsets."""
        return {partition: text for partition in partitions if (text := self.texts.get(partition, ""))}

    async def committed(self, partitions: Collection[Partition]) -> dict[Partition, int | None]:
        """What was committed."""
        return {partition: self.offsets.get(partition) for partition in partitions}

    def retire(self) -> None:
        """The others get everything, at once."""
        self.assign()

    def subscribe(self, topics: Collection[str]) -> None:
        """Remember."""
        self.topics = frozenset(topics)


class FakeReader:
    """`delivery.ports.Reader` over lists of records; `add` reaches the mailboxes that are open."""

    def __init__(self) -> None:
        self.logs: dict[Partition, list[FakeRecord]] = {}
        self.open_boxes: dict[Partition, Mailbox] = {}
        self.freed = 0

    def add(self, *records: FakeRecord) -> None:
        """Append to the logs."""
        for record in records:
            partition = Partition(record.topic, record.partition)
            self.logs.setdefault(partition, []).append(record)
            mailbox = self.open_boxes.get(partition)
            if mailbox is not None:
                mailbox.put([record])

    async def oldest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The first record's offset."""
        return {p: self.logs[p][0].offset if self.logs.get(p) else 0 for p in partitions}

    async def newest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """What follows the last record."""
        return {p: self.logs[p][-1].offset + 1 if self.logs.get(p) else 0 for p in partitions}

    def open(self, partition: Partition, offset: int) -> Mailbox:
        """With everything from `offset` on in it."""
        mailbox = Mailbox(partition, offset, self._drained)
        self.open_boxes[partition] = mailbox
        mailbox.put(self.logs.get(partition, []))
        return mailbox

    def close(self, mailbox: Mailbox) -> None:
        """Forget it."""
        mailbox.close()
        if self.open_boxes.get(mailbox.partition) is mailbox:
            del self.open_boxes[mailbox.partition]

    def _drained(self, _mailbox: Mailbox, freed: int) -> None:
        self.freed += freed


@dataclasses.dataclass(slots=True)
class SentRequest:
    """One request that the sender was asked for."""

    endpoint: Endpoint
    outgoing: Outgoing
    timeout_s: float
    at: float

    @property
    def id(self) -> str:
        """Its webhook-id."""
        return dict(self.outgoing.headers)[b"webhook-id"].decode()


Script = Reply | BaseException | Callable[[], Awaitable[Reply]]


class FakeSender:
    """`delivery.ports.Sender`: each request gets the next of `replies`, and the last one again and again."""

    def __init__(self, *replies: Script) -> None:
        self.replies: deque[Script] = deque(replies or (Answer(status=204),))
        self.sent: list[SentRequest] = []

    @property
    def ids(self) -> list[str]:
        """The webhook-ids in the order of the requests."""
        return [request.id for request in self.sent]

    async def send(self, endpoint: Endpoint, outgoing: Outgoing, timeout_s: float) -> Reply:
        """Answer, raise, or wait, as told."""
        self.sent.append(SentRequest(endpoint, outgoing, timeout_s, asyncio.get_running_loop().time()))
        reply = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, BaseException):
            raise reply
        if callable(reply):
            return await reply()
        return reply


class FakeKeys:
    """`delivery.ports.Keys`: the endpoint's own, or an error while `error` is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def of(self, endpoint: Endpoint) -> tuple[SigningKey, ...]:
        """As configured."""
        if self.error is not None:
            raise self.error
        return endpoint.secrets


class FakeDeadLetters:
    """`delivery.ports.DeadLetters`: keeps records; `errors` are raised first, one for each write.

    `gate`, when set, holds every write until it is opened.
    """

    def __init__(self) -> None:
        self.written: list[OutgoingRecord] = []
        self.errors: deque[Exception] = deque()
        self.limit: int | None = None
        self.gate: asyncio.Event | None = None

    async def write(self, record: OutgoingRecord) -> None:
        """Keep it, unless it is to be refused."""
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.popleft()
        self.written.append(record)

    async def limit_bytes(self, topic: str) -> int | None:
        """As set."""
        return self.limit

    def headers(self, index: int = -1) -> dict[str, str]:
        """One dead letter's headers."""
        return {name: (value or b"").decode() for name, value in self.written[index].headers}


class FakeOrders:
    """The orders and notes of a worker: given by the test; `disabled` are the worker's own, `error` refuses them."""

    def __init__(self) -> None:
        self.known = True
        self.orders: dict[str, Orders] = {}
        self.disabled: list[str] = []
        self.error: Exception | None = None
        self.notes: dict[str, Note] = {}
        self.position = 0
        self.on_orders: Callable[[str], None] = lambda _label: None

    def of(self, endpoint: Endpoint) -> Orders:
        """As given."""
        return self.orders.get(endpoint.label, NO_ORDERS)

    def give(self, label: str, **orders: Order) -> None:
        """Replace these orders, each later than all before, and tell who listens."""
        placed = {}
        for name, order in orders.items():
            self.position += 1
            placed[name] = dataclasses.replace(order, position=self.position)
        self.orders[label] = dataclasses.replace(self.orders.get(label, NO_ORDERS), **placed)
        self.on_orders(label)

    async def disable(self, endpoint: Endpoint, detail: str) -> None:
        """It holds at once, unless it is to be refused."""
        if self.error is not None:
            raise self.error
        self.disabled.append(endpoint.label)
        self.give(endpoint.label, disable=Order(position=0, at_ms=0, by="worker", detail=detail))

    async def ready(self) -> bool:
        """As set."""
        return self.known

    def queue(self, queue: str) -> Note | None:
        """What was noted."""
        return self.notes.get(queue)

    async def note_queues(self, first: Mapping[str, int]) -> None:
        """Later than all orders before."""
        self.position += 1
        self.notes |= {queue: Note(position=self.position, first=offset) for queue, offset in first.items()}


class RecordingLedger(MemoryLedger):
    """A ledger that counts what is recorded; `before_record` runs first and may take the queue away."""

    def __init__(self) -> None:
        super().__init__(lambda: asyncio.get_running_loop().time())
        self.records: list[tuple[str, Standing]] = []
        self.before_record: Callable[[str], None] | None = None
        self.refuse = False
        self.takes_s = 0.0

    def hand_out(self, queue: str, token: int) -> None:
        """Make this the queue's latest token."""
        self._entries.setdefault(queue, Entry()).token = token

    async def record(self, queue: str, token: int, standing: Standing) -> None:
        """As the real one."""
        if self.before_record is not None:
            self.before_record(queue)
        await asyncio.sleep(self.takes_s)
        if self.refuse:
            raise TokenRefused(queue)
        self.records.append((queue, standing))
        await super().record(queue, token, standing)


class RecordingMeter:
    """`delivery.ports.Meter` and `delivery.attempts.Attempts`: keeps every call, by name, and every record.

    The errors, when set, are raised by `ended` at a delivery and by `halt`.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.records: list[AttemptRecord] = []
        self.error: Exception | None = None
        self.halt_error: Exception | None = None

    def counted(self, name: str) -> list[Any]:
        """What was told under this name."""
        return [what for called, what in self.calls if called == name]

    def sending(self, record: Sending) -> None:
        """Keep it."""
        self.records.append(record)

    def ended(self, record: Ended) -> None:
        """Keep it, and raise when it is a delivery."""
        if self.error is not None and record.verdict is VerdictName.DELIVERED:
            raise self.error
        self.records.append(record)

    def decided(self, record: Decided) -> None:
        """Keep it."""
        self.records.append(record)

    def ends(self, step: NextStep) -> list[Ended]:
        """The attempts after which this came."""
        return [record for record in self.records if isinstance(record, Ended) and record.decision.step is step]

    def dead_letter(self, endpoint: Endpoint, reason: DeadLetterReason) -> None:
        """Keep the reason."""
        self.calls.append(("dead_letter", reason))

    def halt(self, endpoint: Endpoint, reason: HaltReason) -> None:
        """Keep the reason, or raise."""
        if self.halt_error is not None:
            raise self.halt_error
        self.calls.append(("halt", reason))

    def left_out(self, endpoint: Endpoint, count: int) -> None:
        """Keep the number."""
        self.calls.append(("left_out", count))

    def fanned_out(self, result: FanoutResult, count: int) -> None:
        """Keep both."""
        self.calls.append(("fanned_out", (result, count)))

    def lost(self, topic: str, count: int) -> None:
        """Keep both."""
        self.calls.append(("lost", (topic, count)))


def values(records: Sequence[OutgoingRecord]) -> list[bytes | None]:
    """The records' values."""
    return [record.value for record in records]
