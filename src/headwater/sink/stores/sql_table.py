"""TableLayout: the columns of a SQL table that holds a feed's rows, and what identifies a row.

The key columns identify the row of a keyed feed, ``_partition`` and ``_offset`` that of an append feed. A
window among the key columns is a JSON object; its start identifies it, in a column of its own:
``window_start``.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from headwater.change import Change
from headwater.errors import UsageError
from headwater.sink.store import Poison, SinkFeed

__all__ = [
    "LENIENT",
    "OFFSET",
    "PARTITION",
    "STRICT",
    "VERSION",
    "SqlColumn",
    "TableLayout",
    "check_history",
    "check_rows",
    "check_table",
    "quoted",
    "row_reader",
    "table_layout",
]

PARTITION, OFFSET, VERSION = "_partition", "_offset", "_version"
OWN_TABLES = {"headwater_format", "headwater_position", "headwater_origin"}
"""The tables that sinks keep for themselves, in addition to the table of the rows."""
VALIDITY = ("valid_from", "valid_to")
"""The columns of a table with history that say when a version was valid."""
KINDS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "BYTE", "SHORT", "LONG"), "BIGINT"),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE"), "DOUBLE"),
    **dict.fromkeys(("STRING", "VARCHAR", "CHAR"), "TEXT"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"), "TIMESTAMP"),
    **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC"), "DECIMAL"),
    **dict.fromkeys(("STRUCT", "ARRAY", "MAP", "VARIANT"), "JSON"),
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "BINARY": "BINARY",
    "VOID": "TEXT",
}
"""The kinds of columns that a table distinguishes, by Spark's types: an INT may become a BIGINT without a
migration."""
INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
STRICT: dict[str, Any] = {
    "BIGINT": INT64,
    "DOUBLE": float,
    "TEXT": str,
    "BOOLEAN": bool,
    "TIMESTAMP": str,
    "DATE": str,
    "DECIMAL": str,
    "BINARY": bytes,
    "JSON": msgspec.Raw,
}
"""The usual form of each kind in a record's JSON."""
LENIENT = STRICT | {"DOUBLE": float | Literal["NaN", "Infinity", "-Infinity"], "DECIMAL": Decimal}
"""Rare forms too: doubles that are not numbers, and decimals that were written as numbers."""
ODD = re.compile(r'["\\\x00-\x1f]')
WORD = re.compile(r"\s*([A-Za-z_]+)\s*(\([\d\s,]+\))?")


class SqlColumn(msgspec.Struct, frozen=True):
    """One column; ``kind`` is one of the values of KINDS, ``digits`` is like ``(38,9)`` for a decimal."""

    name: str
    kind: str
    digits: str = ""


class TableLayout(msgspec.Struct, frozen=True):
    """The table of a feed."""

    feed: SinkFeed
    columns: tuple[SqlColumn, ...]
    key: tuple[str, ...]
    """The table columns that identify a row."""
    starts: dict[str, str]
    """For windows in the key: from the column of the start to that of the window."""

    def key_values(self, change: Change) -> list[Any]:
        """The values of the key columns as in the record's JSON.

        Poison if the key does not have these columns.
        """
        names = self.feed.key
        if len(names) == 1:
            return [self._single(change)]
        try:
            values = msgspec.json.decode(change.key)
        except msgspec.DecodeError:
            values = None
        if not isinstance(values, list) or len(values) != len(names):
            what = f"the key is not a JSON array of {', '.join(names)}: {change.key[:100]!r}"
            raise Poison(change.partition, change.offset, what)
        return values

    def _single(self, change: Change) -> Any:
        (name,) = self.feed.key
        kind = next(column.kind for column in self.columns if column.name == name)
        if change.key == "[null]" or change.key.startswith('["'):
            return _only_value(change.key)
        if kind not in {"BIGINT", "BOOLEAN"}:
            return change.key
        try:
            return json.loads(change.key)
        except ValueError:
            what = f"the key does not fit {name} {kind}: {change.key[:100]!r}"
            raise Poison(change.partition, change.offset, what) from None

    def has_null_key(self, change: Change) -> bool:
        if self.feed.append or "null" not in change.key:
            return False
        return None in self.key_values(change)


def _only_value(key: str) -> Any:
    """The value of a key that looks like an array (see ``declare/schema.py``, `key_text`), or the key."""
    try:
        values = msgspec.json.decode(key)
    except msgspec.DecodeError:
        return key
    return values[0] if isinstance(values, list) and len(values) == 1 else key


