"""The binlog of MariaDB and MySQL: bytes of one event in, what it says out. No I/O; ``capture/rowimage.py`` reads the rows of `Rows`.

Every event is a header of 19 bytes (time, type, server, length, next position, flags), a body, and a CRC-32 where the server writes them.
What a table's rows look like stands in the `TableMap` in front of them; only ``binlog_row_metadata=FULL`` has the names, signs and key.
"""

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from headwater.errors import CaptureError

__all__ = [
    "Annotate",
    "Column",
    "Decoder",
    "Event",
    "Format",
    "Gtid",
    "GtidList",
    "Heartbeat",
    "Incident",
    "Prepared",
    "Query",
    "Rotate",
    "Rows",
    "TableMap",
    "Xid",
]

HEADER: Final = Struct("<IBIIIH")
TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, OLD_TIMESTAMP, LONGLONG, INT24, DATE, OLD_TIME, OLD_DATETIME, YEAR = (
    range(1, 14)
)
VARCHAR, BIT, TIMESTAMP, DATETIME, TIME = range(15, 20)
JSON, DECIMAL, ENUM, SET = 245, 246, 247, 248
BLOB, VAR_STRING, STRING, GEOMETRY = 252, 253, 254, 255
NUMERIC: Final = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, DECIMAL, FLOAT, DOUBLE})
TEXTUAL: Final = frozenset({STRING, VAR_STRING, VARCHAR, BLOB})
MAPS_MAX: Final = 10_000
"""Shapes of tables that are remembered."""
ENDED: Final = "set it globally, let sessions end that still have another value, and take a new snapshot"
REFUSED: Final = {
    **dict.fromkeys((20, 21, 22), ("rows in the form of MySQL 5.1", "binlog_format=ROW of a newer server")),
    40: ("a compressed transaction", "binlog_transaction_compression=OFF"),
    42: ("a tagged transaction", "gtid_next without a tag"),
}
"""Events that hold changes and cannot be read: what they are, and what the server should do instead."""
META_BYTES: Final = {
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP, DATETIME, TIME, BLOB, JSON, GEOMETRY), 1),
    **dict.fromkeys((VARCHAR, VAR_STRING, STRING, BIT, DECIMAL, ENUM, SET), 2),
}


class Column(NamedTuple):
    """One column as a table map has it."""

    name: str
    kind: int
    """The type's number; that of enum and set where the map hides them in a string."""
    size: int
    """Greatest length in bytes, precision, bits, bytes of an enum, or digits behind the second, as the kind asks."""
    scale: int = 0
    nullable: bool = True
    unsigned: bool = False
    collation: int = 63
    labels: tuple[bytes, ...] = ()
    """The values of an enum or set, in its character set."""


class Format(NamedTuple):
    """The first event of a binlog file: who wrote it, and whether events carry checksums."""

    server: str
    checksum: bool


class Gtid(NamedTuple):
    """A transaction begins. Standalone: one statement, without an end of its own."""

    domain: int | str
    """MariaDB's replication domain; MySQL's server UUID."""
    server: int
    number: int
    standalone: bool
    prepared: bool = False
    """Whether it ends with XA PREPARE, and another one decides about it."""


class GtidList(NamedTuple):
    """MariaDB: the newest transaction of each domain and server in all files before this one."""

    gtids: tuple[tuple[int, int, int], ...]


class TableMap(NamedTuple):
    """What the rows that follow look like."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]


class Rows(NamedTuple):
    """Rows of one table: ``c`` created, ``u`` updated (each before, then after), ``d`` deleted."""

    op: str
    table: TableMap
    data: bytes
    start: int
    """Where in the data the first row begins."""
    timestamp: int
    end: int
    """The position in its file behind this event."""


class Query(NamedTuple):
    """A statement: BEGIN and COMMIT of engines without transactions, and every change of a schema."""

    schema: str
    statement: str
    timestamp: int
    end: int = 0
    """The position in its file behind this event."""


class Xid(NamedTuple):
    """A transaction has committed."""

    timestamp: int


class Rotate(NamedTuple):
    """The binlog goes on in another file."""

    file: str
    position: int


class Heartbeat(NamedTuple):
    """Nothing has happened."""


class Prepared(NamedTuple):
    """XA PREPARE: the transaction's rows are not committed yet."""


