"""Signing secrets as text, of the settings and of the files that are read again when they change."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from delivery.model import SigningKey
from supervisor.settings.faults import expected
from supervisor.settings.fields import entries

PREFIX = "whsec_"
ED25519_PREFIX = "whsk_"

# Standard Webhooks, "Signature scheme": between 24 and 64 bytes (192 to 512 bits).
SHORTEST = 24
LONGEST = 64

# More than this many signatures are no rotation any more, and the header grows with each.
MOST_KEYS = 10

_WHAT = f"{PREFIX} and base64 of {SHORTEST} to {LONGEST} bytes"


def signing_keys(value: Any) -> tuple[SigningKey, ...]:
    """The keys in the order given: a comma list, one a line, or a JSON list.

    Raises ValueError (a PydanticCustomError), whose text never contains anything of the value.
    """
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = [part.strip() for line in value.splitlines() if line.strip() for part in line.split(",")]
    texts = entries(value, _WHAT)
    if len(texts) > MOST_KEYS:
        raise expected(f"expected at most {MOST_KEYS} secrets")
    return tuple(_key(text, f" (entry {n} of {len(texts)})" * (len(texts) > 1)) for n, text in enumerate(texts, 1))


def _key(value: object, which: str) -> SigningKey:
    """Strict: what a lenient decoder skips or guesses would make another key than the receiver's (RFC 4648 §3.3)."""
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith(ED25519_PREFIX):
        raise expected(f"Ed25519 keys ({ED25519_PREFIX}) are not supported by this version{which}")
    if not text.startswith(PREFIX):
        raise expected(f"expected {_WHAT}{which}: it must begin with {PREFIX}")
    encoded = text.removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        key = None
    if key is None or base64.b64encode(key).decode() != encoded:
        raise expected(f"expected {_WHAT}{which}: it is no strict base64 (alphabet A-Z a-z 0-9 + /, padded with =)")
    if not SHORTEST <= len(key) <= LONGEST:
        raise expected(f"expected {_WHAT}{which}: its length is out of range")
    return SigningKey(key=key)