def table_layout(feed: SinkFeed) -> TableLayout:
    """The table of a feed. UsageError if no table can have a column of it, or if a key column is missing."""
    columns = tuple(_column(feed, name, kind) for name, kind in feed.columns.items())
    if feed.append:
        return TableLayout(feed, columns, (PARTITION, OFFSET), {})
    kinds = {column.name: column.kind for column in columns}
    for name in feed.key:
        if name not in kinds:
            raise UsageError(
                f"sink {feed.sink!r}: key column {name!r} is not among its columns", got=", ".join(kinds)
            )
    starts = {f"{name}_start": name for name in feed.key if kinds[name] == "JSON"}
    taken = starts.keys() & kinds.keys()
    if taken:
        raise UsageError(
            f"sink {feed.sink!r}: column {taken.pop()!r} is needed for the start of a window",
            hint="rename it in the view",
        )
    ends = {window: start for start, window in starts.items()}
    return TableLayout(feed, columns, tuple(ends.get(name, name) for name in feed.key), starts)


def check_table(feed: SinkFeed, table: str) -> None:
    """UsageError if the table of the rows would be one that sinks keep for themselves."""
    if table.lower() in OWN_TABLES:
        raise UsageError(
            f"sink {feed.sink!r}: a table of that name is reserved for sinks",
            got=repr(table),
            hint="give the table another name with table=",
        )


def check_history(feed: SinkFeed) -> None:
    """UsageError if rows have no versions to keep, or a column has the name of one that history needs."""
    if taken := [name for name in feed.columns if name.lower() in VALIDITY]:
        raise UsageError(
            f"sink {feed.sink!r}: column {taken[0]!r} is needed for the time of a version",
            got="history=True",
            hint="rename it in the view, or omit history: such rows may be versions already",
        )
    if feed.append:
        raise UsageError(
            f"sink {feed.sink!r}: rows of {feed.topic!r} are never replaced",
            got="history=True",
            hint="omit it",
        )
    if feed.versioned:
        raise UsageError(
            f"sink {feed.sink!r}: a real-time view has no history",
            got="history=True",
            expected="a view in batches",
        )


def check_rows(table: str, existing: Collection[str], wanted: Collection[str]) -> None:
    """UsageError if a table has a row for each key, but the feed needs one for each record, or vice versa."""
    if (PARTITION in existing) != (PARTITION in wanted):
        kinds = "one row for each key", "a row for each record or version"
        raise UsageError(
            f"table {table!r} holds rows of another kind",
            got=kinds[PARTITION in wanted],
            expected=kinds[PARTITION in existing],
            hint="give the sink another table, or drop this one and the sink's lines in headwater_position",
        )


def row_reader(columns: Sequence[SqlColumn], kinds: Mapping[str, Any]) -> Callable[[str], tuple[Any, ...]]:
    """A function from a JSON object to the values of its columns, by the Python types of ``kinds``.

    Nested values are text, missing ones None. It raises a MsgspecError if a value is of another type.
    """
    # Raw accepts null too, and cannot be part of a union.
    types = [kinds[c.kind] if c.kind == "JSON" else kinds[c.kind] | None for c in columns]
    fields = [(f"c{n}", kind, None) for n, kind in enumerate(types)]
    names = {f"c{n}": column.name for n, column in enumerate(columns)}
    decode = msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=names, gc=False)).decode
    values = msgspec.structs.astuple
    nested = tuple(n for n, column in enumerate(columns) if column.kind == "JSON")
    if not nested:
        return lambda text: values(decode(text))

    def read(text: str) -> tuple[Any, ...]:
        row = list(values(decode(text)))
        for n in nested:
            if row[n] is not None:
                nested_text = bytes(row[n]).decode()
                row[n] = None if nested_text == "null" else nested_text
        return tuple(row)

    return read


def _column(feed: SinkFeed, name: str, notation: str) -> SqlColumn:
    if ODD.search(name):
        raise UsageError(
            f"sink {feed.sink!r}: a column has a name that no table can have",
            got=repr(name),
            expected="a name without quotation marks, backslashes and control characters",
            hint="rename it in the view",
        )
    match = WORD.match(notation)
    kind = KINDS.get(match[1].upper()) if match else None
    if match is None or kind is None:
        raise UsageError(
            f"sink {feed.sink!r}: column {name!r} has a type that no table has",
            got=notation,
            expected="a number, text, boolean, timestamp, date, binary, struct, array or map",
        )
    return SqlColumn(name, kind, (match[2] or "").replace(" ", "") if kind == "DECIMAL" else "")


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
