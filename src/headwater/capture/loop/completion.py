"""Completion: records whose row lacks values get these values before they are published.

A database may send only those large values of a row that a change has touched (PostgreSQL: TOAST,
docs/capture.md). The record would then contain less than the one before it, and compaction could remove that
one. Values that a change did not touch are those of the row before it, so they are taken from the newest
record of the row in its topic. From the first such record of a topic on, its rows are kept in a file
(`NewestRows`); a table whose rows are always complete costs nothing.

Values that the topic does not have are read from the table. They may be those of a later change, which the
stream then has too: the topic ends with the rows of the table, but this record is ahead of its time. A row
that was deleted since keeps the placeholder until its delete.
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
from headwater.capture.loop.newest_rows import FILE, NewestRows
from headwater.capture.source import Columns, Part, Partial, Record, RereadSource, Source
from headwater.capture.state import schemas
from headwater.client.client import Client
from headwater.errors import MachineError, UnavailableError

__all__ = ["Completion"]

SAVE_S = 2.0
"""How often the rows are saved; a start reads what was published since."""
PART_BYTES = 8 << 20
AHEAD_BYTES = 8 << 20
REREAD_ROWS = 100
"""How many rows are read from the table at a time."""
MARKS = tuple(text.strip('"').encode() for text in (UNAVAILABLE, UNAVAILABLE_BYTES))
PLACEHOLDERS = frozenset(text.encode() for text in (UNAVAILABLE, UNAVAILABLE_BYTES, f"[{UNAVAILABLE}]"))

logger = logging.getLogger(__name__)


class _Event(msgspec.Struct):
    op: str
    after: msgspec.Raw = msgspec.Raw(b"null")


_event = msgspec.json.Decoder(_Event).decode
_columns = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Completion:
    """Completes the records of one capture.

    One thread calls: `catch_up` before a reading, `complete` for its parts, `committed` after each commit.
    Records of the topic ``outbox`` are left as they are, since they are not published there.
    """

    def __init__(
        self, name: str, source: Source, client: Client, folder: Path | None, outbox: str | None = None
    ) -> None:
        self._name = name
        self._source = source
        self._client = client
        self._folder = folder
        self._outbox = outbox
        self._store: NewestRows | None = None
        self._last_deleted: tuple[str, bytes, bytes | None] = ("", b"", None)
        """Topic, key and row: a change of its key deletes a row and creates it again."""
        self._reread: dict[tuple[str, bytes | None], Mapping[str, bytes]] = {}
        self._saved = 0.0

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def catch_up(self, alive: Callable[[], bool]) -> bool:
        """Reads what was published since the rows were saved; called while no transaction of the log is open.

        ``alive`` is called at intervals; the result is False as soon as it returns False.
        """
        with _border():
            if self._store is None and self._folder is not None and (self._folder / FILE).exists():
                self._store = NewestRows(self._folder)
            if self._store is None:
                return True
            self._store.roll_back()
            return all(self._read(self._store, topic, alive) for topic in self._store.topics)

    def complete(self, parts: Iterator[Part]) -> Iterator[Part]:
        """The parts with complete records.

        UnavailableError at the first incomplete record of a topic: the loop then starts again with
        `catch_up`.
        """
        for part in parts:
            if part.partial:
                self._require({record.topic for record in part.records if isinstance(record, Partial)})
            if self._store is None or not self._store.topics:
                yield part
            else:
                yield from self._completed(self._store, part)

    def committed(self) -> None:
        """Everything published is committed in the log, and no transaction is open."""
        store, now = self._store, time.monotonic()
        if store is None or not store.dirty or now - self._saved < SAVE_S:
            return
        with _border():
            for topic in store.topics:
                store.advance(topic, self._ends(topic))
            store.commit()
        self._saved = now

    def _require(self, topics: set[str]) -> None:
        with _border():
            if self._store is None:
                self._store = NewestRows(self._folder)
            new = sorted(topics - {*self._store.topics, self._outbox})
            if not new:
                return
            self._store.roll_back()
            for topic in new:
                self._store.add(topic)
        tables = ", ".join(topic.removeprefix(f"{self._name}.") for topic in new)
        raise UnavailableError(
            f"updates of {tables} do not contain large values that they leave unchanged",
            hint="they are taken from the topic from now on",
        )

    def _read(self, store: NewestRows, topic: str, alive: Callable[[], bool]) -> bool:
        saved, ends = store.offsets(topic), self._ends(topic)
        if saved and any(offset > ends.get(number, 0) for number, offset in saved.items()):
            logger.warning("topic %s was created again: its rows are read from its beginning", topic)
            store.clear(topic)
            saved = None
        if saved is not None or not self._was_retyped(topic):
            since, saved_at = dict(saved or {}), time.monotonic()
            for message in self._client.read(
                [topic], {topic: ends}, since={topic: saved or {}}, ahead_bytes=AHEAD_BYTES
            ):
                with contextlib.suppress(msgspec.MsgspecError):  # a record of another writer
                    self._fold(store, topic, message.key(), message.value())
                since[message.partition()] = message.offset() + 1
                if time.monotonic() - saved_at > SAVE_S:
                    saved_at = time.monotonic()
                    store.advance(topic, since)
                    store.commit()
                    if not alive():
                        return False
        store.advance(topic, ends)
        store.commit()
        return True

    def _was_retyped(self, topic: str) -> bool:
        """Whether a column has had another type.

        The database does not send rows that ALTER TABLE rewrites, so the topic may have old values.
        """
        types: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for value in schemas(self._client, self._name):
            version = msgspec.json.decode(value)
            if topic == f"{self._name}.{version['table']}":
                for column in version["columns"]:
                    types[column["name"]].add((column["type"], column["modifier"]))
        return any(len(column_types) > 1 for column_types in types.values())

    def _ends(self, topic: str) -> dict[int, int]:
        return {partition: end for (_, partition), end in self._client.end_offsets([topic]).items()}

    def _completed(self, store: NewestRows, part: Part) -> Iterator[Part]:
        """The part, divided if the added values make it large."""
        if isinstance(part.records, Columns):
            if part.records.topic in store:
                with _border():
                    for _, key, value, _ in part.records:
                        self._fold(store, part.records.topic, key, value)
            yield part
            return
        records: list[Record] = []
        size = 0
        for at, record in enumerate(part.records):
            if record.topic in store:
                with _border():
                    if isinstance(record, Partial):
                        record = self._filled(store, record, part.records, at)  # noqa: PLW2901
                        size += len(record.value or b"")
                    self._apply(store, record)
            records.append(record)
            if size >= PART_BYTES:
                yield Part(records, None, truncated=part.truncated)
                records, size = [], 0
        self._reread = {}
        yield part._replace(records=records, partial=False)

    def _apply(self, store: NewestRows, record: Record) -> None:
        if record.key is None and record.value is not None and _event(record.value).op == "t":
            store.clear(record.topic)
        self._fold(store, record.topic, record.key, record.value)

    def _fold(self, store: NewestRows, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Applies a record.

        A truncate, without a key, changes nothing: its rows are deleted one by one before it.
        """
        if key is None:
            return
        after = b"null" if value is None else bytes(_event(value).after)
        if after == b"null":
            if value is not None:
                self._last_deleted = (topic, key, store.row(topic, key))
            store.delete(topic, key)
            return
        if any(mark in after for mark in MARKS):
            after = msgspec.json.encode(
                _columns(after) | self._values(store.row(topic, key), _columns(after))
            )
        store.put(topic, key, after)

    def _values(self, row: bytes | None, partial: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
        """The columns of a row for which a partial row has placeholders."""
        missing = {name for name, raw in partial.items() if bytes(raw) in PLACEHOLDERS}
        return {} if row is None else {name: raw for name, raw in _columns(row).items() if name in missing}

    def _filled(self, store: NewestRows, record: Partial, records: Sequence[Record], at: int) -> Record:
        topic, key, _, committed_ms = record
        unsent = record.unsent
        if not store.fits(topic, unsent.columns):
            store.clear(topic)
            store.fits(topic, unsent.columns)
        values = self._from_topic(store, record)
        if len(values) < len(unsent.columns) and key is not None:
            values = dict(self._from_table(store, record, records[at + 1 :])) | values
        if len(values) < len(unsent.columns):
            logger.info("capture %s: a row of %s was deleted before its values were read", self._name, topic)
        return Record(topic, key, unsent.complete(values), committed_ms)

    def _from_topic(self, store: NewestRows, record: Partial) -> dict[str, bytes]:
        """The values that the row had before the change."""
        key = record.unsent.old_key or record.key or b""
        moved = record.unsent.old_key is not None and self._last_deleted[:2] == (record.topic, key)
        row = self._last_deleted[2] if moved else store.row(record.topic, key)
        if row is None:
            return {}
        values = {name: bytes(raw) for name, raw in _columns(row).items() if name in record.unsent.columns}
        return {name: raw for name, raw in values.items() if raw not in PLACEHOLDERS}

    def _from_table(self, store: NewestRows, record: Partial, later: Sequence[Record]) -> Mapping[str, bytes]:
        """The values that the table has now, read together with those of later records of the part."""
        if not isinstance(self._source, RereadSource):
            return {}
        if (record.topic, record.key) not in self._reread:
            batch = [record]
            for other in later:
                if len(batch) == REREAD_ROWS:
                    break
                if isinstance(other, Partial) and other.topic == record.topic and self._lacks(store, other):
                    batch.append(other)
            values = self._source.reread(batch)
            self._reread = {(other.topic, other.key): values.get(other.key or b"", {}) for other in batch}
        return self._reread[record.topic, record.key]

    def _lacks(self, store: NewestRows, record: Partial) -> bool:
        return len(self._from_topic(store, record)) < len(record.unsent.columns)


@contextlib.contextmanager
def _border() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise MachineError(
            "the file with the newest rows of a capture failed", got=str(error), hint="is the disk full?"
        ) from error
