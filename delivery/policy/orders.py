"""What operators have ordered for an endpoint, as the control topic keeps it, and what that means for one record.

The topic is compacted: of each key only the newest record is sure to stay. Therefore each kind of order has a key of
its own, `order/<tenant>/<endpoint>/<order>`, nobody has to read before he writes, and what holds is computed from the
newest order of each kind: a pause holds until a later resume.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from typing import Any, Final

from delivery.model import DeadLetterReason, HaltReason
from delivery.policy.dead_letter import parse_time, time_text

ORDER: Final = "order"
LATE_MS: Final = 600_000
"""How much later than the order a record may say that it was queued and still be meant: machines' clocks differ.

A queue that is made anew counts its offsets from 0 again; what is queued there must not be taken for what an old order
was about.
"""
# A detail is for people; nobody reads more.
_MOST_CHARACTERS: Final = 200
# The year 10000: no calendar shows what comes later.
_CALENDAR_END_MS: Final = 253_402_300_800_000


class OrderKind(enum.StrEnum):
    """The closed set of orders. `disable` is the worker's own, after a streak of 410."""

    PAUSE = "pause"
    RESUME = "resume"
    DISABLE = "disable"
    CANCEL_RECORD = "cancel-record"
    CANCEL_ALL = "cancel-all"
    DRAIN = "drain"


class ResumeFrom(enum.StrEnum):
    """Where a queue goes on that has lost its committed offset."""

    OLDEST = "oldest"
    LATEST = "latest"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order. `position` is its offset in the control topic: what is later holds.

    `first` and `below` bound the queue offsets that are to end (`cancel-…` and `drain`); `resume_from` belongs to a
    resume.
    """

    position: int
    at_ms: int
    by: str = ""
    detail: str = ""
    first: int = 0
    below: int = 0
    resume_from: ResumeFrom | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The newest order of each kind for one endpoint."""

    pause: Order | None = None
    resume: Order | None = None
    disable: Order | None = None
    cancel_record: Order | None = None
    cancel_all: Order | None = None
    drain: Order | None = None

    @property
    def paused(self) -> Order | None:
        """The pause that is in force."""
        return self._unless_resumed(self.pause)

    @property
    def disabled(self) -> Order | None:
        """The disabling that is in force."""
        return self._unless_resumed(self.disable)

    @property
    def all(self) -> list[Order]:
        """Those that there are."""
        kinds = (self.pause, self.resume, self.disable, self.cancel_record, self.cancel_all, self.drain)
        return [order for order in kinds if order is not None]

    def _unless_resumed(self, order: Order | None) -> Order | None:
        if order is None or (self.resume is not None and self.resume.position > order.position):
            return None
        return order


NO_ORDERS: Final = Orders()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """What the orders say at one moment of a loop.

    `bar`: nothing may be sent, and why. `cut`: the record in hand is to end like this. `more`: records that are still
    to be read may have to end, so that the loop has work although nothing may be sent.
    """

    bar: HaltReason | None = None
    cut: DeadLetterReason | None = None
    more: bool = False


FREE: Final = Ordered()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord:
    """A readable order record: whose it is, which kind, and the order; None takes it back (a tombstone)."""

    tenant: str
    endpoint: str
    kind: OrderKind
    position: int
    order: Order | None


def order_key(tenant: str, endpoint: str, kind: OrderKind) -> str:
    """The key under which the newest order of this kind stands. Names have no slash."""
    return f"{ORDER}/{tenant}/{endpoint}/{kind}"


def order_value(kind: OrderKind, order: Order) -> bytes:
    """The record's value."""
    value: dict[str, Any] = {"order": kind.value, "at": time_text(order.at_ms), "by": order.by}
    if order.detail:
        value["detail"] = order.detail
    if order.below:
        value |= {"first": order.first, "below": order.below}
    if order.resume_from is not None:
        value["from"] = order.resume_from.value
    return json.dumps(value, ensure_ascii=False).encode()


