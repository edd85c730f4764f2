"""Rows of a captured table, read from Debezium's envelope; views do the same (``pipeline/wire/debezium.py``).

A delete is an event followed by a tombstone, which changes nothing. Dates in the envelope are days since
1970.
"""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import msgspec

from headwater.declare.schema import key_text
from headwater.sink.store import SinkFeed

__all__ = ["EnvelopeReader", "envelope_reader"]

EnvelopeReader = Callable[[bytes | None, bytes | None], tuple[bytes, bytes | None]]
"""From key and value of a record to those of a row; ValueError or MsgspecError if the record is not a row."""
EPOCH = date(1970, 1, 1)


class Envelope(msgspec.Struct, frozen=True):
    """The part of the envelope that is read."""

    op: str
    after: msgspec.Raw = msgspec.Raw(b"null")


_envelope = msgspec.json.Decoder(Envelope).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def envelope_reader(feed: SinkFeed) -> EnvelopeReader:
    """The function that reads the records of a feed."""
    dates = [name for name, kind in feed.columns.items() if kind == "DATE"]

    def read(key: bytes | None, value: bytes | None) -> tuple[bytes, bytes | None]:
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
        return text, _with_dates(after, dates) if dates else after

    return read


def _with_dates(after: bytes, dates: list[str]) -> bytes:
    """The row with dates as text."""
    row = _object(after)
    days = {name: row[name] for name in dates if isinstance(row.get(name), int)}
    return msgspec.json.encode(
        row | {name: (EPOCH + timedelta(days=count)).isoformat() for name, count in days.items()}
    )
