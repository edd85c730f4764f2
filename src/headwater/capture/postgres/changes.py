"""Changes: from the messages of a replication stream to records; its only I/O is `Spill`."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headwater.capture import envelope
from headwater.capture.envelope import Hole
from headwater.capture.postgres.messages import (
    SHORT_BYTES,
    TUPLE_AT,
    Begin,
    Commit,
    Event,
    Relation,
    Shape,
    UnsentValueError,
    relation,
)
from headwater.capture.postgres.partial_rows import Update, update_records
from headwater.capture.postgres.spill import Spill
from headwater.capture.postgres.table_schema import TableSchema, table_schema
from headwater.capture.postgres.values import Types
from headwater.capture.reread.schema_versions import Versions
from headwater.capture.source import EventContext, Partial, Record

__all__ = ["VERSION", "Changes", "TableDescription", "sequence", "source_block"]

VERSION = "headwater"
REPLAY_RECORDS = 5_000
REPLAY_BYTES = 8 << 20
"""The size of the steps in which a streamed transaction is replayed."""
INSERT, UPDATE, NEW, STREAM_STOP = b"IUNE"
_new = tuple.__new__


class TableDescription(NamedTuple):
    """What is known of a table besides its Relation message."""

    key: tuple[str, ...]
    types: Types


class _Table:
    """A table at its current version, and the texts around its rows in the current transaction."""

    __slots__ = (
        "block",
        "create",
        "epoch",
        "head",
        "middle",
        "relation",
        "shape",
        "since",
        "skipped",
        "topic",
        "update",
    )

    def __init__(
        self, relation: Relation, topic: str, shape: Shape, block: Callable[..., str], since: int
    ) -> None:
        self.relation = relation
        self.topic = topic
        self.shape = shape
        self.block = block
        self.since = since
        self.epoch: object = None
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
    """The piece of a sequence: a JSON array of two texts in a JSON string."""
    before = "null" if last is None else f'\\"{last}\\"'
    return f'"[{before},\\"{lsn}\\"]"'


class Changes:
    """Assembles records.

    ``records[:done]`` belong to ended transactions, the last at ``lsn``; the caller removes them.

    A streamed transaction is kept in a `Spill` until its commit. Then `take` returns an iterator that replays
    it, and the caller may remove records after each of its steps.
    """

    def __init__(
        self,
        name: str,
        database: str,
        describe: Callable[[Relation], TableDescription],
        *,
        lsn: int,
        last: int | None = None,
        since: Mapping[str, int] | None = None,
        versions: Versions[TableSchema] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.records: list[Record] = []
        self.done = 0
        self.lsn = lsn
        self.transactions = 0
        self.truncated = False
        """Whether the records may contain a truncate; the caller resets it."""
        self.partial = False
        """Whether the records may contain a `Partial`; the caller resets it."""
        self.at_us = 0
        """When the last transaction was committed."""
        self._name = name
        self._database = database
        self._describe = describe
        self._last = last
        self._since = since or {}
        self._versions = Versions(TableSchema) if versions is None else versions
        self._folder = folder
        self._tables: dict[str, _Table] = {}
        self._begin = Begin(0, 0, 0)
        self._ms = 0
        self._epoch: object = None
        self._events: dict[str, tuple[Event, Event]] = {}
        """By kind and table, as in a message, the functions that create its record from the row, in this
        epoch."""
        self._created = envelope.stamp()
        self._spills: dict[int, Spill] = {}
        self._stream: Spill | None = None
        self._message_block = source_block(name, database, "", "", "false")

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and not ended; a streamed one is replayed after its end."""
        return self._begin.xid != 0

    @property
    def committed_at(self) -> int:
        """The LSN of the commit of the current transaction."""
        return self._begin.final_lsn

    def restamp(self) -> None:
        """Gives the next events the current time."""
        self._created = envelope.stamp()
        self._renew()

    def _renew(self) -> None:
        """Begins an epoch: the texts around rows change."""
        self._epoch = object()
        self._events.clear()

    def close(self) -> None:
        for spill in self._spills.values():
            spill.close()

    def take(self, data: bytes) -> Iterator[None] | None:
        """Takes one message with its header of 25 bytes."""
        t = data.decode("latin-1")
        events = self._events.get(t[25:31])
        if events is None:
            return self._take_first(t, data)
        short, long = events
        try:
            self.records.append(short(t, data) if len(data) < SHORT_BYTES else long(t, data))
        except UnsentValueError:
            table = self._tables[t[26:30]]
            new, _ = table.shape.pieces(t, data, TUPLE_AT)
            self._update(table, Update(t, new, TUPLE_AT))
        return None

    def _take_first(self, t: str, data: bytes) -> Iterator[None] | None:
        """A message without a row, or the first row of its kind and table in an epoch."""
        kind = data[25]
        if self._stream is not None and kind != STREAM_STOP:
            self._stream.add(int.from_bytes(data[26:30]), data[:26] + data[30:])
            return None
        if kind not in {INSERT, UPDATE} or data[30] != NEW:
            return self._take_other(t[25], t, data)
        table = self._tables[t[26:30]]
        self._enter(table)
        if not table.skipped:
            tail = table.create if kind == INSERT else table.update
            shared = (table.topic, self._ms, table.head, table.middle, tail)
            self._events[t[25:31]] = (table.shape.short(*shared), table.shape.long(*shared))
            self.take(data)
        return None

    def _take_other(self, kind: str, t: str, data: bytes) -> Iterator[None] | None:
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
                return self._take_stream(kind, t)
        return None

    def _take_stream(self, kind: str, t: str) -> Iterator[None] | None:
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
                self._spills[xid].roll_back(inner)
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
        """Builds the texts around a table's rows, once in each epoch."""
        if table.epoch is self._epoch:
            return
        table.epoch = self._epoch
        table.skipped = self._begin.final_lsn < table.since
        source = self._source(table.block, "\0")
        table.head, table.middle, rest = source.split("\0")
        table.create = f'{rest},"transaction":null,"op":"c",{self._created}}}'
        table.update = f'{rest},"transaction":null,"op":"u",{self._created}}}'

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

    def _context(self, table: _Table, t: str) -> EventContext:
        lsn = int.from_bytes(t[1:9].encode("latin-1"))
        return EventContext(table.topic, self._source(table.block, lsn), self._created, self._ms)

    def _change_with_old(self, kind: str, t: str, data: bytes) -> None:
        table = self._tables[t[26:30]]
        self._enter(table)
        if table.skipped:
            return
        shape, context = table.shape, self._context(table, t)
        old, end = shape.pieces(t, data, 33)
        before = shape.fill(old)
        old_key = None if shape.key is None else shape.key(before)
        if kind == "D":
            self.records += envelope.delete_events(context, old_key, shape.row(before))
            return
        new, _ = shape.pieces(t, data, end + 3)
        sent = [t[30] == "O" or column.is_key for column in table.relation.columns]
        merged = [o if n is None and old_sent else n for n, o, old_sent in zip(new, old, sent, strict=True)]
        self._update(table, Update(t, merged, end + 3, shape.row(before), old_key))

    def _update(self, table: _Table, update: Update) -> None:
        context = self._context(table, update.message)
        self.records += update_records(context, table.relation, table.shape, self._begin.xid, update)
        self.partial = self.partial or isinstance(self.records[-1], Partial)

    def _truncate(self, t: str) -> None:
        for at in range(31, len(t), 4):
            table = self._tables.get(t[at : at + 4])
            if table is not None and self._begin.final_lsn >= table.since:
                self.records.append(envelope.truncate_event(self._context(table, t)))
                self.truncated = True

    def _message(self, t: str) -> None:
        """A logical message, as an event of ``<name>.message``.

        One outside of a transaction is left out, since it has no place in the commit order.
        """
        if not ord(t[26]) & 1:
            return
        end = t.index("\0", 35)
        prefix, content = t[35:end], t[end + 5 :]
        lsn = int.from_bytes(t[1:9].encode("latin-1"))
        ms = self._created.split(",")[0]
        body = b64encode(content.encode("latin-1")).decode()
        key = f'{{"prefix":{envelope.quote(prefix)}}}'
        value = (
            f'{{"op":"m",{ms},"source":{self._source(self._message_block, lsn)},"transaction":null,'
            f'"message":{{"prefix":{envelope.quote(prefix)},"content":"{body}"}}}}'
        )
        self.records.append(
            Record(f"{self._name}.message", key.encode("latin-1"), value.encode("latin-1"), self._ms)
        )

    def _learn(self, t: str) -> None:
        self._renew()
        table = relation(t[25:])
        description = self._describe(table)
        shape = Shape(table, description.key, description.types)
        name = f"{table.schema}.{table.name}"
        block = source_block(self._name, self._database, table.schema, table.name, "false")
        since = self._since.get(name, 0)
        self._tables[t[26:30]] = _Table(table, f"{self._name}.{name}", shape, block, since)
        if self._begin.final_lsn >= since:  # a version from before the snapshot would seem new again
            schema = table_schema(table, description.key, self._begin.final_lsn)
            self.records += self._versions.record(self._name, schema)
