"""Changes: from the messages of a replication stream to records, transaction by transaction. No I/O but for what is spilled to disk."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.capture import envelope
from headwater.capture.envelope import Around, Hole
from headwater.capture.pgoutput import (
    SHORT_BYTES,
    TUPLE_AT,
    Begin,
    Commit,
    Event,
    Relation,
    Shape,
    Untouched,
    lsn_text,
    relation,
)
from headwater.capture.pgpartial import Update, update_records
from headwater.capture.pgspill import Spill
from headwater.capture.pgtypes import Types
from headwater.capture.source import Partial, Record

__all__ = ["VERSION", "Changes", "Described", "Versions", "sequence", "source_block"]

VERSION = "headwater"
REPLAY_RECORDS = 5_000
REPLAY_BYTES = 8 << 20
"""So much of a large transaction are handed over at a time."""
INSERT, UPDATE, NEW, STREAM_STOP = b"IUNE"
_new = tuple.__new__


class Described(NamedTuple):
    """What the database says of a table beyond its Relation message."""

    key: tuple[str, ...]
    types: Types


class _Table:
    """A table as it is now, and the texts around its rows in the current transaction."""

    __slots__ = (
        "block",
        "context",
        "create",
        "described",
        "head",
        "middle",
        "shape",
        "since",
        "skipped",
        "topic",
        "update",
    )

    def __init__(
        self, described: Relation, topic: str, shape: Shape, block: Callable[..., str], since: int
    ) -> None:
        self.described = described
        self.topic = topic
        self.shape = shape
        self.block = block
        self.since = since
        self.context: object = None
        self.skipped = False
        self.head = self.middle = self.create = self.update = ""


def source_block(name: str, database: str, schema: str, table: str, snapshot: str) -> Callable[..., str]:
    """The source block of a table's events, with holes for when and where."""
    return envelope.block(
        {
            "version": VERSION,
            "connector": "postgresql",
            "name": name,
            "ts_ms": Hole("ms"),
            "snapshot": snapshot,
            "db": database,
            "sequence": Hole("sequence"),
            "ts_us": Hole("us"),
            "ts_ns": Hole("ns"),
            "schema": schema,
            "table": table,
            "txId": Hole("xid"),
            "lsn": Hole("lsn"),
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
        }
    )


def sequence(last: int | None, lsn: object) -> str:
    """The piece of a sequence: a JSON array of two texts, inside a JSON string."""
    before = "null" if last is None else f'\\"{last}\\"'
    return f'"[{before},\\"{lsn}\\"]"'


