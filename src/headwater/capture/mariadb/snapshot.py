"""Snapshot: all rows of some tables as of one position in the binlog, as ``binlog/row_reader.py`` has them.

MariaDB reports the binlog position of a consistent snapshot (``binlog_snapshot_position``), so nothing is
locked. MySQL does not, so all writers wait while the snapshot begins and ``gtid_executed`` is read. Tables of
engines without transactions are read as they are at that time; changes during the reading are in the binlog
too, so the last record of each key is right.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import pack
from typing import Any, Final, NamedTuple

from headwater.capture.envelope import compile_function, members, quote
from headwater.capture.mariadb.binlog import values as value
from headwater.capture.mariadb.binlog.charsets import QUOTE, quote_surrogates
from headwater.capture.mariadb.binlog.replica import Packets
from headwater.capture.mariadb.schema import schema_column
from headwater.capture.reread.schema_versions import ColumnSchema
from headwater.errors import CaptureError

__all__ = ["BYTES", "Snapshot", "SnapshotTable", "quoted_name"]

ROWS_MAX: Final = 5_000

Images = tuple[list[bytes | None], list[bytes | None]]
"""Keys and rows; keys are None in a table without a key."""
Read = Callable[[list[bytes], str, str], Images]


class SnapshotTable(NamedTuple):
    """A table as it is at the time of the snapshot."""

    schema: str
    name: str
    columns: tuple[ColumnSchema, ...]
    key: tuple[str, ...]
    padded: frozenset[str] = frozenset()
    """Columns whose numbers the server shows with leading zeros (ZEROFILL)."""

    @property
    def full_name(self) -> str:
        """Its name in SQL."""
        return f"{quoted_name(self.schema)}.{quoted_name(self.name)}"


class Snapshot:
    """One snapshot on one connection: `begin` or `fix`, `tables` or `table`, `rows` of each, `end`."""

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
        """Begins the snapshot, and returns its position."""
        cursor = self._connection.cursor()
        # Publishing may be slower than the table for a while.
        cursor.execute("SET SESSION net_write_timeout = 3600")
        return self._begin_mariadb(cursor) if self._mariadb else self._begin_mysql(cursor)

    def fix(self) -> None:
        """Begins the snapshot with a position as file and offset; MariaDB only."""
        cursor = self._connection.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
        status = {name.lower(): text for name, text in cursor.fetchall()}
        self.file, self.place = status["binlog_snapshot_file"], int(status["binlog_snapshot_position"])

    def _begin_mariadb(self, cursor: Any) -> str:
        self.fix()
        cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (self.file, self.place))
        (position,) = cursor.fetchone()
        if position is None:
            raise CaptureError(
                "the server does not know the GTIDs at the position of its snapshot",
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
        """Schema and name of the wanted tables, with the server's estimate of their rows."""
        cursor = self._connection.cursor()
        cursor.execute(
            "SELECT table_schema, table_name, table_rows FROM information_schema.tables"
            " WHERE table_type = 'BASE TABLE'"
            " AND table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')"
            " ORDER BY 1, 2"
        )
        tables = cursor.fetchall()
        return {(schema, table): rows or 0 for schema, table, rows in tables if self._wanted(schema, table)}

    def versioned(self) -> list[str]:
        """The wanted tables that keep old versions of their rows, which MariaDB lists apart from others."""
        cursor = self._connection.cursor()
        cursor.execute(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_type = 'SYSTEM VERSIONED'"
        )
        return [f"{schema}.{table}" for schema, table in cursor.fetchall() if self._wanted(schema, table)]

    def tables(self) -> list[SnapshotTable]:
        """The wanted tables as they are; their columns cannot be changed until `end`."""
        return [self.table(schema, table) for schema, table in self.names()]

    def table(self, schema: str, table: str) -> SnapshotTable:
        """One table as it is; its columns cannot be changed until `end`."""
        cursor = self._connection.cursor()
        cursor.execute(f"SELECT 1 FROM {quoted_name(schema)}.{quoted_name(table)} LIMIT 1")  # noqa: S608  quoted
        cursor.fetchall()
        return self._table(cursor, schema, table)

    def first_row(self, query: str) -> tuple[str, ...] | None:
        """The first row of a query."""
        cursor = self._connection.cursor()
        cursor.execute(query)
        row: tuple[str, ...] | None = cursor.fetchone()
        return row

    def literal(self, text: str) -> str:
        """A text in SQL."""
        literal: str = self._connection.escape(text)
        return literal

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
        self, table: SnapshotTable, rest: str = "", frame: Callable[[], tuple[str, str]] = lambda: ("", "")
    ) -> Iterator[Images]:
        """All rows of a table, or those that the rest of a query selects, streamed as the server sends them.

        ``frame`` returns, for each group of rows, the pieces before and after each row.
        """
        read = _reader(table, self._decimal)
        selected = ", ".join(
            f"{quoted_name(column.name)} + 0e0"
            if column.type.startswith("float")
            else quoted_name(column.name)
            for column in table.columns
        )
        connection = self._connection
        connection.query(f"SELECT {selected} FROM {table.full_name}{rest}", unbuffered=True)  # noqa: S608  quoted
        packets = Packets(connection._rfile.read1)  # noqa: SLF001  PyMySQL's reading costs more than the rows
        ended = False
        while not ended:
            payloads = packets.read()
            if payloads and payloads[-1][0] == 0xFE and len(payloads[-1]) < 9:
                ended = True
                payloads.pop()
            if payloads and payloads[-1][0] == 0xFF:
                from pymysql.err import raise_mysql_exception  # noqa: PLC0415  an optional dependency

                raise_mysql_exception(payloads[-1])
            for start in range(0, len(payloads), ROWS_MAX):
                yield read(payloads[start : start + ROWS_MAX], *frame())
        connection._result.unbuffered_active = False  # noqa: SLF001  PyMySQL has not seen the end

    def end(self) -> None:
        """Ends the snapshot."""
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
    """Generates the function for one table, as in ``binlog/row_reader.py``; its input is text already."""
    lines = [
        "def read(payloads, y, z):",
        " keys = []; rows = []; add_key = keys.append; add_row = rows.append",
        " for b in payloads:",
        f"  t = b.decode('latin-1'); p = 0; q = {QUOTE}",
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
    read: Read = compile_function(
        "read",
        "\n".join(lines),
        length=_length,
        quote=quote,
        quote_surrogates=quote_surrogates,
        value=value,
        **{f"d{scale}": decimal(scale) for scale in map(_scale, table.columns)},
        pack=pack,
        time=_time,
        millis=_millis,
        micros=_micros,
        date=_date,
        stamp=_stamp,
    )
    return read


def _expression(table: SnapshotTable, column: ColumnSchema) -> str:
    kind = column.type.removesuffix(" unsigned")
    if kind in TEXTS:
        return "q(t[p:p+n])"
    if kind in BYTES:
        return "value.base64(b[p:p+n])"
    if kind == "geometry":
        return "value.geometry(b[p:p+n])"
    integer = "int(t[p:p+n])" if column.name in table.padded else "t[p:p+n]"
    try:
        return {
            **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), integer),
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
    """How many digits a decimal has after its point."""
    return int(str(column.modifier).partition(",")[2] or 0) if column.type.startswith("decimal") else 0


def _length(b: bytes, at: int) -> tuple[int, int]:
    size = {252: 2, 253: 3, 254: 8}[b[at - 1]]
    return int.from_bytes(b[at : at + size], "little"), at + size


@lru_cache(65536)
def _date(text: str) -> int | str:
    days = value.days(int(text[:4]), int(text[5:7]), int(text[8:]))
    return "null" if days is None else days


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
    micros = _micros(text)
    return micros // 1000 if isinstance(micros, int) else micros


def _stamp(text: str) -> str:
    return "null" if text.startswith("0000") else f'"{text[:10]}T{text[11:]}Z"'


def _time(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    micros = (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 1000000 + int(fraction.ljust(6, "0"))
    return -micros if text.startswith("-") else micros
