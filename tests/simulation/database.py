"""A scripted database for captures: tables, a log of transactions that it forgets once it may, and a `Source` that reads it.

    Database   the truth: rows by table and key, and every transaction with its LSN. The life writes to it.
    Script     what a capture opens (``headwater.capture.source.Source``): snapshot in parts, then transactions, some in several parts

A position is JSON: ``at``, the LSN up to which the stream was read, and for each table the LSN of its snapshot. An update that does not touch the large
column comes without it (`Partial`).
"""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headwater.capture import envelope
from headwater.capture.envelope import UNAVAILABLE
from headwater.capture.messages import Command, Notice
from headwater.capture.source import Columns, EventContext, Part, Partial, Record, Unsent
from headwater.errors import CaptureError, UnavailableError
from simulation.actors import current_hub

__all__ = ["RESTART", "Change", "Database", "Position", "Row", "Script", "Transaction"]

RESTART = "restart"
"""The position at which all tables begin again."""
IDLE_S = 0.9
BIG = {"big": (25, -1)}

Row = dict[str, Any]


class Change(NamedTuple):
    """One change of a row. ``op`` is c, u, d or t."""

    table: str
    op: str
    key: int = 0
    old_key: int | None = None
    before: Row | None = None
    after: Row | None = None

    @property
    def touches_big(self) -> bool:
        return self.before is None or self.after is None or self.before["big"] != self.after["big"]


class Transaction(NamedTuple):
    lsn: int
    at_ms: int
    changes: list[Change]


class Position(msgspec.Struct, frozen=True):
    """Where a capture is in the database."""

    at: int
    tables: dict[str, int]
    again: tuple[str, ...] = ()
    """Tables that begin again: with a truncate."""
    asked: tuple[tuple[str, str], ...] = ()
    """Tables whose rows are wanted beside the stream, and the id of the command."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def position(text: str) -> Position:
    return msgspec.json.decode(text, type=Position)


class Database:
    """The life owns it; sources only read."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.rows: dict[str, dict[int, Row]] = {table: {} for table in tables}
        self.log: list[Transaction] = []
        self.forgotten = 0
        """Transactions up to this LSN cannot be read any more."""
        self.away = False
        self.sources: list[Script] = []
        self._history: dict[int, dict[str, dict[int, Row]]] = {}

    @property
    def lsn(self) -> int:
        return self.log[-1].lsn if self.log else 0

    def commit(self, changes: list[Change], at_ms: int, chance: random.Random) -> None:
        """Applies a transaction; LSNs have gaps."""
        for change in changes:
            rows = self.rows[change.table]
            if change.op == "t":
                rows.clear()
            else:
                rows.pop(change.key if change.old_key is None else change.old_key, None)
                if change.after is not None:
                    rows[change.key] = change.after
        self.log.append(Transaction(self.lsn + chance.randint(1, 9), at_ms, changes))
        self._history[self.lsn] = {table: dict(rows) for table, rows in self.rows.items()}
        for source in self.sources:
            source.woken.set()

    def as_of(self, lsn: int) -> dict[str, dict[int, Row]]:
        """The rows after a transaction."""
        return self._history.get(lsn) or {table: {} for table in self.rows}

    def confirm(self, lsn: int) -> None:
        self.forgotten = max(self.forgotten, lsn)