class Versions:
    """The newest version of each table's schema, as ``<name>.schema`` has them: a version is published once, not at every start."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, object]] = {}

    def recall(self, value: bytes) -> None:
        """A record of the topic."""
        known = msgspec.json.decode(value)
        columns = tuple((c["name"], c["type"], c["modifier"]) for c in known["columns"])
        self._newest[known["table"]] = (known["version"], (columns, tuple(known["key"])))

    def record(self, name: str, described: Relation, key: tuple[str, ...], lsn: int) -> list[Record]:
        """The record of a version that is new; none of one that is known."""
        table = f"{described.schema}.{described.name}"
        columns = tuple((c.name, c.oid, c.typmod) for c in described.columns)
        version, known = self._newest.get(table, (0, None))
        if known == (columns, key):
            return []
        self._newest[table] = (version + 1, (columns, key))
        shown = [{"name": n, "type": oid, "modifier": typmod} for n, oid, typmod in columns]
        value = {"table": table, "version": version + 1, "lsn": lsn_text(lsn), "key": key, "columns": shown}
        return [Record(f"{name}.schema", table.encode(), msgspec.json.encode(value), 0)]


class Changes:
    """Assembles records. ``records[:done]`` belong to transactions that have ended, the last of them at ``lsn``; the caller takes them away.

    A streamed transaction is kept aside until its commit, and comes in parts then: `take` gives back an iterator, and after each
    step the caller may take records away.
    """

    def __init__(
        self,
        name: str,
        database: str,
        describe: Callable[[Relation], Described],
        *,
        lsn: int,
        last: int | None = None,
        since: Mapping[str, int] | None = None,
        versions: Versions | None = None,
        folder: Path | None = None,
    ) -> None:
        self.records: list[Record] = []
        self.done = 0
        self.lsn = lsn
        self.transactions = 0
        self.truncated = False
        """Whether there may be a truncate among the records; for the caller to reset."""
        self.partial = False
        """The same of records that lack values."""
        self.at_us = 0
        """When the last transaction was committed."""
        self._name = name
        self._database = database
        self._describe = describe
        self._last = last
        self._since = since or {}
        self._versions = Versions() if versions is None else versions
        self._folder = folder
        self._tables: dict[str, _Table] = {}
        self._begin = Begin(0, 0, 0)
        self._ms = 0
        self._context: object = None
        self._events: dict[str, tuple[Event, Event]] = {}
        """By kind and table, as a message begins, what makes its record: while nothing else than the row is new."""
        self._made = envelope.stamp()
        self._spills: dict[int, Spill] = {}
        self._stream: Spill | None = None
        self._message_block = source_block(name, database, "", "", "false")

    @property
    def open(self) -> bool:
        """Whether a transaction has begun whose end has not come yet; one that is streamed comes after its end."""
        return self._begin.xid != 0

    @property
    def committed_at(self) -> int:
        """Where the commit of the transaction stands that is being read."""
        return self._begin.final_lsn

    def restamp(self) -> None:
        """Events from here on were made now."""
        self._made = envelope.stamp()
        self._renew()

    def _renew(self) -> None:
        """What stands around rows is another from here on."""
        self._context = object()
        self._events.clear()

    def close(self) -> None:
        for spill in self._spills.values():
            spill.close()

    def take(self, data: bytes) -> Iterator[None] | None:
        """One message with its header of 25 bytes."""
        t = data.decode("latin-1")
        events = self._events.get(t[25:31])
        if events is None:
            return self._take_first(t, data)
        short, long = events
        try:
            self.records.append(short(t, data) if len(data) < SHORT_BYTES else long(t, data))
        except Untouched:
            table = self._tables[t[26:30]]
            new, _ = table.shape.pieces(t, data, TUPLE_AT)
            self._update(table, Update(t, new, TUPLE_AT))
        return None

    def _take_first(self, t: str, data: bytes) -> Iterator[None] | None:
        """A message that is no row, or the first row of its kind in a transaction."""
        kind = data[25]
        if self._stream is not None and kind != STREAM_STOP:
            self._stream.add(int.from_bytes(data[26:30]), data[:26] + data[30:])
            return None
        if kind not in {INSERT, UPDATE} or data[30] != NEW:
            return self._seldom(t[25], t, data)
        table = self._tables[t[26:30]]
        self._enter(table)
        if not table.skipped:
            tail = table.create if kind == INSERT else table.update
            around = (table.topic, self._ms, table.head, table.middle, tail)
            self._events[t[25:31]] = (table.shape.short(*around), table.shape.long(*around))
            self.take(data)
        return None

    def _seldom(self, kind: str, t: str, data: bytes) -> Iterator[None] | None:
        match kind:
            case "U" | "D":
                self._change_with_old(kind, t, data)
            case "B":
                self._enter_transaction(Begin.parse(t[25:]))
            case "C":
                self._leave_transaction(Commit.parse(t[25:]))
            case "R":
                self._learn(t)
            case "T":
                self._truncate(t)
            case "M":
                self._message(t)
            case "S" | "E" | "c" | "A":
                return self._streamed(kind, t)
        return None

    def _streamed(self, kind: str, t: str) -> Iterator[None] | None:
        if kind == "E":
            self._stream = None
            return None
        xid = int.from_bytes(t[26:30].encode("latin-1"))
        if kind == "S":
            if xid not in self._spills:
                self._spills[xid] = Spill(self._folder)
            self._stream = self._spills[xid]
            self._events.clear()
        elif kind == "c":
            commit = Commit.parse(t[25:], 6)
            return self._replay(xid, commit)
        else:
            inner = int.from_bytes(t[30:34].encode("latin-1"))
            if inner == xid and xid in self._spills:
                self._spills.pop(xid).close()
            elif xid in self._spills:
                self._spills[xid].forget(inner)
        return None

    def _replay(self, xid: int, commit: Commit) -> Iterator[None]:
        self._enter_transaction(Begin(commit.lsn, commit.at_us, xid))
        spill = self._spills.pop(xid)
        size = 0
        for message in spill.messages():
            self.take(message)
            size += len(message)
            if len(self.records) >= REPLAY_RECORDS or size >= REPLAY_BYTES:
                size = 0
                yield
        spill.close()
        self._leave_transaction(commit)
        yield

    def _enter_transaction(self, begin: Begin) -> None:
        self._begin = begin
        self._ms = begin.at_us // 1_000
        self._renew()

    def _leave_transaction(self, commit: Commit) -> None:
        self.done = len(self.records)
        self.lsn = self._last = commit.end_lsn
        self.at_us = commit.at_us
        self.transactions += 1
        self._begin = Begin(0, 0, 0)

    def _enter(self, table: _Table) -> None:
        """The texts around a table's rows, once for each transaction that changes it."""
        if table.context is self._context:
            return
        table.context = self._context
        table.skipped = self._begin.final_lsn < table.since
        source = self._source(table.block, "\0")
        table.head, table.middle, rest = source.split("\0")
        table.create = f'{rest},"transaction":null,"op":"c",{self._made}}}'
        table.update = f'{rest},"transaction":null,"op":"u",{self._made}}}'

    def _source(self, block: Callable[..., str], lsn: object) -> str:
        us = self._begin.at_us
        return block(
            ms=us // 1_000,
            us=us,
            ns=us * 1_000,
            sequence=sequence(self._last, lsn),
            xid=self._begin.xid,
            lsn=lsn,
        )

    def _around(self, table: _Table, t: str) -> Around:
        lsn = int.from_bytes(t[1:9].encode("latin-1"))
        return Around(table.topic, self._source(table.block, lsn), self._made, self._ms)

    def _change_with_old(self, kind: str, t: str, data: bytes) -> None:
        table = self._tables[t[26:30]]
        self._enter(table)
        if table.skipped:
            return
        shape, around = table.shape, self._around(table, t)
        old, end = shape.pieces(t, data, 33)
        before = shape.filled(old)
        old_key = None if shape.key is None else shape.key(before)
        if kind == "D":
            self.records += envelope.deleted(around, old_key, shape.row(before))
            return
        new, _ = shape.pieces(t, data, end + 3)
        known = [t[30] == "O" or column.is_key for column in table.described.columns]
        merged = [o if n is None and sure else n for n, o, sure in zip(new, old, known, strict=True)]
        self._update(table, Update(t, merged, end + 3, shape.row(before), old_key))

    def _update(self, table: _Table, update: Update) -> None:
        around = self._around(table, update.message)
        self.records += update_records(around, table.described, table.shape, self._begin.xid, update)
        self.partial = self.partial or isinstance(self.records[-1], Partial)

    def _truncate(self, t: str) -> None:
        for at in range(31, len(t), 4):
            table = self._tables.get(t[at : at + 4])
            if table is not None and self._begin.final_lsn >= table.since:
                self.records.append(envelope.truncated(self._around(table, t)))
                self.truncated = True

    def _message(self, t: str) -> None:
        """A logical message, as an event of ``<name>.message``; one outside of a transaction has no place in their order and is left out."""
        if not ord(t[26]) & 1:
            return
        end = t.index("\0", 35)
        prefix, content = t[35:end], t[end + 5 :]
        lsn = int.from_bytes(t[1:9].encode("latin-1"))
        ms = self._made.split(",")[0]
        body = b64encode(content.encode("latin-1")).decode()
        key = f'{{"prefix":{envelope.quoted(prefix)}}}'
        value = (
            f'{{"op":"m",{ms},"source":{self._source(self._message_block, lsn)},"transaction":null,'
            f'"message":{{"prefix":{envelope.quoted(prefix)},"content":"{body}"}}}}'
        )
        self.records.append(
            Record(f"{self._name}.message", key.encode("latin-1"), value.encode("latin-1"), self._ms)
        )

    def _learn(self, t: str) -> None:
        self._renew()
        described = relation(t[25:])
        there = self._describe(described)
        shape = Shape(described, there.key, there.types)
        name = f"{described.schema}.{described.name}"
        block = source_block(self._name, self._database, described.schema, described.name, "false")
        since = self._since.get(name, 0)
        self._tables[t[26:30]] = _Table(described, f"{self._name}.{name}", shape, block, since)
        if self._begin.final_lsn >= since:  # an older one than the snapshot has told of would be news again
            self.records += self._versions.record(self._name, described, there.key, self._begin.final_lsn)
