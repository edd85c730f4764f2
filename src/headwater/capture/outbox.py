"""Outbox: rows of a table ``outbox(id, aggregatetype, aggregateid, type, payload)`` as the events that they are.

An application writes its event in the transaction of the change that it tells of: both are there, or neither. The record goes to
``<prefix>.<aggregatetype>`` under the aggregate's id, so that the events of one aggregate stay in order; its value is the payload alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from headwater.capture.source import Part, Record
from headwater.errors import CaptureError, UsageError

__all__ = ["Outbox", "check_outbox", "outbox_record", "routed"]


def outbox_record(row: Mapping[str, Any], prefix: str, committed_ms: int) -> Record:
    """The record of one row; a payload that is not text goes out as JSON."""
    try:
        kind, aggregate, payload = row["aggregatetype"], row["aggregateid"], row["payload"]
    except KeyError as error:
        raise CaptureError(
            "an outbox table has not the columns of one",
            got=", ".join(row),
            expected="id, aggregatetype, aggregateid, type, payload",
        ) from error
    if not kind:
        raise CaptureError(
            f"row {row.get('id')} of the outbox has no aggregatetype", hint="it names the topic"
        )
    value = payload.encode() if isinstance(payload, str) else msgspec.json.encode(payload)
    return Record(
        f"{prefix}.{kind}", str(aggregate).encode(), None if payload is None else value, committed_ms
    )


class _Event(msgspec.Struct, frozen=True):
    op: str
    after: dict[str, Any] | None = None


_event = msgspec.json.Decoder(_Event)


class Outbox:
    """The topic ``topic`` of a capture is an outbox; its other topics pass. The application may delete rows as soon as it has written them.

    Rows that were inserted become events, those of a snapshot too: they have not gone out before. Updates and deletes are ignored.
    """

    def __init__(self, topic: str, *, prefix: str) -> None:
        self.topic = topic
        self._prefix = prefix
        self._decoder = _event

    def through(self, parts: Iterator[Part]) -> Iterator[Part]:
        """The parts with events in the place of rows."""
        for part in parts:
            routed = [made for record in part.records for made in self._routed(record)]
            emptied = tuple(around for around in part.emptied if around.topic != self.topic)
            yield Part(routed, part.position, emptied, part.truncated)

    def _routed(self, record: Record) -> Iterator[Record]:
        if record.topic != self.topic:
            yield record
        elif record.value is not None:
            event = self._decoder.decode(record.value)
            if event.op in {"c", "r"} and event.after is not None:
                yield outbox_record(event.after, self._prefix, record.committed_ms)


def routed(name: str, outbox: str | None) -> Outbox | None:
    """Of the capture ``name``, whose table ``outbox`` is one."""
    return None if outbox is None else Outbox(f"{name}.{outbox}", prefix=f"{name}.event")


def check_outbox(name: str, outbox: str | None, tables: Sequence[str]) -> None:
    """UsageError for one that is not captured."""
    if outbox is not None and not any(fnmatchcase(outbox, table) for table in tables):
        raise UsageError(
            f"capture {name!r}: the outbox is none of its tables",
            got=repr(outbox),
            expected="one of tables=",
        )
