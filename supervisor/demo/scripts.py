"""What the scripted endpoint can be told to do with a request."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Asked(NamedTuple):
    """A request as a script sees it. `n` counts on the path, `on_connection` on the connection, both from 1."""

    path: str
    n: int
    on_connection: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        """The last value of a header, names in any case."""
        found = None
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode("latin-1").lower() == name.lower():
                found = value.strip().decode("latin-1")
        return found


class Then(enum.Enum):
    """What happens to the connection after the answer."""

    KEEP = enum.auto()
    CLOSE = enum.auto()
    RESET = enum.auto()
    HANG = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One answer: wait for `wait`, then `delay_s`, write `data`, then each piece after `every_s`, then `then`.

    `status` is what the log shows, 0 for no answer; `linger_s` delays the closing.
    """

    status: int = 0
    data: bytes = b""
    delay_s: float = 0.0
    wait: asyncio.Event | None = None
    pieces: Callable[[], Iterable[bytes]] | None = None
    every_s: float = 0.0
    then: Then = Then.KEEP
    linger_s: float = 0.0


Script = Callable[[Asked], Act]

HANG = Act(then=Then.HANG)
DROP = Act(then=Then.CLOSE)
RESET = Act(then=Then.RESET)


def reply(
    status: int,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    delay_s: float = 0.0,
    wait: asyncio.Event | None = None,
    then: Then = Then.KEEP,
) -> Act:
    """A complete, well-formed answer."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    if status >= 200 and status not in (204, 304):
        lines += f"content-length: {len(body)}\r\n"
    data = f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode("latin-1") + body
    return Act(status=status, data=data, delay_s=delay_s, wait=wait, then=then)


def raw(data: bytes, *, status: int = 0, then: Then = Then.CLOSE) -> Act:
    """Exactly these bytes, well-formed or not."""
    return Act(status=status, data=data, then=then)


def always(status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Script:
    """The same answer at once, every time."""
    return doing(reply(status, headers, body))


def after(delay_s: float, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Script:
    """The same answer, every time after `delay_s`."""
    return doing(reply(status, headers, body, delay_s=delay_s))


def doing(act: Act) -> Script:
    """The same act every time."""
    return lambda _asked: act


def hang() -> Script:
    """Take the request and never answer."""
    return doing(HANG)


def drop() -> Script:
    """Take the request and close without an answer."""
    return doing(DROP)


def reset() -> Script:
    """Take the request and reset the connection."""
    return doing(RESET)


def sequence(acts: Sequence[Act]) -> Script:
    """The n-th request on the path gets the n-th act; the last one is repeated for ever."""
    return lambda asked: acts[min(asked.n, len(acts)) - 1]


def flaky(seed: int | str, failures: Sequence[tuple[float, Act]], otherwise: Act | None = None) -> Script:
    """Each failure has its share of all requests, drawn from (seed, path, n): the same in every run and order."""
    fine = otherwise or reply(204)

    def script(asked: Asked) -> Act:
        drawn = random.Random(f"{seed}/{asked.path}/{asked.n}").random()
        for share, act in failures:
            if drawn < share:
                return act
            drawn -= share
        return fine

    return script


def named(path: str) -> Script:
    """The script that a path's first segment names, see the server's module; 404 for an unknown one."""
    word, _, value = path.lstrip("/").partition("/")[0].partition("-")
    if word.isdigit() and len(word) == 3:
        return always(int(word), {"retry-after": "2"} if word == "429" else None)
    match word:
        case "ok":
            return always(204)
        case "after":
            return after(float(value), 204)
        case "flaky":
            return flaky(value, [(0.25, reply(500)), (0.08, reply(429, {"retry-after": "2"}))])
        case "hang" | "drop" | "reset":
            return {"hang": hang, "drop": drop, "reset": reset}[word]()
        case _:
            return always(404)
