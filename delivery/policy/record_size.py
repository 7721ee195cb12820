"""How large a record becomes when a producer writes it: what topics' `max.message.bytes` is compared with."""

from __future__ import annotations

from typing import Final

from delivery.model import Headers

BATCH_OVERHEAD: Final = 61
"""The header of a record batch of format v2 (Kafka protocol, "Record Batch")."""

RECORD_OVERHEAD: Final = 36
"""Length 5, attributes 1, times 10, offset 5, and the lengths of key, value and header list 5 each: longest varints."""

HEADER_OVERHEAD: Final = 10
"""The lengths of one header's name and value: varints at their longest."""

_LONGEST_UTF8: Final = 4


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of an uncompressed batch with this record alone; never less than what the broker counts."""
    size = BATCH_OVERHEAD + RECORD_OVERHEAD + HEADER_OVERHEAD * len(headers)
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, header in headers:
        size += len(name) if name.isascii() else _LONGEST_UTF8 * len(name)
        if header is not None:
            size += len(header)
    return size
