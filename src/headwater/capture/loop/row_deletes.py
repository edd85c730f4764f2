"""RowDeletes: deletes of single rows for a truncate, and for a new snapshot that does not have them.

Readers that identify rows by key, such as views and sinks, ignore a truncate, which has no key. So each row
is deleted before a truncate of the stream; and after a new snapshot, each row that the snapshot does not
have. The deletes are in the same transaction of the log as the truncate.

A compacted topic does not accept a record without a key: there the deletes are published without the
truncate.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headwater.capture.envelope import stamp
from headwater.capture.source import EventContext, Part, Record
from headwater.capture.stray_keys import delete_key
from headwater.client.client import Client

__all__ = ["RowDeletes"]

PART_KEYS = 2_500
ALIVE_S = 1.0


class _Event(msgspec.Struct):
    op: str
    source: msgspec.Raw


_event = msgspec.json.Decoder(_Event)


class RowDeletes:
    """Inserts the deletes into the parts of one reading.

    It holds the keys of a topic in memory from the truncate to the end of the deletes. ``flush`` returns when
    all published records are in the log, committed or not. ``alive`` is called at intervals while a topic is
    read, so that the database keeps the connection. ``compacted`` says whether a topic is compacted.
    """

    def __init__(
        self,
        client: Client,
        flush: Callable[[], None],
        alive: Callable[[], None],
        compacted: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._flush = flush
        self._compacted = compacted
        self._alive = alive
        self._left: dict[str, tuple[EventContext, set[bytes]]] = {}
        self._empty: dict[str, dict[int, int]] = {}
        """By topic and partition, the offset before which no row is left: the next reading begins there."""
        self._decode = _event.decode

    def insert(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts, with the deletes."""
        for part in parts:
            for context in part.emptied:
                self._left[context.topic] = (context, self._keys(context.topic))
            if part.emptied:
                part = part._replace(records=self._with_keys(part.records))  # noqa: PLW2901
            if part.truncated:
                yield from self._row_by_row(part)
            elif self._left:
                yield from self._without(part)
            else:
                yield part

    def _row_by_row(self, part: Part) -> Iterator[Part]:
        """Divides the part at truncates: records before one may concern rows that are then deleted."""
        start = 0
        for at, record in enumerate(part.records):
            context = self._truncate(record)
            if context is None:
                continue
            if at > start:
                yield Part(part.records[start:at], None)
            start = at + self._compacted(context.topic)
            yield from _deletes(context, self._keys(context.topic))
        yield Part(part.records[start:], part.position)

    def _with_keys(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records without truncates of compacted topics."""
        return [
            record
            for record in records
            if self._truncate(record) is None or not self._compacted(record.topic)
        ]

    def _truncate(self, record: Record) -> EventContext | None:
        """The context of a truncate; None for any other record."""
        if record.key is not None or record.value is None or record.topic.endswith(".schema"):
            return None
        event = self._decode(record.value)
        if event.op != "t":
            return None
        return EventContext(record.topic, bytes(event.source).decode("latin-1"), stamp(), record.committed_ms)

    def _keys(self, topic: str) -> set[bytes]:
        """The keys that a reader has who ignores truncates, uncommitted records of ours included."""
        keys: set[bytes] = set()
        self._flush()
        if topic not in self._client.partitions():
            return keys
        empty, alive_at = self._empty.get(topic, {}), time.monotonic()
        committed = self._ends(topic)
        rest = {partition: max(end, empty.get(partition, 0)) for partition, end in committed.items()}
        self._empty[topic] = self._ends(topic, uncommitted=True)
        for messages in (
            self._client.read([topic], {topic: committed}, since={topic: empty}),
            # After the last committed record there is one open transaction: ours.
            self._client.read([topic], since={topic: rest}, uncommitted=True),
        ):
            for message in messages:
                if message.value() is None:
                    keys.discard(message.key())
                elif message.key() is not None:
                    keys.add(message.key())
                if time.monotonic() - alive_at > ALIVE_S:
                    alive_at = time.monotonic()
                    self._alive()
        return keys

    def _ends(self, topic: str, *, uncommitted: bool = False) -> dict[int, int]:
        ends = self._client.end_offsets([topic], uncommitted=uncommitted)
        return {partition: end for (_, partition), end in ends.items()}

    def _without(self, part: Part) -> Iterator[Part]:
        for topic, key, _, _ in part.records:
            if key is not None and topic in self._left:
                self._left[topic][1].discard(key)
        if part.position is None:
            yield part
            return
        yield part._replace(position=None)
        left, self._left = self._left, {}
        for context, keys in left.values():
            yield from _deletes(context, keys)
        yield Part([], part.position)


def _deletes(context: EventContext, keys: set[bytes]) -> Iterator[Part]:
    records: list[Record] = []
    for key in keys:
        records += delete_key(context, key)
        if len(records) >= 2 * PART_KEYS:
            yield Part(records, None)
            records = []
    if records:
        yield Part(records, None)
