"""Forgotten: the rows of a topic that its table has no more, deleted one by one.

A truncate says that all rows are gone, and says nothing of single ones: who knows rows by their key alone, as views and sinks do, passes
over it. So in front of a truncate of the stream each row is deleted as well; and where a topic begins anew, each row that the new
snapshot does not have. Both in the log's transaction that has the truncate.

The truncate itself has no key. A compacted topic takes no such record, so it is left out there: the deletes say the same.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headwater.capture.envelope import Around, stamp
from headwater.capture.ghosts import removed
from headwater.capture.source import Part, Record
from headwater.client import Client

__all__ = ["Forgotten"]

PART_KEYS = 2_500
ALIVE_S = 1.0


class _Event(msgspec.Struct):
    op: str
    source: msgspec.Raw


_event = msgspec.json.Decoder(_Event)


class Forgotten:
    """Looks through the parts of one reading. Holds the keys of a topic in memory from its truncate to the end of its deletes.

    ``flush`` returns when all that was handed on is in the log, be it committed or not. ``alive`` is called now and then while a topic
    is read: the database must not take us for dead. ``compacted`` says whether a topic is.
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
        self._left: dict[str, tuple[Around, set[bytes]]] = {}
        self._empty: dict[str, dict[int, int]] = {}
        """By topic and partition, the offset up to which no row is left: what comes behind it is all that need be read next time."""
        self._decode = _event.decode

    def through(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts, with the deletes of rows that are gone."""
        for part in parts:
            for around in part.emptied:
                self._left[around.topic] = (around, self._keys(around.topic))
            if part.emptied:
                part = part._replace(records=self._with_keys(part.records))  # noqa: PLW2901
            if part.truncated:
                yield from self._row_by_row(part)
            elif self._left:
                yield from self._without(part)
            else:
                yield part

    def _row_by_row(self, part: Part) -> Iterator[Part]:
        """What comes before a truncate goes out first: it may be about rows that are deleted then."""
        passed = 0
        for at, record in enumerate(part.records):
            around = self._truncate(record)
            if around is None:
                continue
            if at > passed:
                yield Part(part.records[passed:at], None)
            passed = at + self._compacted(around.topic)
            yield from _deletes(around, self._keys(around.topic))
        yield Part(part.records[passed:], part.position)

    def _with_keys(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records without truncates of compacted topics."""
        return [each for each in records if self._truncate(each) is None or not self._compacted(each.topic)]

    def _truncate(self, record: Record) -> Around | None:
        """What stands around a truncate; None for any other record."""
        if record.key is not None or record.value is None or record.topic.endswith(".schema"):
            return None
        event = self._decode(record.value)
        if event.op != "t":
            return None
        return Around(record.topic, bytes(event.source).decode("latin-1"), stamp(), record.committed_ms)

    def _keys(self, topic: str) -> set[bytes]:
        """The keys that a reader of the topic has who takes no notice of truncates; of what we have not committed yet, too."""
        keys: set[bytes] = set()
        self._flush()
        if topic not in self._client.partitions():
            return keys
        empty, said = self._empty.get(topic, {}), time.monotonic()
        sure = self._ends(topic)
        rest = {partition: max(end, empty.get(partition, 0)) for partition, end in sure.items()}
        self._empty[topic] = self._ends(topic, uncommitted=True)
        for messages in (
            self._client.read([topic], {topic: sure}, since={topic: empty}),
            # Behind what is committed there is one open transaction: ours.
            self._client.read([topic], since={topic: rest}, uncommitted=True),
        ):
            for message in messages:
                if message.value() is None:
                    keys.discard(message.key())
                elif message.key() is not None:
                    keys.add(message.key())
                if time.monotonic() - said > ALIVE_S:
                    said = time.monotonic()
                    self._alive()
        return keys

    def _ends(self, topic: str, *, uncommitted: bool = False) -> dict[int, int]:
        found = self._client.end_offsets([topic], uncommitted=uncommitted)
        return {partition: end for (_, partition), end in found.items()}

    def _without(self, part: Part) -> Iterator[Part]:
        for topic, key, _, _ in part.records:
            if key is not None and topic in self._left:
                self._left[topic][1].discard(key)
        if part.position is None:
            yield part
            return
        yield part._replace(position=None)
        left, self._left = self._left, {}
        for around, keys in left.values():
            yield from _deletes(around, keys)
        yield Part([], part.position)


def _deletes(around: Around, keys: set[bytes]) -> Iterator[Part]:
    records: list[Record] = []
    for key in keys:
        records += removed(around, key)
        if len(records) >= 2 * PART_KEYS:
            yield Part(records, None)
            records = []
    if records:
        yield Part(records, None)
