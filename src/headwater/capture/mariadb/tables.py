"""Tables: rows of MariaDB's tables as records, from the binlog and from a snapshot alike."""

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headwater.capture.envelope import (
    NULL,
    Hole,
    block,
    piece,
    stamp,
    truncate_event,
    update_events,
    value,
)
from headwater.capture.mariadb.binlog.charsets import Charsets
from headwater.capture.mariadb.binlog.events import Query, Rows, TableMap
from headwater.capture.mariadb.binlog.row_reader import Image, Layout, row_reader
from headwater.capture.mariadb.binlog.values import Decimal
from headwater.capture.mariadb.position import Place
from headwater.capture.mariadb.schema import map_columns
from headwater.capture.mariadb.snapshot import Snapshot, SnapshotTable
from headwater.capture.mariadb.statement import names
from headwater.capture.reread.schema_versions import ColumnSchema, TableSchema, Versions
from headwater.capture.reread.table_states import TableEvent, TableState, TableStates
from headwater.capture.source import Columns, EventContext, Part, Progress, Record
from headwater.errors import CaptureError

__all__ = ["HISTORY", "LEFT_OUT", "Tables"]

MAPS_MAX: Final = 10_000
MARK: Final = "\0"
HISTORY: Final = "it keeps its history (WITH SYSTEM VERSIONING): old rows would look like current ones"
LEFT_OUT: Final = "leave it out, or capture a table without history that triggers keep in sync"

_new = tuple.__new__


class _Table(NamedTuple):
    """A captured table in one of its shapes."""

    map: TableMap
    columns: tuple[ColumnSchema, ...]
    topic: str
    read: Callable[[bytes, int], list[Image]]
    source: Callable[..., str]
    history: bool
    """Whether it keeps old versions of its rows."""


