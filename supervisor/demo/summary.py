"""What the demo showed, from what the endpoints saw and what is left in Kafka. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from supervisor.demo.roles import RETRY_AFTER_S, Role

WINDOW_S = 10.0
# Five rejections halt a loop, and it starts again ten seconds after it ended.
MOST_AT_DEAD = 5


class Arrival(NamedTuple):
    """A request as the endpoint saw it; `at` is monotonic."""

    id: str
    at: float
    status: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about one endpoint, each from where it is certain.

    `events` are the ids that were written to the source topic, in order; `arrivals` come from the endpoint, `dead`
    (id, reason) from the dead-letter topic, `queued` from the queue behind what is committed, `halts` from the metrics.
    """

    role: Role
    events: Sequence[str]
    arrivals: Sequence[Arrival]
    dead: Sequence[tuple[str, str]]
    queued: Sequence[str]
    halts: int

    @property
    def delivered(self) -> list[str]:
        """Ids that the endpoint confirmed, repeats included."""
        return [arrival.id for arrival in self.arrivals if 200 <= arrival.status < 300]

    @property
    def busiest(self) -> int:
        """The most requests in any ten seconds."""
        times = [arrival.at for arrival in self.arrivals]
        return max((sum(at <= other < at + WINDOW_S for other in times) for at in times), default=0)

    @property
    def in_order(self) -> bool:
        """Every event was finished before the next one was begun, in the order of the source topic."""
        begun = [id_ for id_, _ in itertools.groupby(arrival.id for arrival in self.arrivals)]
        return begun == list(self.events[: len(begun)])

    @property
    def reasons(self) -> Mapping[str, int]:
        """Dead letters by reason."""
        return Counter(reason for _, reason in self.dead)

    @property
    def refused(self) -> int:
        """Requests that got anything but a 2xx."""
        return len(self.arrivals) - len(self.delivered)

    @property
    def shortest_wait_s(self) -> float | None:
        """The shortest time from a 429 to the next request; None when none was followed by one."""
        pairs = itertools.pairwise(self.arrivals)
        return min((after.at - before.at for before, after in pairs if before.status == 429), default=None)

    def places(self) -> Counter[str]:
        """For each id in how many places it was found: delivered, dead letter, queue."""
        return Counter(self.delivered) + Counter(id_ for id_, _ in self.dead) + Counter(self.queued)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The evidence about all endpoints. `finished` is False when the run was ended in the middle of its work."""

    endpoints: Sequence[Evidence]
    finished: bool = True

    def of(self, role: Role) -> Evidence:
        """One endpoint's."""
        return next(evidence for evidence in self.endpoints if evidence.role is role)

    def faults(self) -> list[str]:
        """What should not have happened; empty when everything is as promised."""
        found = [f"{evidence.role}: {fault}" for evidence in self.endpoints for fault in _faults(evidence)]
        healthy = self.of(Role.HEALTHY)
        if self.finished and len(healthy.delivered) != len(healthy.events):
            found.append(
                f"{healthy.role}: only {len(healthy.delivered)} of {len(healthy.events)} events were delivered"
            )
        return found

    def findings(self) -> list[str]:
        """What can be seen from the figures, in words."""
        return [_healthy(self), _flaky(self), _dead(self), _limiting(self), _nothing_lost(self)]


def _faults(evidence: Evidence) -> Iterator[str]:
    places = evidence.places()
    missing = [id_ for id_ in evidence.events if not places[id_]]
    if missing:
        yield f"{len(missing)} events are missing: {_few(missing)}"
    repeated = [id_ for id_, count in places.items() if count > 1]
    if repeated:
        yield f"{len(repeated)} events were settled more than once: {_few(repeated)}"
    foreign = sorted(places.keys() - set(evidence.events))
    if foreign:
        yield f"{len(foreign)} events that nobody sent: {_few(foreign)}"
    if not evidence.in_order:
        yield "events did not arrive in order"
    if evidence.role is Role.DEAD and evidence.busiest > MOST_AT_DEAD:
        yield f"saw {evidence.busiest} requests in {WINDOW_S:g} s"
    if evidence.shortest_wait_s is not None and evidence.shortest_wait_s < RETRY_AFTER_S:
        yield f"was asked again {evidence.shortest_wait_s:.3f} s after a 429 that said {RETRY_AFTER_S} s"


def _healthy(summary: Summary) -> str:
    healthy = summary.of(Role.HEALTHY)
    everything = len(healthy.delivered) == len(healthy.events)
    order = "in order" if healthy.in_order else "out of order"
    return (
        f"The healthy endpoint got {'all' if everything else f'{len(healthy.delivered)} of'} {len(healthy.events)} "
        f"events, {order}, with {len(healthy.arrivals)} requests: its neighbours' trouble is not its own."
    )


def _flaky(summary: Summary) -> str:
    flaky = summary.of(Role.FLAKY)
    return (
        f"The flaky endpoint refused {flaky.refused} of {len(flaky.arrivals)} requests; the events were sent again, "
        f"after growing waits, and {len(flaky.delivered)} of {len(flaky.events)} were delivered."
    )


def _dead(summary: Summary) -> str:
    dead, healthy = summary.of(Role.DEAD), summary.of(Role.HEALTHY)
    return (
        f"The dead endpoint saw {dead.busiest} requests in the busiest {WINDOW_S:g} s instead of hundreds (the healthy "
        f"one: {healthy.busiest}): its loop halted {dead.halts} times, for 10 s each. {len(dead.dead)} of its events "
        f"are dead letters, kept with all that sending them again needs; {len(dead.queued)} wait in its queue."
    )


def _limiting(summary: Summary) -> str:
    limiting = summary.of(Role.LIMITING)
    wait_s = limiting.shortest_wait_s
    waited = "" if wait_s is None else f"; the next request never came sooner than {wait_s:.2f} s later"
    return (
        f"The rate-limiting endpoint answered {limiting.refused} times 429 with Retry-After: {RETRY_AFTER_S}{waited}. "
        f"{len(limiting.delivered)} of {len(limiting.events)} events were delivered, none was dropped for it."
    )


def _nothing_lost(summary: Summary) -> str:
    events = sum(len(evidence.events) for evidence in summary.endpoints)
    delivered = sum(len(evidence.delivered) for evidence in summary.endpoints)
    dead = sum(len(evidence.dead) for evidence in summary.endpoints)
    queued = sum(len(evidence.queued) for evidence in summary.endpoints)
    verdict = "Nothing was lost" if delivered + dead + queued == events and not summary.faults() else "The sum is wrong"
    return f"{verdict}: {delivered} delivered + {dead} dead letters + {queued} still queued = {events} events."


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")
