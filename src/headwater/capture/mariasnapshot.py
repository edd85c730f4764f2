"""Snapshot: all rows of some tables as of one place in the binlog, in the form that ``capture/rowimage.py`` has.

MariaDB says itself which place of its binlog a consistent snapshot fits (``binlog_snapshot_position``): nothing is locked. MySQL does not, so
all writers wait while the snapshot begins and ``gtid_executed`` is read. Engines without transactions are read as they are by then; what
they change meanwhile comes again with the binlog, and by key the last word is right.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import pack
from typing import Any, Final, NamedTuple

from headwater.capture import mysqlvalue as value
from headwater.capture.envelope import compiled, members, quoted
from headwater.capture.mariatypes import schema_column
from headwater.capture.mysqlcharset import PLAIN, checked
from headwater.capture.replica import Packets
from headwater.capture.versions import ColumnSchema
from headwater.errors import CaptureError

__all__ = ["BYTES", "Snapshot", "SnapshotTable", "quoted_name"]

ROWS_MAX: Final = 5_000

Images = tuple[list[bytes | None], list[bytes | None]]
"""Keys and rows; a row without a key in a table without one."""
Read = Callable[[list[bytes], str, str], Images]


class SnapshotTable(NamedTuple):
    """A table as it stands at the moment of the snapshot."""

    schema: str
    name: str
    columns: tuple[ColumnSchema, ...]
    key: tuple[str, ...]
    padded: frozenset[str] = frozenset()
    """Columns whose numbers the server shows with zeros in front (ZEROFILL)."""

    @property
    def whole(self) -> str:
        """Its name in SQL."""
        return f"{quoted_name(self.schema)}.{quoted_name(self.name)}"


class Snapshot:
    """One snapshot on one connection: `begin` or `moment`, `tables` or `table`, `rows` of each, `end`."""

    def __init__(
        self,
        connection: Any,
        wanted: Callable[[str, str], bool],
        *,
        mariadb: bool,
        decimal: value.Decimal,
    ) -> None:
        self._connection = connection
        self._wanted = wanted
        self._mariadb = mariadb
        self._decimal = decimal
        self.file, self.place = "", 0

    def begin(self) -> str:
        """Fixes the moment, and gives back its position."""
        cursor = self._connection.cursor()
        cursor.execute(
            "SET SESSION net_write_timeout = 3600"
        )  # the log may be slower than the table for a while
        return self._begin_mariadb(cursor) if self._mariadb else self._begin_mysql(cursor)

    def moment(self) -> None:
        """Fixes the moment by its place in the binlog alone; MariaDB only."""
        cursor = self._connection.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
        found = {name.lower(): text for name, text in cursor.fetchall()}
        self.file, self.place = found["binlog_snapshot_file"], int(found["binlog_snapshot_position"])

    def _begin_mariadb(self, cursor: Any) -> str:
        self.moment()
        cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (self.file, self.place))
        (position,) = cursor.fetchone()
        if position is None:
            raise CaptureError(
                "the server does not know the GTIDs at the place of its snapshot",
                got=f"{self.file} {self.place}",
            )
        return position or "-"

    def _begin_mysql(self, cursor: Any) -> str:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        try:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SELECT @@GLOBAL.gtid_executed")
            (position,) = cursor.fetchone()
        finally:
            cursor.execute("UNLOCK TABLES")
        return position.replace("\n", "") or "-"

    def names(self) -> dict[tuple[str, str], int]:
        """Schema and name of the tables that are wanted, with the rows that the server believes them to have."""
        cursor = self._connection.cursor()
        cursor.execute(
            "SELECT table_schema, table_name, table_rows FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
            " AND table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys') ORDER BY 1, 2"
        )
        found = cursor.fetchall()
        return {(schema, table): rows or 0 for schema, table, rows in found if self._wanted(schema, table)}

    def versioned(self) -> list[str]:
        """Those that are wanted and keep old versions of their rows: MariaDB counts them apart from plain tables."""
        cursor = self._connection.cursor()
        cursor.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'SYSTEM VERSIONED'"
        )
        return [f"{schema}.{table}" for schema, table in cursor.fetchall() if self._wanted(schema, table)]

    def tables(self) -> list[SnapshotTable]:
        """The tables that are wanted, as they stand; from here on nobody can change their columns until `end`."""
        return [self.table(schema, table) for schema, table in self.names()]

    def table(self, schema: str, table: str) -> SnapshotTable:
        """One table, likewise."""
        cursor = self._connection.cursor()
        cursor.execute(f"SELECT 1 FROM {quoted_name(schema)}.{quoted_name(table)} LIMIT 1")  # noqa: S608  quoted
        cursor.fetchall()
        return self._table(cursor, schema, table)

    def one(self, query: str) -> tuple[str, ...] | None:
        """The first row of a query."""
        cursor = self._connection.cursor()
        cursor.execute(query)
        found: tuple[str, ...] | None = cursor.fetchone()
        return found

    def literal(self, text: str) -> str:
        """A text in SQL."""
        made: str = self._connection.escape(text)
        return made

    def _table(self, cursor: Any, schema: str, table: str) -> SnapshotTable:
        cursor.execute(
            f"SELECT {', '.join(FACTS)} FROM information_schema.columns"  # noqa: S608  constants
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (schema, table),
        )
        facts = [dict(zip(FACTS, row, strict=True)) for row in cursor.fetchall()]
        columns = tuple(map(schema_column, facts))
        padded = frozenset(fact["column_name"] for fact in facts if fact["column_type"].endswith(" zerofill"))
        cursor.execute(
            "SELECT column_name FROM information_schema.statistics"
            " WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
            (schema, table),
        )
        key = tuple(name for (name,) in cursor.fetchall())
        return SnapshotTable(schema, table, columns, key, padded)

    def rows(
        self, table: SnapshotTable, rest: str = "", around: Callable[[], tuple[str, str]] = lambda: ("", "")
    ) -> Iterator[Images]:
        """All rows of a table, or those that the rest of a query says, as the server sends them: none of them is kept.

        ``around`` says for each piece of them what stands before and behind every row.
        """
        read = _reader(table, self._decimal)
        chosen = ", ".join(
            f"{quoted_name(column.name)} + 0e0"
            if column.type.startswith("float")
            else quoted_name(column.name)
            for column in table.columns
        )
        connection = self._connection
        connection.query(f"SELECT {chosen} FROM {table.whole}{rest}", unbuffered=True)  # noqa: S608  quoted
        packets = Packets(connection._rfile.read1)  # noqa: SLF001  PyMySQL's own way costs more than the rows
        ended = False
        while not ended:
            payloads = packets.some()
            if payloads and payloads[-1][0] == 0xFE and len(payloads[-1]) < 9:
                ended = True
                payloads.pop()
            if payloads and payloads[-1][0] == 0xFF:
                from pymysql.err import raise_mysql_exception  # noqa: PLC0415  an optional dependency

                raise_mysql_exception(payloads[-1])
            for start in range(0, len(payloads), ROWS_MAX):
                yield read(payloads[start : start + ROWS_MAX], *around())
        connection._result.unbuffered_active = False  # noqa: SLF001  it has not seen its end

    def end(self) -> None:
        """Lets go of the moment."""
        self._connection.cursor().execute("COMMIT")


def quoted_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


TEXTS: Final = frozenset(
    {
        "char",
        "varchar",
        "tinytext",
        "text",
        "mediumtext",
        "longtext",
        "enum",
        "set",
        "json",
        "uuid",
        "inet4",
        "inet6",
    }
)
BYTES: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
FACTS: Final = (
    "column_name",
    "data_type",
    "column_type",
    "is_nullable",
    "character_octet_length",
    "numeric_precision",
    "numeric_scale",
    "datetime_precision",
)


def _reader(table: SnapshotTable, decimal: value.Decimal) -> Read:
    """A function written for one table, as in ``capture/rowimage.py``: integers and texts are pieces as they come."""
    lines = [
        "def read(payloads, y, z):",
        " keys = []; rows = []; add_key = keys.append; add_row = rows.append",
        " for b in payloads:",
        f"  t = b.decode('latin-1'); p = 0; q = {PLAIN}",
    ]
    for i, column in enumerate(table.columns):
        lines += [
            "  n = b[p]; p += 1",
            f"  if n == 251: c{i} = 'null'",
            "  else:",
            "   if n > 251: n, p = length(b, p)",
            f"   c{i} = {_expression(table, column)}; p += n",
        ]
    names = [column.name for column in table.columns]
    row = members(names, [f"c{i}" for i in range(len(names))])
    key = members(table.key, [f"c{names.index(name)}" for name in table.key])
    named = f'f"{key}".encode("latin-1")' if table.key else "None"
    lines += [f"  add_key({named})", f'  add_row(f"{{y}}{row}{{z}}".encode("latin-1"))', " return keys, rows"]
    made: Read = compiled(
        "read",
        "\n".join(lines),
        length=_length,
        quoted=quoted,
        checked=checked,
        value=value,
        **{f"d{scale}": decimal(scale) for scale in map(_scale, table.columns)},
        pack=pack,
        time=_time,
        millis=_millis,
        micros=_micros,
        date=_date,
        stamp=_stamp,
    )
    return made


def _expression(table: SnapshotTable, column: ColumnSchema) -> str:
    kind = column.type.removesuffix(" unsigned")
    if kind in TEXTS:
        return "q(t[p:p+n])"
    if kind in BYTES:
        return "value.base64(b[p:p+n])"
    if kind == "geometry":
        return "value.geometry(b[p:p+n])"
    whole = "int(t[p:p+n])" if column.name in table.padded else "t[p:p+n]"
    try:
        return {
            **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), whole),
            "year": "int(t[p:p+n])",
            "float": "value.single(pack('<f', float(t[p:p+n])))",
            "double": "repr(float(t[p:p+n]))",
            "decimal": f"d{_scale(column)}(int(t[p:p+n].replace('.', '')))",
            "date": "date(t[p:p+n])",
            "time": "time(t[p:p+n])",
            "datetime": "micros(t[p:p+n])" if column.modifier in (4, 5, 6) else "millis(t[p:p+n])",
            "timestamp": "stamp(t[p:p+n])",
            "bit": f"value.bits(b[p:p+n], {column.modifier})",
        }[kind]
    except KeyError:
        raise CaptureError(
            f"column {column.name} of {table.schema}.{table.name} has a type that is not supported",
            got=kind,
            hint="leave the table out, or change the column",
        ) from None


def _scale(column: ColumnSchema) -> int:
    """How many digits a decimal has behind its point."""
    return int(str(column.modifier).partition(",")[2] or 0) if column.type.startswith("decimal") else 0


def _length(b: bytes, at: int) -> tuple[int, int]:
    size = {252: 2, 253: 3, 254: 8}[b[at - 1]]
    return int.from_bytes(b[at : at + size], "little"), at + size


@lru_cache(65536)
def _date(text: str) -> int | str:
    found = value.days(int(text[:4]), int(text[5:7]), int(text[8:]))
    return "null" if found is None else found


@lru_cache(65536)
def _minute(text: str) -> int | None:
    """Microseconds since 1970 at the beginning of a minute."""
    day = _date(text[:10])
    return (
        (day * 1440 + int(text[11:13]) * 60 + int(text[14:])) * 60_000_000 if isinstance(day, int) else None
    )


def _micros(text: str) -> int | str:
    minute = _minute(text[:16])
    if minute is None:
        return "null"
    if len(text) == 26:
        return minute + int(text[17:19] + text[20:])
    return minute + int(text[17:19]) * 1_000_000 + int(text[20:].ljust(6, "0"))


def _millis(text: str) -> int | str:
    found = _micros(text)
    return found // 1000 if isinstance(found, int) else found


def _stamp(text: str) -> str:
    return "null" if text.startswith("0000") else f'"{text[:10]}T{text[11:]}Z"'


def _time(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    found = (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 1000000 + int(fraction.ljust(6, "0"))
    return -found if text.startswith("-") else found