class Incident(NamedTuple):
    """The server says that its binlog has a gap."""


class Annotate(NamedTuple):
    """MariaDB: the statement that made the rows that follow."""

    statement: str


Event = (
    Format
    | Gtid
    | GtidList
    | TableMap
    | Rows
    | Query
    | Xid
    | Rotate
    | Heartbeat
    | Prepared
    | Incident
    | Annotate
)


class Decoder:
    """Decodes the events of one stream in their order; table maps are remembered for the rows behind them.

    `wanted` says whether rows of a table are of interest: all others, and events that say nothing to a capture, come out as None.
    """

    def __init__(self, wanted: Callable[[str, str], bool], *, checksum: bool) -> None:
        self._wanted = wanted
        self._checksum = checksum
        self._textual = TEXTUAL
        """The kinds that a collation is listed for; MariaDB counts geometry among them."""
        self._numeric = NUMERIC
        """The kinds that have a bit for their sign; MariaDB counts years among them."""
        self._maps: dict[int, TableMap | None] = {}
        self._known: dict[bytes, TableMap | None] = {}
        self._kinds: dict[int, Callable[[bytes, int, int, int, int], Event | None]] = {
            2: self._query,
            4: self._rotate,
            15: self._format,
            16: lambda _b, _e, timestamp, _s, _n: Xid(timestamp),
            19: self._table_map,
            26: lambda *_: Incident(),
            27: lambda *_: Heartbeat(),
            33: self._mysql_gtid,
            38: lambda *_: Prepared(),
            160: lambda b, e, _t, _s, _n: Annotate(b[19:e].decode("utf-8", "replace")),
            162: self._gtid,
            163: self._gtid_list,
            165: self._query_compressed,
            39: self._partial,
            **{kind: _refused(*said) for kind, said in REFUSED.items()},
        }
        for op, plain, extended, packed, packed_extended in (
            ("c", 23, 30, 166, 169),
            ("u", 24, 31, 167, 170),
            ("d", 25, 32, 168, 171),
        ):
            self._kinds[plain] = self._rows(op, extended=False, packed=False)
            self._kinds[extended] = self._rows(op, extended=True, packed=False)
            self._kinds[packed] = self._rows(op, extended=False, packed=True)
            self._kinds[packed_extended] = self._rows(op, extended=True, packed=True)

    def decode(self, event: bytes) -> Event | None:
        """What one event says, header and checksum included."""
        timestamp, kind, server, length, position, _ = HEADER.unpack_from(event)
        if length != len(event):
            raise CaptureError("a binlog event is cut off", got=f"{len(event)} bytes", expected=str(length))
        end = length
        if self._checksum and kind != 15:
            end -= 4
            if zlib.crc32(memoryview(event)[:end]) != int.from_bytes(event[end:], "little"):
                raise CaptureError(f"a binlog event before position {position} has a wrong checksum")
        decode = self._kinds.get(kind)
        return decode(event, end, timestamp, server, position) if decode else None

    def _format(self, b: bytes, end: int, *_: int) -> Event:
        server = b[21:71].rstrip(b"\0").decode()
        self._checksum = b[end - 5] == 1
        mariadb = "MariaDB" in server
        self._textual = TEXTUAL | {GEOMETRY} if mariadb else TEXTUAL
        self._numeric = NUMERIC | {YEAR} if mariadb else NUMERIC
        self._maps.clear()
        return Format(server, self._checksum)

    def _partial(self, b: bytes, *_: int) -> Event | None:
        if self._maps.get(int.from_bytes(b[19:25], "little"), b) is not None:
            raise CaptureError(
                "an update was logged with parts of its JSON documents",
                expected="binlog_row_value_options=''",
                hint=ENDED,
            )
        return None

    def _rotate(self, b: bytes, end: int, *_: int) -> Event:
        return Rotate(b[27:end].decode(), int.from_bytes(b[19:27], "little"))

    def _query(self, b: bytes, end: int, timestamp: int, _: int, position: int) -> Event:
        return Query(*_statement(b, end, packed=False), timestamp, position)

    def _query_compressed(self, b: bytes, end: int, timestamp: int, _: int, position: int) -> Event:
        return Query(*_statement(b, end, packed=True), timestamp, position)

    def _gtid(self, b: bytes, _end: int, _timestamp: int, server: int, _position: int) -> Event:
        number, domain, flags = _GTID.unpack_from(b, 19)
        return Gtid(domain, server, number, standalone=bool(flags & 1), prepared=bool(flags & 64))

    def _mysql_gtid(self, b: bytes, *_: int) -> Event:
        source = b[20:36].hex()
        uuid = "-".join((source[:8], source[8:12], source[12:16], source[16:20], source[20:]))
        # MySQL does not say whether an end follows: a statement other than BEGIN stands alone.
        return Gtid(uuid, 0, int.from_bytes(b[36:44], "little"), standalone=False)

    def _gtid_list(self, b: bytes, *_: int) -> Event:
        count = int.from_bytes(b[19:23], "little") & 0x0FFFFFFF
        return GtidList(tuple(_LISTED.unpack_from(b, 23 + 16 * at) for at in range(count)))

    def _table_map(self, b: bytes, end: int, *_: int) -> Event | None:
        number = int.from_bytes(b[19:25], "little")
        body = b[27:end]
        try:
            found = self._known[body]
        except KeyError:
            if len(self._known) >= MAPS_MAX:
                self._known.clear()
            found = self._known[body] = _table_map(body, self._wanted, self._textual, self._numeric)
        self._maps[number] = found
        return found

    def _rows(
        self, op: str, *, extended: bool, packed: bool
    ) -> Callable[[bytes, int, int, int, int], Event | None]:
        def rows(b: bytes, end: int, timestamp: int, _server: int, position: int) -> Event | None:
            table = self._maps[int.from_bytes(b[19:25], "little")]
            if table is None:
                return None
            at = 27 + int.from_bytes(b[27:29], "little") if extended else 27
            width, at = _length(b, at)
            size = (width + 7) // 8
            for _ in range(2 if op == "u" else 1):
                if int.from_bytes(b[at : at + size], "little").bit_count() != width:
                    raise CaptureError(
                        f"rows of {table.schema}.{table.name} come without some of their columns",
                        expected="binlog_row_image=FULL",
                        hint=ENDED,
                    )
                at += size
            if packed:
                return Rows(op, table, _inflate(b, at, end), 0, timestamp, position)
            return Rows(op, table, b[:end], at, timestamp, position)

        return rows


