"""Completion: records whose row lacks values get them before they are published.

A database may send only those large values of a row that a change has touched (PostgreSQL: TOAST, docs/capture.md). The record
would then say less than the one before it, and compaction would drop the one that knew. What the change did not touch is what the row had
before it, so it is taken from there: from the newest record of the row in its topic. The rows of a topic in which a record lacked
something once are kept beside the capture (`Kept`); a table that is always sent whole costs nothing.

Where the topic does not know a value, the table is asked. It may answer as of a later change, which then comes in the stream: the topic ends
with the table's rows, but such a record is ahead of its time in this value. A row that is gone already keeps the placeholder until
its delete comes.
"""

import contextlib
import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headwater.capture.envelope import UNAVAILABLE, UNAVAILABLE_BYTES
from headwater.capture.kept import FILE, Kept
from headwater.capture.ledger import schemas
from headwater.capture.source import Columns, Part, Partial, Record, Rereadable, Source
from headwater.client import Client
from headwater.errors import Away, MachineError

__all__ = ["Completion"]

SAVE_S = 2.0
"""So often what is kept is saved: a start reads again what was published since."""
PART_BYTES = 8 << 20
AHEAD_BYTES = 8 << 20
REREAD_ROWS = 100
"""So many rows are asked for at a time."""
MARKS = tuple(text.strip('"').encode() for text in (UNAVAILABLE, UNAVAILABLE_BYTES))
PLACEHOLDERS = frozenset(text.encode() for text in (UNAVAILABLE, UNAVAILABLE_BYTES, f"[{UNAVAILABLE}]"))

logger = logging.getLogger(__name__)


class _Event(msgspec.Struct):
    op: str
    after: msgspec.Raw = msgspec.Raw(b"null")


