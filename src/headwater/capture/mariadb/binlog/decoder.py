"""Decoder: from the bytes of a binlog of MariaDB or MySQL to events, without I/O.

Every event has a header of 19 bytes (time, type, server, length, next position, flags), a body, and a CRC-32
if the server writes checksums. The `TableMap` event before row events describes their table; names, signs and
key are only in it with ``binlog_row_metadata=FULL``.
"""

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

from headwater.capture.mariadb.binlog.column_types import GEOMETRY, NUMERIC, TEXTUAL, YEAR
from headwater.capture.mariadb.binlog.events import (
    Annotate,
    Event,
    Format,
    Gtid,
    GtidList,
    Heartbeat,
    Incident,
    Prepared,
    Query,
    Rotate,
    Rows,
    TableMap,
    Xid,
)
from headwater.capture.mariadb.binlog.table_map import packed_length, table_map
from headwater.errors import CaptureError

__all__ = ["HEADER", "Decoder"]

HEADER: Final = Struct("<IBIIIH")
GTID: Final = Struct("<QIB")
LISTED_GTID: Final = Struct("<IIQ")
MAPS_MAX: Final = 10_000
"""The number of table maps that are cached."""
ENDED: Final = "set it globally, let sessions end that still have another value, and take a new snapshot"
REFUSED: Final = {
    **dict.fromkeys(
        (20, 21, 22), ("row events in the format of MySQL 5.1", "binlog_format=ROW of a newer server")
    ),
    40: ("a compressed transaction", "binlog_transaction_compression=OFF"),
    42: ("a tagged transaction", "gtid_next without a tag"),
}
"""By event type, events that contain changes but cannot be read: their name, and the setting that avoids
them."""

Decode = Callable[[bytes, int, int, int, int], Event | None]
"""From an event, its end without checksum, timestamp, server id and next position."""


class Decoder:
    """Decodes the events of one stream in order; it keeps the table maps for the row events after them.

    `wanted` decides by schema and table whether rows are decoded. Other rows, and events that a capture does
    not need, become None.
    """

    def __init__(self, wanted: Callable[[str, str], bool], *, checksum: bool) -> None:
        self._wanted = wanted
        self._checksum = checksum
        self._textual = TEXTUAL
        self._numeric = NUMERIC
        self._maps: dict[int, TableMap | None] = {}
        self._cached_maps: dict[bytes, TableMap | None] = {}
        self._decoders: dict[int, Decode] = {
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
            **{kind: _refusal(what, setting) for kind, (what, setting) in REFUSED.items()},
        }
        for op, plain, extended, packed, packed_extended in (
            ("c", 23, 30, 166, 169),
            ("u", 24, 31, 167, 170),
            ("d", 25, 32, 168, 171),
        ):
            self._decoders[plain] = self._rows(op, extended=False, packed=False)
            self._decoders[extended] = self._rows(op, extended=True, packed=False)
            self._decoders[packed] = self._rows(op, extended=False, packed=True)
            self._decoders[packed_extended] = self._rows(op, extended=True, packed=True)

    def decode(self, event: bytes) -> Event | None:
        """The value of one event, given with its header and checksum."""
        timestamp, kind, server, length, position, _ = HEADER.unpack_from(event)
        if length != len(event):
            raise CaptureError("a binlog event is cut off", got=f"{len(event)} bytes", expected=str(length))
        end = length
        if self._checksum and kind != 15:
            end -= 4
            if zlib.crc32(memoryview(event)[:end]) != int.from_bytes(event[end:], "little"):
                raise CaptureError(f"a binlog event before position {position} has a wrong checksum")
        decode = self._decoders.get(kind)
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
        number, domain, flags = GTID.unpack_from(b, 19)
        return Gtid(domain, server, number, standalone=bool(flags & 1), prepared=bool(flags & 64))

    def _mysql_gtid(self, b: bytes, *_: int) -> Event:
        source = b[20:36].hex()
        uuid = "-".join((source[:8], source[8:12], source[12:16], source[16:20], source[20:]))
        # MySQL does not say whether a commit event follows: without BEGIN, the statement is the whole
        # transaction.
        return Gtid(uuid, 0, int.from_bytes(b[36:44], "little"), standalone=False)

    def _gtid_list(self, b: bytes, *_: int) -> Event:
        count = int.from_bytes(b[19:23], "little") & 0x0FFFFFFF
        return GtidList(tuple(LISTED_GTID.unpack_from(b, 23 + 16 * at) for at in range(count)))

    def _table_map(self, b: bytes, end: int, *_: int) -> Event | None:
        number = int.from_bytes(b[19:25], "little")
        body = b[27:end]
        try:
            decoded = self._cached_maps[body]
        except KeyError:
            if len(self._cached_maps) >= MAPS_MAX:
                self._cached_maps.clear()
            decoded = self._cached_maps[body] = table_map(body, self._wanted, self._textual, self._numeric)
        self._maps[number] = decoded
        return decoded

    def _rows(self, op: str, *, extended: bool, packed: bool) -> Decode:
        def rows(b: bytes, end: int, timestamp: int, _server: int, position: int) -> Event | None:
            table = self._maps[int.from_bytes(b[19:25], "little")]
            if table is None:
                return None
            at = 27 + int.from_bytes(b[27:29], "little") if extended else 27
            width, at = packed_length(b, at)
            size = (width + 7) // 8
            for _ in range(2 if op == "u" else 1):
                if int.from_bytes(b[at : at + size], "little").bit_count() != width:
                    raise CaptureError(
                        f"rows of {table.schema}.{table.name} are logged without some of their columns",
                        expected="binlog_row_image=FULL",
                        hint=ENDED,
                    )
                at += size
            if packed:
                return Rows(op, table, _inflate(b, at, end), 0, timestamp, position)
            return Rows(op, table, b[:end], at, timestamp, position)

        return rows


def _refusal(what: str, expected: str) -> Decode:
    def refuse(*_: object) -> Event | None:
        raise CaptureError(f"the binlog has {what}, which is not supported", expected=expected, hint=ENDED)

    return refuse


def _statement(b: bytes, end: int, *, packed: bool) -> tuple[str, str]:
    schema_length = b[27]
    at = 32 + int.from_bytes(b[30:32], "little")
    schema = b[at : at + schema_length].decode()
    at += schema_length + 1
    text = _inflate(b, at, end) if packed else b[at:end]
    return schema, text.decode("utf-8", "replace")


def _inflate(b: bytes, at: int, end: int) -> bytes:
    """MariaDB's compressed data: a byte with algorithm and size of the length, the length, and zlib data."""
    return zlib.decompress(b[at + 1 + (b[at] & 7) : end])
