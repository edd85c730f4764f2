"""Rows of a captured table out of Debezium's envelope, as a sink takes them; views do the same (``pipeline/enveloped.py``).

A delete comes as an event and as a tombstone behind it: the second changes nothing. Dates are days since 1970 in the envelope.
"""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import msgspec

from headwater.schema import key_text
from headwater.sink.store import Feed

__all__ = ["Opened", "opener"]

Opened = Callable[[bytes | None, bytes | None], tuple[bytes, bytes | None]]
"""From key and value of a record to those of a row; ValueError or MsgspecError for what is none."""
EPOCH = date(1970, 1, 1)


class Envelope(msgspec.Struct, frozen=True):
    """What is looked at of it."""

    op: str
    after: msgspec.Raw = msgspec.Raw(b"null")


_envelope = msgspec.json.Decoder(Envelope).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def opener(feed: Feed) -> Opened:
    """What opens the records of a feed."""
    dates = [name for name, kind in feed.columns.items() if kind == "DATE"]

    def opened(key: bytes | None, value: bytes | None) -> tuple[bytes, bytes | None]:
        if key is None:
            raise ValueError("a row needs a key, and a truncate has none")
        columns = _object(key)
        missing = [name for name in feed.key if name not in columns]
        if missing:
            raise ValueError(f"the key has no {missing[0]!r}")
        text = key_text([columns[name] for name in feed.key]).encode()
        if value is None:
            return text, None
        after = bytes(_envelope(value).after)
        if after == b"null":
            return text, None
        return text, _dated(after, dates) if dates else after

    return opened


def _dated(after: bytes, dates: list[str]) -> bytes:
    row = _object(after)
    days = {name: row[name] for name in dates if isinstance(row.get(name), int)}
    return msgspec.json.encode(
        row | {name: (EPOCH + timedelta(days=each)).isoformat() for name, each in days.items()}
    )