class Tables:
    """Converts rows of the wanted tables to records; one for each reading of a source."""

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        wanted: Callable[[str, str], bool],
        connection: Any,
        *,
        mariadb: bool,
        server: Mapping[str, str],
        decimal: Decimal,
        versions: Versions[TableSchema],
    ) -> None:
        self._name = name
        self._patterns = patterns
        self._wanted = wanted
        self._connection = connection
        self._mariadb = mariadb
        self._server_id = int(server["server_id"])
        self._decimal = decimal
        self._versions = versions
        self._statements: dict[str, str] = {}
        """By table, the last statement that names it and is not about rows."""
        self._charsets = Charsets(connection, mariadb=mariadb)
        self._by_map: dict[int, _Table] = {}
        """By the identity of a table map."""
        self._current: dict[str, _Table] = {}
        self._created, self._created_at = "", 0.0
        self.progress: Progress | None = None
        """How far a snapshot is."""

    def snapshot(self, place: Place) -> Generator[Part, None, Place]:
        """Rows of the tables that have none in the topics, as of one position; each table ends with one."""
        snapshot = self.open_snapshot()
        existing = {f"{schema}.{table}": about for (schema, table), about in snapshot.names().items()}
        read = dict.fromkeys(existing, "") if place.tables is None else place.tables
        self._check([*existing, *read], strict=place.tables is not None)
        states = TableStates(read, place.stopped)
        for name in read:
            if name not in existing and states.of(name) is TableState.STREAMING:
                states.change(name, TableEvent.INTERRUPTED)
        place = replace(place, tables=states.read)
        if place.gtid and all(states.of(name) is not TableState.NEW for name in existing):
            return place
        at = snapshot.begin()
        place = replace(place, gtid=place.gtid or at)
        for table in snapshot.tables():
            name = f"{table.schema}.{table.name}"
            if states.of(name) is TableState.NEW:
                yield from self._rows(snapshot, table, existing.get(name, 0), at, again=place.again)
                states.change(name, TableEvent.SNAPSHOT_FINISHED, at)
                place = replace(place, tables=states.read)
                yield Part([], str(place))
        snapshot.end()
        self.progress = None
        place = replace(place, again=False)
        yield Part([], str(place))
        return place

    def open_snapshot(self) -> Snapshot:
        """A snapshot on the connection of the tables, not begun."""
        return Snapshot(self._connection, self._wanted, mariadb=self._mariadb, decimal=self._decimal)

    def _rows(
        self, snapshot: Snapshot, table: SnapshotTable, about: int, at: str, *, again: bool
    ) -> Iterator[Part]:
        name, total = f"{table.schema}.{table.name}", 0
        context = self.context(name, snapshot, "true")
        emptied = (context,) if again or self._versions.knows(name) else ()
        schema = TableSchema(name, 0, at, table.key, table.columns)
        version = self._versions.record(self._name, schema)
        yield Part([*version, *map(truncate_event, emptied)], None, emptied)
        self.progress = Progress(name, 0, about)

        def frame() -> tuple[str, str]:
            nonlocal context
            context = self.context(name, snapshot, "true")
            event = value(NULL, MARK, context.source, "r", context.created).decode("latin-1")
            first, last = event.split(MARK)
            return first, last

        for keys, rows in snapshot.rows(table, frame=frame):
            total += len(rows)
            self.progress = Progress(name, total, about)
            yield Part(Columns(context.topic, keys, rows, context.at_ms), None)

    def context(self, table: str, snapshot: Snapshot, kind: str) -> EventContext:
        """The context of rows that a snapshot has read now."""
        schema, _, name = table.partition(".")
        now = time.time_ns()
        source = self._block(schema, name, snapshot=kind)(
            **_times(now // 1_000_000), gtid="null", file=piece(snapshot.file), pos=snapshot.place, row="0"
        )
        return EventContext(f"{self._name}.{table}", source, stamp(now), now // 1_000_000)

    def cause(self, table: str) -> str | None:
        """The statement that has changed a table since its last rows."""
        return self._statements.get(table)

    @property
    def streamed(self) -> set[str]:
        """The tables of which the stream had rows."""
        return {f"{table.map.schema}.{table.map.name}" for table in self._current.values()}

    def readable(self) -> list[str]:
        """The names of the existing tables, after reading each; CaptureError if a declared one is missing."""
        snapshot = self.open_snapshot()
        names = [f"{schema}.{table}" for schema, table in snapshot.names()]
        self._check(names, strict=True)
        snapshot.tables()
        return names

    def keeps_history(self, table: TableMap) -> bool:
        """Whether a table keeps old versions of its rows."""
        return (self._by_map.get(id(table)) or self._learn(table)).history

    def _check(self, names: list[str], *, strict: bool) -> None:
        """CaptureError for a table that does not exist or is not visible to the user: it would look empty."""
        for table in set(self._patterns) & set(self.open_snapshot().versioned()):
            raise CaptureError(f"table {table} cannot be captured: {HISTORY}", hint=LEFT_OUT)
        for declared in self._patterns if strict else ():
            pattern = re.compile(re.escape(declared).replace(r"\*", "[^.]*"))
            if not any(pattern.fullmatch(name) for name in names):
                raise CaptureError(
                    f"there is no table {declared} that the user may read",
                    hint="create it, leave it out, or GRANT SELECT on it to the user",
                )

    def rows(self, rows: Rows, gtid: str, file: str) -> list[Record]:
        """See `Changes.rows`."""
        records: list[Record] = []
        table = self._by_map.get(id(rows.table))
        if table is None:
            table = self._learn(rows.table)
        if table is not self._current.get(table.topic):
            self._current[table.topic] = table
            records += self._version(table, gtid)
        images = table.read(rows.data, rows.start)
        at_ms = rows.timestamp * 1000
        source = table.source(**_times(at_ms), gtid=f'"{gtid}"', file=piece(file), pos=rows.end, row=MARK)
        topic, created = table.topic, self._stamp()
        # The rows of an event share everything but images and numbers: it is built once, and split at their
        # places.
        event = value(MARK, MARK, source, rows.op, created).decode("latin-1")
        first, second, third, last = event.split(MARK)
        if rows.op == "c":
            first += NULL + second
            for n, (key, row) in enumerate(images):
                name = None if key is None else key.encode("latin-1")
                records.append(
                    _new(Record, (topic, name, f"{first}{row}{third}{n}{last}".encode("latin-1"), at_ms))
                )
        elif rows.op == "d":
            second += NULL + third
            for n, (key, row) in enumerate(images):
                name = None if key is None else key.encode("latin-1")
                records += (
                    _new(Record, (topic, name, f"{first}{row}{second}{n}{last}".encode("latin-1"), at_ms)),
                    _new(Record, (topic, name, None, at_ms)),
                )
        else:
            pairs = iter(images)
            for n, ((old, before), (key, after)) in enumerate(zip(pairs, pairs, strict=True)):
                if old != key:
                    context = EventContext(topic, source.replace(MARK, str(n)), created, at_ms)
                    records += update_events(context, key, before, after, old)
                    continue
                name = None if key is None else key.encode("latin-1")
                text = f"{first}{before}{second}{after}{third}{n}{last}"
                records.append(_new(Record, (topic, name, text.encode("latin-1"), at_ms)))
        return records

    def note(self, query: Query) -> None:
        """Keeps a statement that may have changed tables, for their next schema version."""
        for table in self.captured(names(query.statement, query.schema)):
            self._statements[table] = query.statement

    def captured(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """The full names of those of the tables that are captured."""
        return [f"{schema}.{name}" for schema, name in tables if self._wanted(schema, name)]

    def truncate(self, table: str, query: Query, gtid: str, file: str) -> Record:
        """The truncate event of a table that a statement has emptied."""
        schema, _, name = table.partition(".")
        at_ms = query.timestamp * 1000
        source = self._block(schema, name)(
            **_times(at_ms), gtid=f'"{gtid}"', file=piece(file), pos=query.end, row=0
        )
        return truncate_event(EventContext(f"{self._name}.{table}", source, self._stamp(), at_ms))

    def schema(self, table: TableMap) -> tuple[tuple[str, ...], tuple[ColumnSchema, ...]]:
        """The key and the columns of a table map."""
        columns = (self._by_map.get(id(table)) or self._learn(table)).columns
        return tuple(columns[at].name for at in table.key), columns

    def _stamp(self) -> str:
        """A stamp that is at most a millisecond old: many small transactions share one."""
        now = time.monotonic()
        if now - self._created_at > 0.001:
            self._created, self._created_at = stamp(), now
        return self._created

    def _learn(self, table: TableMap) -> _Table:
        if len(self._by_map) >= MAPS_MAX:
            self._by_map.clear()
        kinds = _kinds(self._connection, table.schema, table.name)
        layout = Layout(self._charsets, self._decimal, kinds)
        learned = _Table(
            table,
            map_columns(table, layout),
            f"{self._name}.{table.schema}.{table.name}",
            row_reader(table, layout),
            self._block(table.schema, table.name),
            f"{table.schema}.{table.name}" in self.open_snapshot().versioned(),
        )
        self._by_map[id(table)] = learned
        return learned

    def _version(self, table: _Table, gtid: str) -> list[Record]:
        name = f"{table.map.schema}.{table.map.name}"
        key, _ = self.schema(table.map)
        statement = self._statements.pop(name, None)
        schema = TableSchema(name, 0, gtid, key, table.columns, statement)
        return self._versions.record(self._name, schema)

    def _block(self, schema: str, table: str, snapshot: str = "false") -> Callable[..., str]:
        """Debezium's source block of a table."""
        return block(
            {
                "version": "headwater",
                "connector": "mariadb" if self._mariadb else "mysql",
                "name": self._name,
                "ts_ms": Hole("ts_ms"),
                "snapshot": snapshot,
                "db": schema,
                "sequence": None,
                "ts_us": Hole("ts_us"),
                "ts_ns": Hole("ts_ns"),
                "table": table,
                "server_id": self._server_id,
                "gtid": Hole("gtid"),
                "file": Hole("file", quoted=True),
                "pos": Hole("pos"),
                "row": Hole("row"),
                "thread": None,
                "query": None,
            }
        )


def _times(at_ms: int) -> dict[str, int]:
    return {"ts_ms": at_ms, "ts_us": at_ms * 1000, "ts_ns": at_ms * 1_000_000}


def _kinds(connection: Any, schema: str, table: str) -> dict[str, str]:
    """The types of columns that the binlog has as bytes."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND data_type IN ('uuid', 'inet4', 'inet6')",
        (schema, table),
    )
    return dict(cursor.fetchall())
