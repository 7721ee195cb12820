"""Delivery + endpoint + time → the exact bytes of a request.

Signed as Standard Webhooks 1.0.0 says, "Signature scheme": HMAC-SHA256 over `{id}.{timestamp}.{body}`, base64, one
`v1,…` for each key, separated by a space. The timestamp is the attempt's, so each attempt is signed anew.
"""

from __future__ import annotations

import binascii
import fnmatch
import hmac
import re
from collections.abc import Iterable
from typing import Final

from delivery.model import Delivery, Endpoint, Headers, Outgoing, Signing, SigningKey, Unsendable

PROTOCOL_HEADERS: Final = frozenset(
    {
        b"webhook-id", b"webhook-timestamp", b"webhook-signature", b"content-type", b"content-length", b"user-agent",
        b"host", b"connection", b"expect", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
"""Lower-case names that neither an endpoint's settings nor an event may set: signature, framing, connection."""

_FALLBACK_CONTENT_TYPE: Final = b"application/octet-stream"
"""For a content type that no header can carry: the receiver learns that nothing is known, and guesses nothing."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PRINTABLE: Final = re.compile(rb"[ -~]*")
_CE_PREFIX: Final = "ce_"
_CE_ENCODED: Final = re.compile(rb"[^!#$&-~]")

_Pair = tuple[bytes, bytes]


def header_fault(name: str, value: str) -> str | None:
    """Why an endpoint may not have this header of its own; None when it may. Does not repeat the value."""
    if not name.isascii() or not _TOKEN.fullmatch(name.encode()):
        return "the name is not a token (RFC 9110 §5.6.2)"
    if name.lower().encode() in PROTOCOL_HEADERS:
        return "the name belongs to the protocol"
    if value != value.strip() or not value.isascii() or not _PRINTABLE.fullmatch(value.encode()):
        return "the value is not printable ASCII without blanks around it"
    return None


class RequestMaker:
    """Makes one endpoint's requests; what is the same in all of them is made once."""

    __slots__ = ("_constant", "_endpoint", "_forward", "_taken")

    def __init__(self, endpoint: Endpoint, version: str) -> None:
        """Raises ValueError when one of the endpoint's own headers can be no header; the text names it."""
        self._endpoint = endpoint
        own = _own_headers(endpoint.headers)
        self._constant: tuple[_Pair, ...] = ((b"user-agent", f"delivery/{version}".encode("ascii")), *own.items())
        self._taken = PROTOCOL_HEADERS | own.keys()
        globs = "|".join(fnmatch.translate(glob) for glob in endpoint.forward_headers)
        self._forward = re.compile(globs) if globs else None

    def build(self, delivery: Delivery, keys: tuple[SigningKey, ...], wall_s: float) -> Outgoing | Unsendable:
        """The request of an attempt that starts at `wall_s` (Unix time).

        Each header name appears once. `keys` sign in their order; they are not looked at when the endpoint's
        requests are not signed. Raises ValueError when they should be and there is no key.
        """
        event, endpoint = delivery.event, self._endpoint
        body = event.body
        if len(body) > endpoint.max_event_bytes:
            return Unsendable(detail=f"the body has {len(body)} bytes, the endpoint takes {endpoint.max_event_bytes}")
        event_id = event.id.encode("ascii")
        timestamp = b"%d" % wall_s
        headers = [
            (b"webhook-id", event_id),
            (b"webhook-timestamp", timestamp),
            (b"content-type", _content_type(event.content_type)),
            (b"content-length", b"%d" % len(body)),
            *self._constant,
        ]
        if endpoint.signing is Signing.STANDARD:
            headers.insert(2, (b"webhook-signature", signature(event_id, timestamp, body, keys)))
        left_out = 0
        if self._forward is not None:
            forwarded, left_out = _forwarded(event.headers, self._forward, self._taken)
            headers += forwarded.items()
        return Outgoing(url=endpoint.url, headers=tuple(headers), body=body, left_out=left_out)


def signature(event_id: bytes, timestamp: bytes, body: bytes, keys: Iterable[SigningKey]) -> bytes:
    """The value of `webhook-signature`. Raises ValueError when there is no key: nothing goes out unsigned unasked."""
    signed = b"%b.%b.%b" % (event_id, timestamp, body)
    signatures = [b"v1," + binascii.b2a_base64(hmac.digest(key.key, signed, "sha256"), newline=False) for key in keys]
    if not signatures:
        raise ValueError("no key to sign with")
    return b" ".join(signatures)


def _own_headers(headers: Iterable[tuple[str, str]]) -> dict[bytes, bytes]:
    own: dict[bytes, bytes] = {}
    for name, value in headers:
        lower = name.lower()
        if lower.encode() in PROTOCOL_HEADERS:
            continue
        fault = header_fault(name, value)
        if fault:
            raise ValueError(f"header {name!r}: {fault}")
        own[lower.encode("ascii")] = value.encode("ascii")
    return own


def _content_type(text: str) -> bytes:
    encoded = text.strip(" \t").encode("ascii", "replace") if text.isascii() else b""
    return encoded if encoded and _PRINTABLE.fullmatch(encoded) else _FALLBACK_CONTENT_TYPE


def _forwarded(headers: Headers, chosen: re.Pattern[str], taken: frozenset[bytes]) -> tuple[dict[bytes, bytes], int]:
    """The event's headers that go along, and how many cannot although they were chosen. Of a repeated name the last."""
    values: dict[bytes, bytes | None] = {}
    left_out = 0
    for name, value in headers:
        if chosen.match(name) is None:
            continue
        field = _field_name(name)
        if field is None:
            left_out += 1
        elif field not in taken:
            values[field] = _field_value(name, value)
    usable = {field: value for field, value in values.items() if value is not None}
    return usable, left_out + len(values) - len(usable)


def _field_name(name: str) -> bytes | None:
    if name.startswith(_CE_PREFIX):
        name = "ce-" + name.removeprefix(_CE_PREFIX)
    if not name.isascii():
        return None
    field = name.lower().encode("ascii")
    return field if _TOKEN.fullmatch(field) else None


def _field_value(name: str, value: bytes | None) -> bytes | None:
    if value is None:
        return None
    if name.startswith(_CE_PREFIX):
        return _percent_encoded(value)
    value = value.strip(b" ")
    return value if _PRINTABLE.fullmatch(value) else None


def _percent_encoded(value: bytes) -> bytes | None:
    """As the CloudEvents HTTP binding 1.0.2 §3.1.3.2 wants: blank, `"`, `%` and all that is not printable ASCII."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return None
    return _CE_ENCODED.sub(lambda match: b"%%%02X" % match.group()[0], value)
