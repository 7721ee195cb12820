"""What the loops, the fan-out and the supervisor need from the world, as small protocols."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from delivery.mailbox import Mailbox
from delivery.model import (
    DeadLetterReason,
    Endpoint,
    FanoutResult,
    HaltReason,
    Outgoing,
    OutgoingRecord,
    Partition,
    Reply,
    SigningKey,
)
from delivery.policy.standing import Standing


class Clock(Protocol):
    """Time and nothing else. Waits and due times use `monotonic`, texts and signatures `wall`."""

    def monotonic(self) -> float:
        """Seconds that never step, from an arbitrary start."""
        ...

    def wall(self) -> float:
        """Unix time in seconds."""
        ...


class Sender(Protocol):
    """Sends one request once and reports what happened; never judges, never repeats."""

    async def send(self, endpoint: Endpoint, outgoing: Outgoing, timeout_s: float) -> Reply:
        """POST it. `timeout_s` bounds everything: name resolution, connect, headers, body."""
        ...


class KeyUnreadable(Exception):
    """An endpoint's signing keys cannot be had now; the text names the endpoint and the file, never a key."""


class Keys(Protocol):
    """The signing keys in force."""

    def of(self, endpoint: Endpoint) -> tuple[SigningKey, ...]:
        """Newest first. Raises KeyUnreadable."""
        ...


class DeadLetterUnwritable(Exception):
    """Kafka did not take the dead letter (topic missing, not allowed, not reachable)."""


class DeadLetterTooLarge(DeadLetterUnwritable):
    """The dead letter is larger than its topic allows."""


class DeadLetters(Protocol):
    """The dead-letter topics."""

    async def write(self, record: OutgoingRecord) -> None:
        """Return when all replicas in sync have it. Raises DeadLetterUnwritable or DeadLetterTooLarge."""
        ...

    async def limit_bytes(self, topic: str) -> int | None:
        """The largest record batch that the topic takes; None when it is not known. Raises DeadLetterUnwritable."""
        ...


class Unreachable(Exception):
    """Kafka did not answer, or not usefully; to be tried again later."""


class CommitRefused(Exception):
    """The offsets were not committed, or it is not known whether they were."""


NOTHING: Final[Mapping[Partition, str]] = {}


class Member(Protocol):
    """One worker's membership of a consumer group: which partitions are ours, and the right to commit for them."""

    @property
    def assigned(self) -> frozenset[Partition]:
        """What the latest assignment gave us."""
        ...

    @property
    def epoch(self) -> int:
        """Rises with every assignment."""
        ...

    @property
    def settled_in(self) -> bool:
        """False between revoke and assign, when no commit may be started."""
        ...

    def proven(self) -> bool:
        """True when Kafka confirmed this membership recently enough for nobody else to own our partitions."""
        ...

    def lapsed(self, seen_epoch: int) -> bool:
        """True when what we held at `seen_epoch` may have been another's before one of the assignments since."""
        ...

    async def next_assignment(self, seen_epoch: int) -> None:
        """Return when `epoch` is above `seen_epoch`."""
        ...

    async def commit(
        self, offsets: Mapping[Partition, int], timeout_s: float, metadata: Mapping[Partition, str] = NOTHING
    ) -> None:
        """Commit the next offsets to read, with text beside some of them. Raises CommitRefused."""
        ...

    async def committed(self, partitions: Collection[Partition]) -> dict[Partition, int | None]:
        """The group's committed offsets; None where there is none."""
        ...

    async def metadata(self, partitions: Collection[Partition]) -> dict[Partition, str]:
        """The text beside the committed offsets, where there is any. Raises Unreachable."""
        ...

    def subscribe(self, topics: Collection[str]) -> None:
        """Join (again) for these existing topics."""
        ...

    def retire(self) -> None:
        """Ask for an assignment in which the others get everything, before leaving."""
        ...


class Reader(Protocol):
    """Reads partitions into mailboxes, without any group."""

    async def oldest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The first offset that each partition still has. Raises Unreachable."""
        ...

    async def newest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get. Raises Unreachable."""
        ...

    def open(self, partition: Partition, offset: int) -> Mailbox:
        """Read from `offset` on into a new mailbox."""
        ...

    def close(self, mailbox: Mailbox) -> None:
        """Stop reading into it and throw away what it holds."""
        ...


class Fenced(Exception):
    """Another producer with the same transactional id has started: the partition is another lane's."""


class ControlUnwritable(Exception):
    """Kafka did not take a record for the control topic (missing, not allowed, not reachable)."""


class TokenRefused(Exception):
    """A later owner has drawn a token: what a former one writes no longer counts."""


class LedgerAway(Exception):
    """The ledger's store does not answer, or not usefully; what the worker itself knows has to do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InHand:
    """A request that a former owner had sent when it let go: its record, and for how long it may still run."""

    offset: int
    ends_in_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """What an owner finds.

    `clean`: the former owner let go in order, or there was none. `former_lives`: it has not let go, and its worker
    was seen alive within the last five seconds, so that it is worth waiting for. It had settled everything before the
    offset `settled_to` when it let go, and knew Kafka to be at `committed_to`; None when nobody said. `in_hand` is a
    request of the former owner whose outcome is not there yet. `known` is False when the store was away and this is
    what the worker itself knew.
    """

    token: int
    standing: Standing
    clean: bool
    former_lives: bool = False
    settled_to: int | None = None
    committed_to: int | None = None
    in_hand: InHand | None = None
    known: bool = True


class Ledger(Protocol):
    """What must outlive a loop about one queue. A healthy delivery never calls it."""

    async def take_over(self, queues: Collection[str]) -> dict[str, TakenOver]:
        """Draw for each queue a token above all others given for it."""
        ...

    async def look(self, tokens: Mapping[str, int]) -> dict[str, TakenOver]:
        """What `take_over` gave for these tokens, as it is by now: the former owner may have let go since.

        A queue whose latest token is another one is left out.
        """
        ...

    async def still_held(self, tokens: Mapping[str, int]) -> frozenset[str]:
        """The queues among these whose latest token is the given one."""
        ...

    async def record(self, queue: str, token: int, standing: Standing) -> None:
        """Remember. A former token may do so once: for the request that it had in hand when it let go.

        Raises TokenRefused.
        """
        ...

    async def release(
        self,
        queue: str,
        token: int,
        settled_to: int,
        committed_to: int,
        in_hand: InHand | None = None,
        standing: Standing | None = None,
    ) -> None:
        """Let go in order. Afterwards only the outcome of `in_hand` may be recorded.

        Everything before the offset `settled_to` is settled, and everything before `committed_to` known to be
        committed; `in_hand` is still under way. `standing` replaces what was recorded, or is still on its way.
        """
        ...


class Meter(Protocol):
    """Counts what happens beside attempts, for whoever watches."""

    def dead_letter(self, endpoint: Endpoint, reason: DeadLetterReason) -> None:
        """One dead letter was acknowledged by Kafka."""
        ...

    def halt(self, endpoint: Endpoint, reason: HaltReason) -> None:
        """A loop ended by rule or crashed."""
        ...

    def left_out(self, endpoint: Endpoint, count: int) -> None:
        """Forwarded header values that could not be sent as HTTP."""
        ...

    def fanned_out(self, result: FanoutResult, count: int) -> None:
        """Source records were dealt with."""
        ...

    def lost(self, topic: str, count: int) -> None:
        """Records that retention took before they were read."""
        ...
