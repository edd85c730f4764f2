"""Table maps: from the body of a binlog's table map event to the columns and the key of the table."""

from collections.abc import Callable, Collection
from typing import Final

from headwater.capture.mariadb.binlog.column_types import (
    BINARY_COLLATION,
    BIT,
    DECIMAL,
    ENUM,
    META_BYTES,
    SET,
    STRING,
    YEAR,
)
from headwater.capture.mariadb.binlog.events import Column, TableMap
from headwater.errors import CaptureError

__all__ = ["packed_length", "table_map"]

# The optional fields at the end of a table map, by their numbers.
SIGNS: Final = 1
DEFAULT_COLLATION, COLLATIONS, NAMES, SET_LABELS, ENUM_LABELS = range(2, 7)
KEY, KEY_PREFIXES, DEFAULT_LABEL_COLLATION, LABEL_COLLATIONS = range(8, 12)


def table_map(
    b: bytes, wanted: Callable[[str, str], bool], textual: Collection[int], numeric: Collection[int]
) -> TableMap | None:
    """The table map in these bytes; None if its table is not wanted.

    ``textual`` and ``numeric`` are the types for which this server lists a collation and a sign.
    """
    schema, at = b[1 : 1 + b[0]].decode(), b[0] + 2
    name, at = b[at + 1 : at + 1 + b[at]].decode(), at + b[at] + 2
    if not wanted(schema, name):
        return None
    count, at = packed_length(b, at)
    kinds, at = b[at : at + count], at + count
    size, at = packed_length(b, at)
    columns = _columns(kinds, b[at : at + size])
    at += size
    nulls, at = b[at : at + (count + 7) // 8], at + (count + 7) // 8
    fields = {}
    while at < len(b):
        field, (value, at) = b[at], _text(b, at + 1)
        fields[field] = value
    if NAMES not in fields:
        raise CaptureError(
            f"the binlog does not name the columns of {schema}.{name}",
            expected="binlog_row_metadata=FULL",
            hint="SET GLOBAL binlog_row_metadata=FULL, and take a new snapshot: older events cannot be read",
        )
    names, labels = [text.decode() for text in _texts(fields[NAMES])], _labels(columns, fields)
    unsigned = _flagged(columns, numeric, fields.get(SIGNS, b""))
    collations = {
        **_collations(columns, textual, fields, DEFAULT_COLLATION, COLLATIONS),
        **_collations(columns, {ENUM, SET}, fields, DEFAULT_LABEL_COLLATION, LABEL_COLLATIONS),
    }
    described = (
        column._replace(
            name=names[i],
            nullable=bool(nulls[i // 8] >> i % 8 & 1),
            unsigned=i in unsigned and column.kind != YEAR,
            collation=collations.get(i, BINARY_COLLATION),
            labels=labels.get(i, ()),
        )
        for i, column in enumerate(columns)
    )
    key = _lengths(fields.get(KEY, b"")) or _lengths(fields.get(KEY_PREFIXES, b""))[::2]
    return TableMap(schema, name, tuple(described), tuple(key))


def packed_length(b: bytes, at: int) -> tuple[int, int]:
    """The protocol's packed integer, and the offset after it."""
    first = b[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(b[at + 1 : at + 1 + size], "little"), at + 1 + size


def _lengths(b: bytes) -> list[int]:
    lengths, at = [], 0
    while at < len(b):
        length, at = packed_length(b, at)
        lengths.append(length)
    return lengths


def _text(b: bytes, at: int) -> tuple[bytes, int]:
    size, at = packed_length(b, at)
    return b[at : at + size], at + size


def _texts(b: bytes) -> list[bytes]:
    texts, at = [], 0
    while at < len(b):
        text, at = _text(b, at)
        texts.append(text)
    return texts


def _columns(kinds: bytes, metadata: bytes) -> list[Column]:
    columns, at = [], 0
    for kind in kinds:
        size = META_BYTES.get(kind, 0)
        columns.append(_column(kind, metadata[at : at + size]))
        at += size
    return columns


def _column(kind: int, metadata: bytes) -> Column:
    if kind == STRING:
        if metadata[0] in {ENUM, SET}:
            return Column("", metadata[0], metadata[1])
        # Bits 8 and 9 of the length are stored inverted in the byte of the type.
        return Column("", STRING, metadata[1] | ((metadata[0] & 0x30) ^ 0x30) << 4)
    if kind == DECIMAL:
        return Column("", kind, metadata[0], metadata[1])
    if kind == BIT:
        return Column("", kind, metadata[1] * 8 + metadata[0])
    return Column("", kind, int.from_bytes(metadata, "little"))


def _labels(columns: list[Column], fields: dict[int, bytes]) -> dict[int, tuple[bytes, ...]]:
    labels: dict[int, tuple[bytes, ...]] = {}
    for kind, field in ((SET, SET_LABELS), (ENUM, ENUM_LABELS)):
        b, at = fields.get(field, b""), 0
        for i in (i for i, column in enumerate(columns) if column.kind == kind and b):
            count, at = packed_length(b, at)
            values = []
            for _ in range(count):
                value, at = _text(b, at)
                values.append(value)
            labels[i] = tuple(values)
    return labels


def _flagged(columns: list[Column], kinds: Collection[int], b: bytes) -> set[int]:
    """The columns whose bit is set.

    Only columns of some kinds have a bit; the highest bit of a byte is the first.
    """
    with_bit = [i for i, column in enumerate(columns) if column.kind in kinds]
    return {i for n, i in enumerate(with_bit) if n // 8 < len(b) and b[n // 8] >> (7 - n % 8) & 1}


def _collations(
    columns: list[Column], kinds: Collection[int], fields: dict[int, bytes], default: int, listed: int
) -> dict[int, int]:
    """Collations by column: a list of all of them, or a default and the columns that differ from it."""
    with_collation = [i for i, column in enumerate(columns) if column.kind in kinds]
    if listed in fields:
        return dict(zip(with_collation, _lengths(fields[listed]), strict=False))
    if default in fields:
        usual, *others = _lengths(fields[default])
        collations = dict.fromkeys(with_collation, usual)
        collations |= {
            with_collation[n]: collation for n, collation in zip(others[::2], others[1::2], strict=False)
        }
        return collations
    return {}
