"""OutboxRouter: rows of a table ``outbox(id, aggregatetype, aggregateid, type, payload)`` as events.

An application writes its event in the same transaction as the change that causes it: both are committed, or
neither is. The event's record goes to ``<prefix>.<aggregatetype>`` with the aggregate's id as key, so the
events of one aggregate stay in order. Its value is the payload alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from headwater.capture.source import Part, Record
from headwater.errors import CaptureError, UsageError

__all__ = ["OutboxRouter", "check_outbox", "outbox_record", "outbox_router"]


def outbox_record(row: Mapping[str, Any], prefix: str, committed_ms: int) -> Record:
    """The record of one row; a payload that is not a text is published as JSON."""
    try:
        kind, aggregate, payload = row["aggregatetype"], row["aggregateid"], row["payload"]
    except KeyError as error:
        raise CaptureError(
            "an outbox table lacks a column",
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


class OutboxRouter:
    """Replaces the records of the topic ``topic`` by events, and passes on all others.

    Inserted rows become events, and so do those of a snapshot, which were not published before. Updates and
    deletes are ignored: the application may delete a row as soon as it has inserted it.
    """

    def __init__(self, topic: str, *, prefix: str) -> None:
        self.topic = topic
        self._prefix = prefix
        self._decoder = _event

    def route(self, parts: Iterator[Part]) -> Iterator[Part]:
        """The parts, with events in place of the outbox's rows."""
        for part in parts:
            records = [routed for record in part.records for routed in self._routed(record)]
            emptied = tuple(context for context in part.emptied if context.topic != self.topic)
            yield Part(records, part.position, emptied, part.truncated)

    def _routed(self, record: Record) -> Iterator[Record]:
        if record.topic != self.topic:
            yield record
        elif record.value is not None:
            event = self._decoder.decode(record.value)
            if event.op in {"c", "r"} and event.after is not None:
                yield outbox_record(event.after, self._prefix, record.committed_ms)


def outbox_router(name: str, outbox: str | None) -> OutboxRouter | None:
    """The router of the table ``outbox`` of the capture ``name``."""
    return None if outbox is None else OutboxRouter(f"{name}.{outbox}", prefix=f"{name}.event")


def check_outbox(name: str, outbox: str | None, tables: Sequence[str]) -> None:
    """UsageError if the outbox is not one of the captured tables."""
    if outbox is not None and not any(fnmatchcase(outbox, table) for table in tables):
        raise UsageError(
            f"capture {name!r}: the outbox is not one of its tables",
            got=repr(outbox),
            expected="one of tables=",
        )
