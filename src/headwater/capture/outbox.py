"""Outbox: rows of a table ``outbox(id, aggregatetype, aggregateid, type, payload)`` as the events that they are.

An application writes its event in the transaction of the change that it tells of: both are there, or neither. The record goes to
``<prefix>.<aggregatetype>`` under the aggregate's id, so that the events of one aggregate stay in order; its value is the payload alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headwater.capture.source import Part, Record, Source
from headwater.errors import CaptureError

__all__ = ["Outbox", "outbox_record"]


def outbox_record(row: Mapping[str, Any], prefix: str, timestamp_ms: int) -> Record:
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
        f"{prefix}.{kind}", str(aggregate).encode(), None if payload is None else value, timestamp_ms
    )


class _Event(msgspec.Struct, frozen=True):
    op: str
    after: dict[str, Any] | None = None


class Outbox:
    """A source whose topic `topic` is an outbox; its other topics pass. The application may delete rows as soon as it has written them.

    Rows that were inserted become events, those of a snapshot too: they have not gone out before. Updates and deletes are ignored.
    """

    def __init__(self, source: Source, topic: str, *, prefix: str) -> None:
        self._source = source
        self._topic = topic
        self._prefix = prefix
        self._decoder = msgspec.json.Decoder(_Event)

    def __getattr__(self, name: str) -> Any:
        """What the loop asks of some sources only (versions of schemas, notices, how much is retained) is asked of the one inside."""
        return getattr(self._source, name)

    def read(self, position: str | None) -> Iterator[Part]:
        """See `Source.read`."""
        for part in self._source.read(position):
            routed = [made for record in part.records for made in self._routed(record)]
            emptied = tuple(around for around in part.emptied if around.topic != self._topic)
            yield Part(routed, part.position, emptied)

    def confirm(self, position: str) -> None:
        """See `Source.confirm`."""
        self._source.confirm(position)

    def close(self) -> None:
        """See `Source.close`."""
        self._source.close()

    def _routed(self, record: Record) -> Iterator[Record]:
        if record.topic != self._topic:
            yield record
        elif record.value is not None:
            event = self._decoder.decode(record.value)
            if event.op in {"c", "r"} and event.after is not None:
                yield outbox_record(event.after, self._prefix, record.timestamp_ms)