def read_order(key: str, value: bytes | None, position: int) -> ControlRecord | None:
    """Read an order record; None when it is none of ours or cannot be read."""
    parts = key.split("/")
    try:
        place, tenant, endpoint, name = parts
        kind = OrderKind(name)
        if place != ORDER or not tenant or not endpoint:
            return None
        order = None if value is None else _order(kind, json.loads(value), position)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return ControlRecord(tenant=tenant, endpoint=endpoint, kind=kind, position=position, order=order)


def _order(kind: OrderKind, said: Mapping[str, Any], position: int) -> Order:
    at_ms = parse_time(str(said["at"]).encode())
    if said["order"] != kind.value or at_ms is None or not 0 <= at_ms < _CALENDAR_END_MS:
        raise ValueError("not an order of this kind")
    start = said.get("from")
    ranged = kind in {OrderKind.CANCEL_RECORD, OrderKind.CANCEL_ALL, OrderKind.DRAIN}
    return Order(
        position=position,
        at_ms=at_ms,
        by=str(said.get("by", ""))[:_MOST_CHARACTERS],
        detail=str(said.get("detail", ""))[:_MOST_CHARACTERS],
        first=int(said["first"]) if ranged else 0,
        below=int(said["below"]) if ranged else 0,
        resume_from=None if start is None else ResumeFrom(start),
    )


def fold(orders: Orders, record: ControlRecord) -> Orders:
    """The orders with one more record. What is older than what is known changes nothing."""
    name = record.kind.value.replace("-", "_")
    known: Order | None = getattr(orders, name)
    if known is not None and known.position >= record.position:
        return orders
    return dataclasses.replace(orders, **{name: record.order})


def before_all(orders: Orders, by: int) -> Orders:
    """The same orders, with positions so much lower: whatever a control topic that was made anew says is later."""
    known = {field.name: getattr(orders, field.name) for field in dataclasses.fields(orders)}
    lower = {
        name: dataclasses.replace(order, position=order.position - by)
        for name, order in known.items()
        if order is not None
    }
    return dataclasses.replace(orders, **lower)


def bar(orders: Orders) -> HaltReason | None:
    """Why nothing may be sent; None when something may."""
    if orders.paused is not None:
        return HaltReason.PAUSED
    if orders.disabled is not None:
        return HaltReason.GONE
    return None


def cut(orders: Orders, offset: int, queued_ms: int | None) -> DeadLetterReason | None:
    """How the record at this offset of the queue has to end; None when it is to be delivered.

    `queued_ms` is None while the record itself has not been read.
    """
    if any(_means(order, offset, queued_ms) for order in (orders.cancel_record, orders.cancel_all)):
        return DeadLetterReason.CANCELLED
    return DeadLetterReason.DRAINED if _means(orders.drain, offset, queued_ms) else None


def _means(order: Order | None, offset: int, queued_ms: int | None) -> bool:
    if order is None or not order.first <= offset < order.below:
        return False
    return queued_ms is None or queued_ms <= order.at_ms + LATE_MS


def unfinished(orders: Orders, next_offset: int) -> bool:
    """Whether a record at or after this offset may have to end by an order."""
    cuts = (orders.cancel_record, orders.cancel_all, orders.drain)
    return any(order is not None and order.below > next_offset for order in cuts)


def ordered(orders: Orders, next_offset: int, in_hand: int | None, queued_ms: int | None = None) -> Ordered:
    """What holds for a loop that stands at `next_offset`, with the record at offset `in_hand` in hand."""
    if orders is NO_ORDERS:
        return FREE
    return Ordered(
        bar=bar(orders),
        cut=None if in_hand is None else cut(orders, in_hand, queued_ms),
        more=unfinished(orders, next_offset),
    )


def resume_from(orders: Orders, noted_at: int) -> ResumeFrom | None:
    """Where a queue goes on whose offset was lost after the control record at `noted_at`; None without such an order.

    A resume answers the losses before it, not those to come.
    """
    if orders.resume is None or orders.resume.position < noted_at:
        return None
    return orders.resume.resume_from
