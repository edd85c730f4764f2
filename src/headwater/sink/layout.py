"""Layout: the columns of a SQL table that holds a feed's rows, and what identifies a row.

A keyed feed's rows are identified by its key columns, those of an append feed by ``_partition`` and ``_offset``. A window among the key
columns is a JSON object; what identifies it is its start, in a column of its own behind it: ``window_start``.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from headwater.change import Change
from headwater.errors import UsageError
from headwater.sink.store import Feed, Poison

__all__ = [
    "LENIENT",
    "OFFSET",
    "PARTITION",
    "STRICT",
    "VERSION",
    "Column",
    "Layout",
    "check_history",
    "check_rows",
    "check_table",
    "layout",
    "quoted",
    "reader",
]

PARTITION, OFFSET, VERSION = "_partition", "_offset", "_version"
OWN_TABLES = {"headwater_format", "headwater_position", "headwater_origin"}
"""What a sink keeps for itself, beside the table of its rows."""
VALIDITY = ("valid_from", "valid_to")
"""The columns that say when a version held, in a table with history."""
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
"""What is kept apart of Spark's types: a table's INT may grow into a BIGINT without a migration."""
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
"""What the JSON on the wire has of each kind, as a rule."""
LENIENT = STRICT | {"DOUBLE": float | Literal["NaN", "Infinity", "-Infinity"], "DECIMAL": Decimal}
"""What comes seldom: doubles that are no numbers, decimals that were written as numbers."""
ODD = re.compile(r'["\\\x00-\x1f]')
WORD = re.compile(r"\s*([A-Za-z_]+)\s*(\([\d\s,]+\))?")


class Column(msgspec.Struct, frozen=True):
    """One column; ``kind`` is one of the values of KINDS, ``digits`` is ``(38,9)`` of a decimal."""

    name: str
    kind: str
    digits: str = ""


class Layout(msgspec.Struct, frozen=True):
    """What a table of a feed looks like."""

    feed: Feed
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """What identifies a row, by the names of table columns."""
    starts: dict[str, str]
    """Of windows in the key: the column of the start, and that of the window."""

    def key_values(self, change: Change) -> list[Any]:
        """The values of the key columns, as JSON has them on the wire. Poison when the key is not one of such columns."""
        names = self.feed.key
        if len(names) == 1:
            return [self._lone(change)]
        try:
            values = msgspec.json.decode(change.key)
        except msgspec.DecodeError:
            values = None
        if not isinstance(values, list) or len(values) != len(names):
            what = f"the key is no JSON array of {', '.join(names)}: {change.key[:100]!r}"
            raise Poison(change.partition, change.offset, what)
        return values

    def _lone(self, change: Change) -> Any:
        (name,) = self.feed.key
        kind = next(column.kind for column in self.columns if column.name == name)
        if change.key == "[null]" or change.key.startswith('["'):
            return _only(change.key)
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


def _only(key: str) -> Any:
    """The value of a key that looks like an array (``headwater.schema.key_text``); one that is none is a text of others."""
    try:
        values = msgspec.json.decode(key)
    except msgspec.DecodeError:
        return key
    return values[0] if isinstance(values, list) and len(values) == 1 else key


def layout(feed: Feed) -> Layout:
    """UsageError when the feed has a column that no table can have, or lacks one of its key."""
    columns = tuple(_column(feed, name, kind) for name, kind in feed.columns.items())
    if feed.append:
        return Layout(feed, columns, (PARTITION, OFFSET), {})
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
            hint="rename it",
        )
    ends = {window: start for start, window in starts.items()}
    return Layout(feed, columns, tuple(ends.get(name, name) for name in feed.key), starts)


def check_table(feed: Feed, table: str) -> None:
    """UsageError when a sink's rows would be among what it keeps for itself."""
    if table.lower() in OWN_TABLES:
        raise UsageError(
            f"sink {feed.sink!r}: a table of that name is the sinks' own",
            got=repr(table),
            hint="give it another with table=",
        )


def check_history(feed: Feed) -> None:
    """UsageError when there are no versions of rows to keep, or a column has the name of one that says when they held."""
    if taken := [name for name in feed.columns if name.lower() in VALIDITY]:
        raise UsageError(
            f"sink {feed.sink!r}: column {taken[0]!r} is needed for the time of a version",
            got="history=True",
            hint="rename it in the view, or leave history out: such rows may be versions already",
        )
    if feed.append:
        raise UsageError(
            f"sink {feed.sink!r}: rows of {feed.topic!r} are never replaced",
            got="history=True",
            hint="leave it out",
        )
    if feed.versioned:
        raise UsageError(
            f"sink {feed.sink!r}: a real-time view has no history",
            got="history=True",
            expected="a view in batches",
        )


def check_rows(table: str, there: Collection[str], wanted: Collection[str]) -> None:
    """UsageError when a table holds a row for each key and one for each record or version is wanted, or the other way round."""
    if (PARTITION in there) != (PARTITION in wanted):
        kinds = "one row for each key", "a row for each record or version"
        raise UsageError(
            f"table {table!r} holds rows of another kind",
            got=kinds[PARTITION in wanted],
            expected=kinds[PARTITION in there],
            hint="give the sink another table, or drop this one and the sink's lines in headwater_position",
        )


def reader(columns: Sequence[Column], kinds: Mapping[str, Any]) -> Callable[[str], tuple[Any, ...]]:
    """A function from a JSON object to the values of its columns, by the Python types of ``kinds``; nested ones as text, what is missing as None.

    It raises a MsgspecError when a value is of another type.
    """
    # Raw takes null too, and refuses to be one of two.
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
                found = bytes(row[n]).decode()
                row[n] = None if found == "null" else found
        return tuple(row)

    return read


def _column(feed: Feed, name: str, kind: str) -> Column:
    if ODD.search(name):
        raise UsageError(
            f"sink {feed.sink!r}: a column has a name that no table can have",
            got=repr(name),
            expected="a name without quotation marks, backslashes and control characters",
            hint="rename it in the view",
        )
    found = WORD.match(kind)
    known = KINDS.get(found[1].upper()) if found else None
    if found is None or known is None:
        raise UsageError(
            f"sink {feed.sink!r}: column {name!r} has a type that no table has",
            got=kind,
            expected="a number, text, boolean, timestamp, date, binary, struct, array or map",
        )
    return Column(name, known, (found[2] or "").replace(" ", "") if known == "DECIMAL" else "")


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