_event = msgspec.json.Decoder(_Event).decode
_columns = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Completion:
    """The completion of one capture's records. One thread calls: `catch_up` before a reading, `through` around it, `committed` after each commit.

    Records of the topic ``apart``, an outbox, are left as they are: they are not published there.
    """

    def __init__(
        self, name: str, source: Source, client: Client, folder: Path | None, apart: str | None = None
    ) -> None:
        self._name = name
        self._source = source
        self._client = client
        self._folder = folder
        self._apart = apart
        self._store: Kept | None = None
        self._gone: tuple[str, bytes, bytes | None] = ("", b"", None)
        """The row that was deleted last: an update of its key deletes it and creates it again."""
        self._asked: dict[tuple[str, bytes | None], Mapping[str, bytes]] = {}
        self._saved = 0.0

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def catch_up(self, alive: Callable[[], bool]) -> bool:
        """Takes in what was published since the rows were saved. ``alive`` is asked now and then; False when it has said no.

        No transaction of the log is open, so that what is read is all that there is.
        """
        with _border():
            if self._store is None and self._folder is not None and (self._folder / FILE).exists():
                self._store = Kept(self._folder)
            if self._store is None:
                return True
            self._store.roll_back()
            return all(self._read(self._store, topic, alive) for topic in self._store.topics)

    def through(self, parts: Iterator[Part]) -> Iterator[Part]:
        """The parts with their records complete. Away, to begin again with `catch_up`, when a topic is the first time in need of it."""
        for part in parts:
            if part.partial:
                self._need({record.topic for record in part.records if isinstance(record, Partial)})
            if self._store is None or not self._store.topics:
                yield part
            else:
                yield from self._completed(self._store, part)

    def committed(self) -> None:
        """What was published is committed in the log, and no transaction is open."""
        store, now = self._store, time.monotonic()
        if store is None or not store.dirty or now - self._saved < SAVE_S:
            return
        with _border():
            for topic in store.topics:
                store.advance(topic, self._ends(topic))
            store.commit()
        self._saved = now

    def _need(self, topics: set[str]) -> None:
        with _border():
            if self._store is None:
                self._store = Kept(self._folder)
            new = sorted(topics - {*self._store.topics, self._apart})
            if not new:
                return
            self._store.roll_back()
            for topic in new:
                self._store.add(topic)
        tables = ", ".join(topic.removeprefix(f"{self._name}.") for topic in new)
        raise Away(
            f"updates of {tables} do not bring large values that they leave as they are",
            hint="they are looked up in the topic from now on",
        )

    def _read(self, store: Kept, topic: str, alive: Callable[[], bool]) -> bool:
        known, ends = store.offsets(topic), self._ends(topic)
        if known and any(offset > ends.get(number, 0) for number, offset in known.items()):
            logger.warning("topic %s was made again: its rows are read from its beginning", topic)
            store.clear(topic)
            known = None
        if known is not None or not self._retyped(topic):
            since, said = dict(known or {}), time.monotonic()
            for message in self._client.read(
                [topic], {topic: ends}, since={topic: known or {}}, ahead_bytes=AHEAD_BYTES
            ):
                with contextlib.suppress(msgspec.MsgspecError):  # somebody else's
                    self._fold(store, topic, message.key(), message.value())
                since[message.partition()] = message.offset() + 1
                if time.monotonic() - said > SAVE_S:
                    said = time.monotonic()
                    store.advance(topic, since)
                    store.commit()
                    if not alive():
                        return False
        store.advance(topic, ends)
        store.commit()
        return True

    def _retyped(self, topic: str) -> bool:
        """Whether a column has had another type: rows that an ALTER TABLE writes again do not come, and the topic has them as they were."""
        types: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for value in schemas(self._client, self._name):
            version = msgspec.json.decode(value)
            if topic == f"{self._name}.{version['table']}":
                for column in version["columns"]:
                    types[column["name"]].add((column["type"], column["modifier"]))
        return any(len(each) > 1 for each in types.values())

    def _ends(self, topic: str) -> dict[int, int]:
        return {partition: end for (_, partition), end in self._client.end_offsets([topic]).items()}

    def _completed(self, store: Kept, part: Part) -> Iterator[Part]:
        """The part, in several where what was missing makes it large."""
        if isinstance(part.records, Columns):
            if part.records.topic in store:
                with _border():
                    for _, key, value, _ in part.records:
                        self._fold(store, part.records.topic, key, value)
            yield part
            return
        made: list[Record] = []
        size = 0
        for at, record in enumerate(part.records):
            if record.topic in store:
                with _border():
                    if isinstance(record, Partial):
                        record = self._filled(store, record, part.records, at)  # noqa: PLW2901
                        size += len(record.value or b"")
                    self._follow(store, record)
            made.append(record)
            if size >= PART_BYTES:
                yield Part(made, None, truncated=part.truncated)
                made, size = [], 0
        self._asked = {}
        yield part._replace(records=made, partial=False)

    def _follow(self, store: Kept, record: Record) -> None:
        if record.key is None and record.value is not None and _event(record.value).op == "t":
            store.clear(record.topic)
        self._fold(store, record.topic, record.key, record.value)

    def _fold(self, store: Kept, topic: str, key: bytes | None, value: bytes | None) -> None:
        """A truncate has no key; in the topic, rows are deleted one by one before it."""
        if key is None:
            return
        after = b"null" if value is None else bytes(_event(value).after)
        if after == b"null":
            if value is not None:
                self._gone = (topic, key, store.row(topic, key))
            store.delete(topic, key)
            return
        if any(mark in after for mark in MARKS):
            after = msgspec.json.encode(_columns(after) | self._known(store.row(topic, key), _columns(after)))
        store.put(topic, key, after)

    def _known(self, row: bytes | None, wanted: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
        """What a row has of the columns for which another one has a placeholder."""
        missing = {name for name, raw in wanted.items() if bytes(raw) in PLACEHOLDERS}
        return {} if row is None else {name: raw for name, raw in _columns(row).items() if name in missing}

    def _filled(self, store: Kept, record: Partial, records: Sequence[Record], at: int) -> Record:
        topic, key, _, committed_ms = record
        unsent = record.unsent
        if not store.fits(topic, unsent.columns):
            store.clear(topic)
            store.fits(topic, unsent.columns)
        values = self._from_topic(store, record)
        if len(values) < len(unsent.columns) and key is not None:
            values = dict(self._from_table(store, record, records[at + 1 :])) | values
        if len(values) < len(unsent.columns):
            logger.info("capture %s: a row of %s was gone before its values were read", self._name, topic)
        return Record(topic, key, unsent.completed(values), committed_ms)

    def _from_topic(self, store: Kept, record: Partial) -> dict[str, bytes]:
        """What the row had before the change."""
        key = record.unsent.old_key or record.key or b""
        moved = record.unsent.old_key is not None and self._gone[:2] == (record.topic, key)
        row = self._gone[2] if moved else store.row(record.topic, key)
        if row is None:
            return {}
        found = {name: bytes(raw) for name, raw in _columns(row).items() if name in record.unsent.columns}
        return {name: raw for name, raw in found.items() if raw not in PLACEHOLDERS}

    def _from_table(self, store: Kept, record: Partial, later: Sequence[Record]) -> Mapping[str, bytes]:
        """What the table has now, of this row and of later ones that will be asked for."""
        if not isinstance(self._source, Rereadable):
            return {}
        if (record.topic, record.key) not in self._asked:
            wanted = [record]
            for each in later:
                if len(wanted) == REREAD_ROWS:
                    break
                if isinstance(each, Partial) and each.topic == record.topic and self._lacks(store, each):
                    wanted.append(each)
            found = self._source.reread(wanted)
            self._asked = {(each.topic, each.key): found.get(each.key or b"", {}) for each in wanted}
        return self._asked[record.topic, record.key]

    def _lacks(self, store: Kept, record: Partial) -> bool:
        return len(self._from_topic(store, record)) < len(record.unsent.columns)


@contextlib.contextmanager
def _border() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise MachineError(
            "the rows beside the capture cannot be kept", got=str(error), hint="is the disk full?"
        ) from error
