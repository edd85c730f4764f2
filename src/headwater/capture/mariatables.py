"""Tables: rows of MariaDB's tables as records, out of the binlog and out of a snapshot alike."""

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headwater.capture.binlog import Query, Rows, TableMap
from headwater.capture.envelope import (
    NULL,
    Around,
    Hole,
    block,
    piece,
    stamp,
    truncated,
    updated,
    value,
)
from headwater.capture.mariaplace import Place
from headwater.capture.mariasnapshot import Snapshot, SnapshotTable
from headwater.capture.mariastatement import names
from headwater.capture.mariatypes import map_columns
from headwater.capture.mysqlcharset import Charsets
from headwater.capture.mysqlvalue import Decimal
from headwater.capture.rowimage import Image, Layout, row_reader
from headwater.capture.source import Columns, Part, Progress, Record
from headwater.capture.versions import ColumnSchema, Versions
from headwater.errors import CaptureError

__all__ = ["HISTORY", "LEFT_OUT", "Tables"]

KNOWN_MAX: Final = 10_000
MARK: Final = "\0"
HISTORY: Final = "it keeps its history (WITH SYSTEM VERSIONING): old rows would be among those that it has"
LEFT_OUT: Final = "leave it out, or capture a table without history that triggers keep in step"

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
    """Makes records of the tables that are wanted; one for each reading of a source."""

    def __init__(
        self,
        name: str,
        given: Sequence[str],
        wanted: Callable[[str, str], bool],
        connection: Any,
        *,
        mariadb: bool,
        server: Mapping[str, str],
        decimal: Decimal,
        versions: Versions,
    ) -> None:
        self._name = name
        self._given = given
        self._wanted = wanted
        self._connection = connection
        self._mariadb = mariadb
        self._server_id = int(server["server_id"])
        self._decimal = decimal
        self._versions = versions
        self._statements: dict[str, str] = {}
        """The last statement that named a table and was not about rows."""
        self._charsets = Charsets(connection, mariadb=mariadb)
        self._known: dict[int, _Table] = {}
        self._current: dict[str, _Table] = {}
        self._made, self._made_at = "", 0.0
        self.progress: Progress | None = None
        """How far a snapshot is."""

    def snapshot(self, place: Place) -> Generator[Part, None, Place]:
        """Rows of the tables that have none in the topics yet, as of one moment of the binlog. Each table ends with a position."""
        snapshot = self.looking()
        there = {f"{schema}.{table}": about for (schema, table), about in snapshot.names().items()}
        known = dict.fromkeys(there, "") if place.tables is None else place.tables
        self._check([*there, *known], strict=place.tables is not None)
        # A table that is not captured any more is forgotten: changes in between would be missing when it comes back.
        place = replace(place, tables={name: at for name, at in known.items() if name in there})
        if place.gtid and not there.keys() - known.keys():
            return place
        at = snapshot.begin()
        place = replace(place, gtid=place.gtid or at)
        for table in snapshot.tables():
            name = f"{table.schema}.{table.name}"
            if name not in (known := place.tables or {}):
                yield from self._rows(snapshot, table, there.get(name, 0), at, again=place.again)
                place = replace(place, tables=known | {name: at})
                yield Part([], str(place))
        snapshot.end()
        self.progress = None
        place = replace(place, again=False)
        yield Part([], str(place))
        return place

    def looking(self) -> Snapshot:
        """A snapshot on the connection of the tables, not begun."""
        return Snapshot(self._connection, self._wanted, mariadb=self._mariadb, decimal=self._decimal)

    def _rows(
        self, snapshot: Snapshot, table: SnapshotTable, about: int, at: str, *, again: bool
    ) -> Iterator[Part]:
        name, total = f"{table.schema}.{table.name}", 0
        around = self.around(name, snapshot, "true")
        emptied = (around,) if again or self._versions.knows(name) else ()
        described = self._versions.record(self._name, name, table.key, table.columns, position=at)
        yield Part([*described, *map(truncated, emptied)], None, emptied)
        self.progress = Progress(name, 0, about)

        def stamped() -> tuple[str, str]:
            nonlocal around
            around = self.around(name, snapshot, "true")
            first, last = value(NULL, MARK, around.source, "r", around.made).decode("latin-1").split(MARK)
            return first, last

        for keys, rows in snapshot.rows(table, around=stamped):
            total += len(rows)
            self.progress = Progress(name, total, about)
            yield Part(Columns(around.topic, keys, rows, around.at_ms), None)

    def around(self, table: str, snapshot: Snapshot, kind: str) -> Around:
        """What stands around rows that a snapshot has read now."""
        schema, _, name = table.partition(".")
        now = time.time_ns()
        source = self._block(schema, name, snapshot=kind)(
            **_moments(now // 1_000_000), gtid="null", file=piece(snapshot.file), pos=snapshot.place, row="0"
        )
        return Around(f"{self._name}.{table}", source, stamp(now), now // 1_000_000)

    def cause(self, table: str) -> str | None:
        """The statement that has changed a table since its rows were seen last."""
        return self._statements.get(table)

    @property
    def born(self) -> set[str]:
        """The tables whose rows the stream has brought."""
        return {f"{table.map.schema}.{table.map.name}" for table in self._current.values()}

    def readable(self) -> list[str]:
        """The names of the tables that are there, each one read from; CaptureError where one that was named is not."""
        snapshot = self.looking()
        found = [f"{schema}.{table}" for schema, table in snapshot.names()]
        self._check(found, strict=True)
        snapshot.tables()
        return found

    def keeps_history(self, table: TableMap) -> bool:
        """Whether a table has old versions of its rows beside them."""
        return (self._known.get(id(table)) or self._learn(table)).history

    def _check(self, found: list[str], *, strict: bool) -> None:
        """A table that is not there, or that the user may not even see, must not look like one without rows."""
        for table in set(self._given) & set(self.looking().versioned()):
            raise CaptureError(f"table {table} cannot be captured: {HISTORY}", hint=LEFT_OUT)
        for given in self._given if strict else ():
            pattern = re.compile(re.escape(given).replace(r"\*", "[^.]*"))
            if not any(pattern.fullmatch(name) for name in found):
                raise CaptureError(
                    f"there is no table {given} that the user may read",
                    hint="create it, leave it out, or GRANT SELECT on it to the user",
                )

    def rows(self, rows: Rows, gtid: str, file: str) -> list[Record]:
        """See `Changes.rows`."""
        found: list[Record] = []
        table = self._known.get(id(rows.table))
        if table is None:
            table = self._learn(rows.table)
        if table is not self._current.get(table.topic):
            self._current[table.topic] = table
            found += self._described(table, gtid)
        images = table.read(rows.data, rows.start)
        at_ms = rows.timestamp * 1000
        source = table.source(**_moments(at_ms), gtid=f'"{gtid}"', file=piece(file), pos=rows.end, row=MARK)
        topic, made = table.topic, self._stamp()
        # What stands around the rows of one event is the same but for their numbers: it is made once, and cut where they belong.
        first, second, third, last = value(MARK, MARK, source, rows.op, made).decode("latin-1").split(MARK)
        if rows.op == "c":
            first += NULL + second
            for n, (key, row) in enumerate(images):
                name = None if key is None else key.encode("latin-1")
                found.append(
                    _new(Record, (topic, name, f"{first}{row}{third}{n}{last}".encode("latin-1"), at_ms))
                )
        elif rows.op == "d":
            second += NULL + third
            for n, (key, row) in enumerate(images):
                name = None if key is None else key.encode("latin-1")
                found += (
                    _new(Record, (topic, name, f"{first}{row}{second}{n}{last}".encode("latin-1"), at_ms)),
                    _new(Record, (topic, name, None, at_ms)),
                )
        else:
            pairs = iter(images)
            for n, ((old, before), (key, after)) in enumerate(zip(pairs, pairs, strict=True)):
                if old != key:
                    found += updated(
                        Around(topic, source.replace(MARK, str(n)), made, at_ms), key, before, after, old
                    )
                    continue
                name = None if key is None else key.encode("latin-1")
                text = f"{first}{before}{second}{after}{third}{n}{last}"
                found.append(_new(Record, (topic, name, text.encode("latin-1"), at_ms)))
        return found

    def note(self, query: Query) -> None:
        """A statement that may have changed tables: it stands with their next version."""
        for table in self.captured(names(query.statement, query.schema)):
            self._statements[table] = query.statement

    def captured(self, given: Iterable[tuple[str, str]]) -> list[str]:
        """Those of some tables that are captured, by their whole names."""
        return [f"{schema}.{name}" for schema, name in given if self._wanted(schema, name)]

    def truncated(self, table: str, query: Query, gtid: str, file: str) -> Record:
        """A table that a statement has left without rows."""
        schema, _, name = table.partition(".")
        at_ms = query.timestamp * 1000
        source = self._block(schema, name)(
            **_moments(at_ms), gtid=f'"{gtid}"', file=piece(file), pos=query.end, row=0
        )
        return truncated(Around(f"{self._name}.{table}", source, self._stamp(), at_ms))

    def described(self, table: TableMap) -> tuple[tuple[str, ...], tuple[ColumnSchema, ...]]:
        """The key and the columns of a table map."""
        columns = (self._known.get(id(table)) or self._learn(table)).columns
        return tuple(columns[at].name for at in table.key), columns

    def _stamp(self) -> str:
        """The time of making, to a millisecond or so: asked for once for many small transactions."""
        now = time.monotonic()
        if now - self._made_at > 0.001:
            self._made, self._made_at = stamp(), now
        return self._made

    def _learn(self, table: TableMap) -> _Table:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        kinds = _kinds(self._connection, table.schema, table.name)
        layout = Layout(self._charsets, self._decimal, kinds)
        found = _Table(
            table,
            map_columns(table, layout),
            f"{self._name}.{table.schema}.{table.name}",
            row_reader(table, layout),
            self._block(table.schema, table.name),
            f"{table.schema}.{table.name}" in self.looking().versioned(),
        )
        self._known[id(table)] = found
        return found

    def _described(self, table: _Table, gtid: str) -> list[Record]:
        name = f"{table.map.schema}.{table.map.name}"
        key, _ = self.described(table.map)
        statement = self._statements.pop(name, None)
        return self._versions.record(self._name, name, key, table.columns, position=gtid, statement=statement)

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


def _moments(at_ms: int) -> dict[str, int]:
    return {"ts_ms": at_ms, "ts_us": at_ms * 1000, "ts_ns": at_ms * 1_000_000}


def _kinds(connection: Any, schema: str, table: str) -> dict[str, str]:
    """Columns whose type the binlog does not tell from bytes."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s AND data_type IN ('uuid', 'inet4', 'inet6')",
        (schema, table),
    )
    return dict(cursor.fetchall())