def _refused(what: str, expected: str) -> Callable[[bytes, int, int, int, int], Event | None]:
    def refuse(*_: object) -> Event | None:
        raise CaptureError(f"the binlog has {what}, which is not supported", expected=expected, hint=ENDED)

    return refuse


_GTID = Struct("<QIB")
_LISTED = Struct("<IIQ")


def _statement(b: bytes, end: int, *, packed: bool) -> tuple[str, str]:
    schema_length = b[27]
    at = 32 + int.from_bytes(b[30:32], "little")
    schema = b[at : at + schema_length].decode()
    at += schema_length + 1
    text = _inflate(b, at, end) if packed else b[at:end]
    return schema, text.decode("utf-8", "replace")


def _inflate(b: bytes, at: int, end: int) -> bytes:
    """MariaDB's compressed events: a byte with the algorithm and the length of a length, that length, and zlib's bytes."""
    return zlib.decompress(b[at + 1 + (b[at] & 7) : end])


def _length(b: bytes, at: int) -> tuple[int, int]:
    """The protocol's packed integer, and the place behind it."""
    first = b[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(b[at + 1 : at + 1 + size], "little"), at + 1 + size


def _lengths(b: bytes) -> list[int]:
    found, at = [], 0
    while at < len(b):
        value, at = _length(b, at)
        found.append(value)
    return found


def _text(b: bytes, at: int) -> tuple[bytes, int]:
    size, at = _length(b, at)
    return b[at : at + size], at + size


def _table_map(
    b: bytes, wanted: Callable[[str, str], bool], textual: frozenset[int], numeric: frozenset[int]
) -> TableMap | None:
    schema, at = b[1 : 1 + b[0]].decode(), b[0] + 2
    name, at = b[at + 1 : at + 1 + b[at]].decode(), at + b[at] + 2
    if not wanted(schema, name):
        return None
    count, at = _length(b, at)
    kinds, at = b[at : at + count], at + count
    size, at = _length(b, at)
    columns = _columns(kinds, b[at : at + size])
    at += size
    nulls, at = b[at : at + (count + 7) // 8], at + (count + 7) // 8
    more = {}
    while at < len(b):
        kind, (value, at) = b[at], _text(b, at + 1)
        more[kind] = value
    if 4 not in more:
        raise CaptureError(
            f"the binlog does not name the columns of {schema}.{name}",
            expected="binlog_row_metadata=FULL",
            hint="SET GLOBAL binlog_row_metadata=FULL, and take a new snapshot: what was logged before cannot be read",
        )
    names, labels = _names(more[4]), _labels(columns, more)
    unsigned = _bits(columns, numeric, more.get(1, b""))
    collations = {
        **_collations(columns, textual, more, 2, 3),
        **_collations(columns, {ENUM, SET}, more, 10, 11),
    }
    return TableMap(
        schema,
        name,
        tuple(
            column._replace(
                name=names[i],
                nullable=bool(nulls[i // 8] >> i % 8 & 1),
                unsigned=i in unsigned and column.kind != YEAR,
                collation=collations.get(i, 63),
                labels=labels.get(i, ()),
            )
            for i, column in enumerate(columns)
        ),
        tuple(_lengths(more.get(8, b""))) or tuple(_lengths(more.get(9, b""))[::2]),
    )


def _columns(kinds: bytes, meta: bytes) -> list[Column]:
    columns, at = [], 0
    for kind in kinds:
        m = meta[at : at + META_BYTES.get(kind, 0)]
        at += len(m)
        columns.append(_column(kind, m))
    return columns


def _column(kind: int, m: bytes) -> Column:
    match kind:
        case 254:
            if m[0] in {ENUM, SET}:
                return Column("", m[0], m[1])
            return Column("", STRING, m[1] | ((m[0] & 0x30) ^ 0x30) << 4)
        case 246:
            return Column("", kind, m[0], m[1])
        case 16:
            return Column("", kind, m[1] * 8 + m[0])
        case _:
            return Column("", kind, int.from_bytes(m, "little"))


def _names(b: bytes) -> list[str]:
    found, at = [], 0
    while at < len(b):
        value, at = _text(b, at)
        found.append(value.decode())
    return found


def _labels(columns: list[Column], more: dict[int, bytes]) -> dict[int, tuple[bytes, ...]]:
    found: dict[int, tuple[bytes, ...]] = {}
    for kind, field in ((SET, 5), (ENUM, 6)):
        b, at = more.get(field, b""), 0
        for i in (i for i, column in enumerate(columns) if column.kind == kind and b):
            count, at = _length(b, at)
            values = []
            for _ in range(count):
                value, at = _text(b, at)
                values.append(value)
            found[i] = tuple(values)
    return found


def _bits(columns: list[Column], kinds: frozenset[int], b: bytes) -> set[int]:
    """The columns whose bit is set, where only columns of some kinds have one: the highest of a byte comes first."""
    having = [i for i, column in enumerate(columns) if column.kind in kinds]
    return {i for n, i in enumerate(having) if n // 8 < len(b) and b[n // 8] >> (7 - n % 8) & 1}


def _collations(
    columns: list[Column], kinds: frozenset[int] | set[int], more: dict[int, bytes], default: int, each: int
) -> dict[int, int]:
    having = [i for i, column in enumerate(columns) if column.kind in kinds]
    if each in more:
        return dict(zip(having, _lengths(more[each]), strict=False))
    if default in more:
        usual, *others = _lengths(more[default])
        found = dict.fromkeys(having, usual)
        found.update({having[n]: collation for n, collation in zip(others[::2], others[1::2], strict=False)})
        return found
    return {}
