"""The messages of PostgreSQL's ``pgoutput`` plugin, protocol 1 and 2, from bytes to values, without I/O.

See Logical Replication Message Formats in PostgreSQL's documentation. A message is a str with one character
for each byte. Tuples, which every row has, are read by a function that is generated for the table and its
schema version (`Shape`); all other messages are rare.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headwater.capture.envelope import compile_function, members, row
from headwater.capture.postgres.values import Kind, Types
from headwater.capture.source import Record

__all__ = [
    "SHORT_BYTES",
    "TUPLE_AT",
    "Begin",
    "Column",
    "Commit",
    "Event",
    "Relation",
    "Shape",
    "UnsentValueError",
    "lsn_text",
    "parse_lsn",
    "relation",
    "texts",
]

SHORT_BYTES = 256
TUPLE_AT = 33
"""Where the columns begin in an Insert, or in an Update without an old tuple: after the stream's header of 25
bytes and the number of columns."""
_U32, _U64 = struct.Struct(">I"), struct.Struct(">Q")
EPOCH_US = 946_684_800_000_000
"""2000-01-01, from which PostgreSQL counts."""


class UnsentValueError(Exception):
    """A tuple has no value for a column, because the change did not touch it."""


class Column(NamedTuple):
    """A column in a Relation message."""

    name: str
    oid: int
    typmod: int
    is_key: bool
    """Whether it is part of the replica identity; with FULL, all are."""


class Relation(NamedTuple):
    """A table at one version of its schema."""

    oid: int
    schema: str
    name: str
    identity: str
    """The replica identity: d, n, f or i, as in pg_class."""
    columns: tuple[Column, ...]


class Begin(NamedTuple):
    """The begin of a transaction: the LSN and time of its commit, and its number."""

    final_lsn: int
    at_us: int
    xid: int

    @classmethod
    def parse(cls, message: str) -> "Begin":
        final, at, xid = struct.unpack(">QqI", message[1:21].encode("latin-1"))
        return cls(final, at + EPOCH_US, xid)


class Commit(NamedTuple):
    """The end of a transaction; the next one is at ``end_lsn`` or after it."""

    lsn: int
    end_lsn: int
    at_us: int

    @classmethod
    def parse(cls, message: str, at: int = 2) -> "Commit":
        """Parses a Commit or Stream Commit; ``at`` is where its numbers begin."""
        lsn, end, when = struct.unpack(">QQq", message[at : at + 24].encode("latin-1"))
        return cls(lsn, end, when + EPOCH_US)


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it: ``0/16B3748``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The LSN of a text: ``0/16B3748``."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def relation(message: str) -> Relation:
    """The content of a Relation message, given from its kind on."""
    oid = _u32(message, 1)
    schema, at = _text(message, 5)
    name, at = _text(message, at)
    identity = message[at]
    count, at = ord(message[at + 1]) << 8 | ord(message[at + 2]), at + 3
    columns = []
    for _ in range(count):
        flags = ord(message[at])
        column, at = _text(message, at + 1)
        kind, typmod = struct.unpack(">Ii", message[at : at + 8].encode("latin-1"))
        columns.append(Column(column, kind, typmod, bool(flags & 1)))
        at += 8
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


Event = Callable[[str, bytes], Record]
Bind = Callable[[str, int, str, str, str], Event]
Pieces = Callable[[str, bytes, int], tuple[list[str | None], int]]


class Shape:
    """The generated functions that read tuples of one table and schema version.

    ``short`` and ``long`` return a function from a message, as text and as bytes, to its record, for the
    usual messages with a new tuple only. Their arguments are what the rows of a transaction share: topic and
    timestamp, and the texts before, between and after the two places of the LSN in the source block. The
    function raises UnsentValueError if a value was not sent. ``short`` is for messages of fewer than
    SHORT_BYTES, where lengths fit in one byte.

    ``pieces`` returns a piece for each column, None for a value that was not sent, and the end of the tuple,
    which begins after the number of columns.
    """

    def __init__(self, relation: Relation, key: Sequence[str], types: Types) -> None:
        names = [column.name for column in relation.columns]
        self.names = names
        self.kinds = [types.kind(column.oid, column.typmod) for column in relation.columns]
        self.key_columns = [names.index(name) for name in key]
        self.row = row(names)
        self.key = row(names, self.key_columns) if key else None
        self.short: Bind = self._compile_event(long=False)
        self.long: Bind = self._compile_event(long=True)
        self.pieces: Pieces = self._compile_pieces()

    def fill(self, pieces: Sequence[str | None]) -> list[str]:
        """The pieces with placeholders for unknown values."""
        return [
            kind.unavailable if piece is None else piece
            for piece, kind in zip(pieces, self.kinds, strict=True)
        ]

    def _compile_event(self, *, long: bool) -> Bind:
        body = _columns_code(self.kinds, "unsent()", long=long)
        row = members(self.names, [f"c{at}" for at in range(len(self.names))])
        key = "None"
        if self.key_columns:
            inside = members(
                [self.names[at] for at in self.key_columns], [f"c{at}" for at in self.key_columns]
            )
            key = f"f\"{inside}\".encode('latin-1')"
        value = f'{{{{\\"before\\":null,\\"after\\":{row},\\"source\\":{{h}}{{n}}{{m}}{{n}}{{z}}'
        code = (
            f"def bind(topic, ms, h, m, z):\n  def event(t, b):\n    a = {TUPLE_AT}\n{body}"
            f"    n = str(u64(b, 1)[0])\n"
            f"    return new(Record, (topic, {key}, f\"{value}\".encode('latin-1'), ms))\n  return event\n"
        )
        bind: Bind = compile_function("bind", code, new=tuple.__new__, Record=Record, **self._functions())
        return bind

    def _compile_pieces(self) -> Pieces:
        body = _columns_code(self.kinds, "None", long=True)
        columns = ", ".join(f"c{at}" for at in range(len(self.kinds)))
        code = f"def pieces(t, b, a):\n{body}    return [{columns}], a\n"
        pieces: Pieces = compile_function("pieces", code, **self._functions())
        return pieces

    def _functions(self) -> dict[str, object]:
        """The functions that the generated code calls, by name."""
        return {f"e{at}": kind.encode for at, kind in enumerate(self.kinds)} | {
            "u32": _U32.unpack_from,
            "u64": _U64.unpack_from,
            "unsent": _unsent,
        }


def texts(message: str, at: int, columns: int) -> list[str | None]:
    """The texts of a tuple's columns, which begin at ``at``; None for one that is null or was not sent."""
    column_texts: list[str | None] = []
    for _ in range(columns):
        if message[at] == "t":
            end = at + 5 + _u32(message, at + 1)
            column_texts.append(message[at + 5 : end].encode("latin-1").decode())
            at = end
        else:
            column_texts.append(None)
            at += 1
    return column_texts


def _unsent() -> None:
    raise UnsentValueError


def _columns_code(kinds: Sequence[Kind], unsent: str, *, long: bool) -> str:
    """Code that reads a tuple from ``a`` on into c0, c1, …: lengths from bytes, values from the text."""
    length = "u32(b, a + 1)[0]" if long else "b[a + 4]"
    lines = []
    for at, kind in enumerate(kinds):
        value = "t[a + 5:e]" if kind.encode is None else f"e{at}(t[a + 5:e])"
        lines.append(
            f"    if b[a] == {ord('t')}:\n"
            f"        e = a + 5 + {length}; c{at} = {value}; a = e\n"
            f"    else:\n"
            f"        c{at} = 'null' if b[a] == {ord('n')} else {unsent}; a += 1\n"
        )
    return "".join(lines)


def _u32(message: str, at: int) -> int:
    return int.from_bytes(message[at : at + 4].encode("latin-1"))


def _text(message: str, at: int) -> tuple[str, int]:
    end = message.index("\0", at)
    return message[at:end].encode("latin-1").decode(), end + 1
