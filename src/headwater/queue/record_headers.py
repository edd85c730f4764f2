"""The headers of records that count in groups that open their records.

headwater-priority    0 to 9, 4 without it
headwater-due         not delivered before this time, in milliseconds since 1970
headwater-expires     settled undelivered after this time, in milliseconds since 1970
headwater-id          the same for records of which one is enough

A header that cannot be read counts as not there, and is named.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headwater.queue_headers import DUE_HEADER, EXPIRES_HEADER, ID_HEADER, PRIORITY_HEADER

__all__ = ["PRIORITIES", "PRIORITY", "RecordHeaders", "read_headers"]

PRIORITIES = 10
PRIORITY = 4
"""Of a record that does not say."""
DIGITS_MAX = 15
SHOWN_BYTES_MAX = 40


class RecordHeaders(NamedTuple):
    """What the headers of a record say."""

    priority: int = PRIORITY
    due_ms: int = 0
    expires_ms: int = 0
    """0 if it does not expire."""
    id: bytes | None = None
    wrong: str = ""
    """What is wrong with one that cannot be read."""


def read_headers(headers: Iterable[tuple[str, bytes | None]]) -> RecordHeaders:
    """What the headers of a record say; the last one of a name counts."""
    if not headers:
        return _NONE
    priority, due_ms, expires_ms, record_id, wrong = _NONE
    for name, value in headers:
        if name == PRIORITY_HEADER:
            if value in _PRIORITIES:
                priority = _PRIORITIES[value]
            else:
                wrong = _wrong(name, value, f"0 to {PRIORITIES - 1}")
        elif name in _TIMES:
            if value is None or not value.isdigit() or len(value) > DIGITS_MAX:
                wrong = _wrong(name, value, "milliseconds since 1970")
            elif name == DUE_HEADER:
                due_ms = int(value)
            else:
                expires_ms = int(value)
        elif name == ID_HEADER:
            if value:
                record_id = value
            else:
                wrong = _wrong(name, value, "an id")
    return RecordHeaders(priority, due_ms, expires_ms, record_id, wrong)


def _wrong(name: str, value: bytes | None, expected: str) -> str:
    shown = None if value is None else value[:SHOWN_BYTES_MAX].decode(errors="replace")
    return f"{name} is {shown!r}, expected {expected}"


_NONE = RecordHeaders()
_TIMES = frozenset({DUE_HEADER, EXPIRES_HEADER})
_PRIORITIES: dict[bytes | None, int] = {str(number).encode(): number for number in range(PRIORITIES)}
