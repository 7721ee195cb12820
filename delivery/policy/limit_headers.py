"""Headers with which an endpoint says that a quota of its own is used up, and when there is more.

In the order in which they count: `RateLimit` (draft-ietf-httpapi-ratelimit-headers: a list of structured-field items
with parameters `r`, what remains, and `t`, seconds until it is restored; `RateLimit-Policy` gives the unit), then
`RateLimit-Remaining` with `RateLimit-Reset`, then `X-RateLimit-Remaining` with `X-RateLimit-Reset`. Only whole numbers
count, and nothing that is malformed does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from delivery.model import Answer
from delivery.policy import retry_after

# A longer line says nothing that anybody means; the expressions below stay cheap.
_LONGEST: Final = 1_024
_WHOLE: Final = re.compile(rb"[0-9]{1,15}")
_KEY: Final = rb"[a-z*][a-z0-9_\-.*]*"
_BARE: Final = rb'"(?:[^"\\]|\\.)*"|[^ \t,;="]+'
_ITEM: Final = re.compile(rb"[ \t]*(" + _BARE + rb")((?:;[ ]*" + _KEY + rb"(?:=(?:" + _BARE + rb"))?)*)[ \t]*(?:,|$)")
_PARAMETER: Final = re.compile(rb";[ ]*(" + _KEY + rb")(?:=(" + _BARE + rb"))?")
_REQUESTS: Final = b'"requests"'
# What `X-RateLimit-Reset` means is written down nowhere: above these it cannot be anything but a moment.
_EPOCH_MS: Final = 10**12
_EPOCH_S: Final = 10**9


def asked_s(answer: Answer, *, wall_s: float, cap_s: float) -> float | None:
    """Seconds to wait, above zero and at most `cap_s`; None when no quota is said to be used up."""
    lines = _lines(answer)
    if not lines:
        return None
    wait_s: float | None = _by_items(lines)
    if wait_s is None:
        wait_s = _by_pair(lines, b"ratelimit-remaining", b"ratelimit-reset")
    if wait_s is None:
        reset = _by_pair(lines, b"x-ratelimit-remaining", b"x-ratelimit-reset")
        wait_s = None if reset is None else _until(reset, retry_after.answered_at_s(_date(answer), wall_s))
    if wait_s is None or wait_s <= 0:
        return None
    return min(float(wait_s), cap_s)


def _lines(answer: Answer) -> dict[bytes, list[bytes]]:
    """Only what is of use here: this runs for every delivery."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in answer.headers:
        if name[:1] in b"rRxX":
            lower = name.lower()
            if lower.startswith((b"ratelimit", b"x-ratelimit")):
                found.setdefault(lower, []).append(value)
    return found


def _date(answer: Answer) -> bytes | None:
    return next((value for name, value in answer.headers if name.lower() == b"date"), None)


def _by_items(lines: Mapping[bytes, Sequence[bytes]]) -> int | None:
    """The longest wait that an item with nothing left asks for. Quotas of bytes or connections are not for us."""
    if b"ratelimit" not in lines:
        return None
    units = {name: parameters.get(b"qu", _REQUESTS) for name, parameters in _items(lines.get(b"ratelimit-policy", ()))}
    waits = [
        int(parameters[b"t"])
        for name, parameters in _items(lines[b"ratelimit"])
        if _zero(parameters.get(b"r"))
        and _WHOLE.fullmatch(parameters.get(b"t", b""))
        and parameters.get(b"qu", units.get(name, _REQUESTS)) == _REQUESTS
    ]
    return max(waits, default=None)


def _items(values: Sequence[bytes]) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    """Names and parameters of a list's members; nothing when any of it is malformed (RFC 9651 §4.2)."""
    text = b",".join(values)
    members: list[tuple[bytes, dict[bytes, bytes]]] = []
    at = 0
    while at < len(text) <= _LONGEST:
        match = _ITEM.match(text, at)
        if match is None:
            return
        members.append((match[1], dict(_PARAMETER.findall(match[2]))))
        at = match.end()
    yield from members


def _zero(value: bytes | None) -> bool:
    return value is not None and _WHOLE.fullmatch(value) is not None and int(value) == 0


def _by_pair(lines: Mapping[bytes, Sequence[bytes]], remaining: bytes, reset: bytes) -> int | None:
    """The reset as it is given; the largest of several lines. None unless every line of the remainder says zero."""
    left = [value.strip(b" \t") for value in lines.get(remaining, ())]
    if not left or not all(_zero(value) for value in left):
        return None
    resets = [value.strip(b" \t") for value in lines.get(reset, ())]
    return max((int(value) for value in resets if _WHOLE.fullmatch(value)), default=None)


def _until(reset: int, now_s: float) -> float:
    if reset > _EPOCH_MS:
        return reset / 1000 - now_s
    return reset - now_s if reset > _EPOCH_S else float(reset)