class Script:
    """A connection of one capture's process to the database."""

    def __init__(self, database: Database, name: str, chance: random.Random) -> None:
        self._database, self._name, self._chance = database, name, chance
        self.notices: list[Notice] = []
        self._hub = current_hub()
        self.woken = threading.Event()
        database.sources.append(self)

    # ---- what the loop asks ----------------------------------------------------------------------------

    def read(self, position_text: str | None) -> Iterator[Part]:
        self._here()
        again = position_text == RESTART
        if position_text is None or again:
            begun = Position(self._database.lsn, {}, tuple(self._database.rows) if again else ())
        else:
            begun = position(position_text)
        if begun.at < self._database.forgotten:
            raise CaptureError(
                "the database no longer has what comes after the position",
                got=f"{begun.at}, it has what comes after {self._database.forgotten}",
            )
        yield from self._snapshot(begun)

    def confirm(self, position_text: str) -> None:
        self._hub.check()
        if position_text != RESTART:
            self._database.confirm(position(position_text).at)

    def close(self) -> None:
        self._hub.check()

    def with_snapshot(self, position_text: str, command: Command) -> str:
        now = position(position_text)
        if command.table not in self._database.rows:
            raise CaptureError(f"there is no table {command.table}")
        if command.incremental:
            return msgspec.structs.replace(now, asked=(*now.asked, (command.table, command.id))).text()
        tables = {table: at for table, at in now.tables.items() if table != command.table}
        return msgspec.structs.replace(now, tables=tables, again=(*now.again, command.table)).text()

    def reread(self, records: Sequence[Partial]) -> Mapping[bytes, Mapping[str, bytes]]:
        self._here()
        found = {}
        for record in records:
            rows = self._database.rows[record.topic.removeprefix(f"{self._name}.")]
            row = rows.get(msgspec.json.decode(record.key)["id"])
            if row is not None:
                found[record.key] = {"big": msgspec.json.encode(row["big"])}
        return found

    # ---- parts -----------------------------------------------------------------------------------------

    def _here(self) -> None:
        """A round trip to the database."""
        self._hub.nap(self._chance.choice((0, 0, 0.01)))
        if self._database.away:
            raise UnavailableError("the database does not answer")

    def _context(
        self, table: str, lsn: int, number: int, at_ms: int, *, snapshot: bool = False
    ) -> EventContext:
        source = {"lsn": lsn, "n": number, "table": table, "snapshot": snapshot}
        return EventContext(
            f"{self._name}.{table}", msgspec.json.encode(source).decode(), envelope.stamp(), at_ms
        )

    def _snapshot(self, now: Position) -> Iterator[Part]:
        """The tables that have none yet, each as of the moment in which it begins; then the stream."""
        for table in self._database.rows:
            if table in now.tables:
                continue
            self._here()
            lsn = self._database.lsn
            rows = list(self._database.as_of(lsn)[table].items())
            context = self._context(table, lsn, 1 << 30, 0, snapshot=True)
            if table in now.again:
                yield Part([envelope.truncate_event(context)], None, (context,))
            while rows:
                self._here()
                some, rows = rows[:3], rows[3:]
                made = [envelope.create_event(context, _key(key), _row(row), "r") for key, row in some]
                columns = Columns(context.topic, [r.key for r in made], [r.value for r in made], 0)
                yield Part(columns if self._chance.random() < 0.5 else made, None)
            left = tuple(each for each in now.again if each != table)
            now = msgspec.structs.replace(now, tables=now.tables | {table: lsn}, again=left)
            yield Part([], now.text())
        yield from self._stream(now)

    def _stream(self, now: Position) -> Iterator[Part]:
        while True:
            self._here()
            if now.asked:
                now = yield from self._beside(now)
            ready = [each for each in self._database.log if each.lsn > now.at]
            if not ready:
                self.woken.clear()
                yield Part([], self._chance.choice((None, now.text())))
                self.woken.wait(IDLE_S)
                continue
            some = ready[: self._chance.randint(1, 3)]
            records: list[Record] = []
            for transaction in some:
                records += self._records(transaction, now)
                now = msgspec.structs.replace(now, at=transaction.lsn)
            flags = {
                "truncated": any(change.op == "t" for each in some for change in each.changes),
                "partial": any(isinstance(record, Partial) for record in records),
            }
            while len(records) > 2 and self._chance.random() < 0.4:
                cut = self._chance.randint(1, len(records) - 1)
                yield Part(records[:cut], None, **flags)
                records = records[cut:]
                self._here()
            yield Part(records, now.text(), **flags)

    def _beside(self, now: Position) -> Iterator[Part]:
        """Rows that were asked for, as of the place in the stream."""
        table, name = now.asked[0]
        context = self._context(table, now.at, 1 << 30, 0, snapshot=True)
        rows = self._database.as_of(now.at)[table] if now.tables[table] <= now.at else {}
        made = [envelope.create_event(context, _key(key), _row(row), "r") for key, row in rows.items()]
        now = msgspec.structs.replace(now, asked=now.asked[1:])
        yield Part(made, now.text())
        at_ms = self._hub.clock.now_ms()
        self.notices.append(Notice("snapshot finished", at_ms, table, "", {"id": name}))
        return now

    def _records(self, transaction: Transaction, now: Position) -> list[Record]:
        made: list[Record] = []
        for number, change in enumerate(transaction.changes):
            if transaction.lsn > now.tables[change.table]:
                context = self._context(change.table, transaction.lsn, number, transaction.at_ms)
                made += _made(context, change, transaction.lsn)
        return made


def _made(context: EventContext, change: Change, lsn: int) -> list[Record]:
    key = _key(change.key)
    if change.op == "t":
        return [envelope.truncate_event(context)]
    if change.op == "c":
        return [envelope.create_event(context, key, _row(change.after))]
    if change.op == "d":
        return list(envelope.delete_events(context, key, _row(change.before)))
    old = None if change.old_key is None else _key(change.old_key)
    before = _row(change.before)
    if change.touches_big:
        return envelope.update_events(context, key, before, _row(change.after), old)
    records = envelope.update_events(context, key, before, _row(change.after, unsent=True), old)

    def completed(values: Mapping[str, bytes]) -> bytes:
        big = values.get("big", UNAVAILABLE.encode()).decode("latin-1")
        after = _row(change.after, big=big)
        return envelope.update_events(context, key, before, after, old)[-1].value

    unsent = Unsent(BIG, None if old is None else old.encode(), (str(change.key),), lsn, completed)
    return [*records[:-1], Partial.of(records[-1], unsent)]


def _key(key: int) -> str:
    return f'{{"id":{key}}}'


def _row(row: Row, *, unsent: bool = False, big: str | None = None) -> str:
    large = UNAVAILABLE if unsent else big or msgspec.json.encode(row["big"]).decode()
    return f'{{"id":{row["id"]},"v":{row["v"]},"big":{large}}}'
