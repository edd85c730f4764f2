"""Wire: a view's rows as Kafka records, computed by Spark in the form that ``declare/schema.py`` defines.

key      one column as text, several as a compact JSON array, a window as its start; a null alone is
         ``[null]``, and therefore a text alone that looks like an array is an array too
value    a JSON object of all columns; timestamps in ISO 8601 UTC with microseconds, decimals as strings,
         binary in base64
headers  view, run, batch
"""

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.declare.spec import View
from headwater.errors import UsageError
from headwater.pipeline import refusals

__all__ = [
    "GONE",
    "INVALID",
    "UNTIL",
    "VERSION",
    "WEIGHT",
    "check",
    "expressions",
    "has_plain_identity",
    "identity_expression",
    "is_window",
    "json_expression",
    "key_expression",
    "like_array",
    "literal",
    "quoted",
    "records",
    "row_expression",
    "without_sign",
]

VERSION = "_version"
"""Published: readers of real-time views drop a row with a smaller version."""
UNTIL = "_until"
"""Published: the row is complete when the watermark has reached this time."""
GONE = "_gone"
"""Not published: true for a row that is no longer in the view."""
WEIGHT = "_weight"
"""Not published: 1 inserts a row of a table, -1 retracts it; a row that changes is both."""

ISO = "\"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\""
JSON = f"map('timestampFormat', {ISO}, 'timestampNTZFormat', {ISO}, 'ignoreNullFields', 'false')"
KEYS = (
    StringType,
    IntegralType,
    BooleanType,
    DecimalType,
    DateType,
    TimestampType,
    TimestampNTZType,
    BinaryType,
)
UNLIKE_JSON = (DecimalType, TimestampType, TimestampNTZType)
"""Types of which not every value is written as Spark's ``to_json`` would."""
LAST_TIME = "9999-12-31T23:59:59.999999Z"
"""The end of a window in the last hours of the year 9999 is this: readers have no year 10000."""
FLOATS = (FloatType, DoubleType)
ALSO_EQUAL = (*FLOATS, AnsiIntervalType, NullType)
"""Types that Spark can group by, in addition to those of keys."""


INVALID = "invalid"
"""The prefix of observations of a stream's invalid records, and the suffix of the topics for them."""


class Part(NamedTuple):
    """SQL for one column of a key."""

    text: str
    """Without quotes; null stays null. Empty if there is only JSON."""
    json: str
    like_array: str = ""
    """Whether the text looks like an array; empty if none does."""


def check(rows: DataFrame, view: View) -> None:
    """Refuses a view whose key is not among its columns or has no text form."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    twice = {name for name in rows.columns if rows.columns.count(name) > 1}
    if twice:
        raise refusals.TWO_COLUMNS.error(view=f"view {view.name!r}", column=repr(", ".join(sorted(twice))))
    for name in view.key:
        if name not in kinds:
            raise refusals.NO_KEY_COLUMN.error(
                got=", ".join(kinds), view=f"view {view.name!r}", column=repr(name)
            )
        if not isinstance(kinds[name], KEYS) and not is_window(kinds[name]):
            raise refusals.NO_EXACT_KEY.error(
                got=kinds[name].simpleString(), view=f"view {view.name!r}", column=repr(name)
            )


def expressions(kind: StructType, view: View) -> tuple[str, str]:
    """SQL for the key and the value of rows of this type; as text, which is cheaper to build than columns."""
    value = json_expression(row_expression(kind))
    return key_expression(kind, view.key), f"IF({GONE}, NULL, {value})" if GONE in kind.names else value


def row_expression(kind: StructType) -> str:
    """SQL for the published columns of rows of this type, as a struct."""
    kinds = {field.name: field.dataType for field in kind.fields}
    shown = [name for name in kinds if not name.startswith("_") or name in {VERSION, UNTIL}]
    parts = (f"{literal(name)}, {_plain(quoted(name), kinds[name])}" for name in shown)
    return f"named_struct({', '.join(parts)})"


def json_expression(row: str) -> str:
    """SQL for the text of a struct."""
    return f"to_json({row}, {JSON})"


def key_expression(kind: StructType, key: Sequence[str]) -> str:
    """SQL for the text of a record's key."""
    kinds = {field.name: field.dataType for field in kind.fields}
    return _key([_part(quoted(name), kinds[name]) for name in key])


def identity_expression(kind: StructType, key: Sequence[str]) -> str:
    """SQL for the text by which operators compare keys: equal if and only if the keys are.

    Raises UsageError for types without such a text.
    """
    kinds = {field.name: field.dataType for field in kind.fields}
    for name in key:
        if not _is_comparable(kinds[name]):
            raise UsageError(
                f"column {name!r} cannot be a key",
                got=kinds[name].simpleString(),
                expected="text without a collation, numbers, booleans, dates, times, binary, "
                "or arrays and structs of these",
                hint="use an expression of one of these types",
            )
    return _key([_identity(quoted(name), kinds[name]) for name in key])


def without_sign(column: str, kind: DataType) -> str:
    """SQL for a value without signed zeros, as Spark groups by it."""
    if not _has(kind, FLOATS):
        return column
    if isinstance(kind, StructType):
        inner = (
            f"{literal(f.name)}, {without_sign(f'{column}.{quoted(f.name)}', f.dataType)}"
            for f in kind.fields
        )
        return f"if({column} IS NULL, NULL, named_struct({', '.join(inner)}))"
    if isinstance(kind, ArrayType):
        return f"transform({column}, item -> {without_sign('item', kind.elementType)})"
    return f"({column} + CAST(0 AS {kind.simpleString()}))"


def records(rows: DataFrame, sql: tuple[str, str], **headers: str) -> DataFrame:
    """The rows as key, value and headers for Spark's Kafka sink."""
    key, value = sql
    pairs = [
        f"named_struct('key', {literal(n)}, 'value', CAST({literal(t)} AS BINARY))"
        for n, t in headers.items()
    ]
    return rows.selectExpr(f"{key} AS key", f"{value} AS value", f"array({', '.join(pairs)}) AS headers")


def quoted(name: str) -> str:
    """A column's name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _key(parts: list[Part]) -> str:
    items = ", ',', ".join(part.json for part in parts)
    array = f"concat('[', {items}, ']')"
    first = parts[0]
    if len(parts) > 1 or not first.text:
        return array
    alone = f"coalesce({first.text}, '[null]')"
    return f"if({first.like_array}, {array}, {alone})" if first.like_array else alone


def _part(column: str, kind: DataType) -> Part:
    """A column of a record's key."""
    text = _text(column, kind)
    plain = column if isinstance(kind, IntegralType | BooleanType) else text
    return Part(text, _json(plain), like_array(text) if isinstance(kind, StringType) else "")


def _identity(column: str, kind: DataType) -> Part:
    """A column of an operator's key. Windows include their end: two sessions may begin at the same time."""
    column = without_sign(column, kind)
    if isinstance(kind, StringType):
        text = _text(column, kind)
        like_null = f"startswith({text}, '[') AND ltrim('[', {text}) = 'null]'"
        return Part(f"if({like_null}, concat('[', {text}), {text})", _json(text))
    return _part(column, kind) if isinstance(kind, (*KEYS, *ALSO_EQUAL)) else Part("", _json(column))


def like_array(text: str) -> str:
    """SQL for whether a text looks like a key that is an array."""
    return f"({text} = '[null]' OR startswith({text}, '[\"'))"


def has_plain_identity(kind: DataType) -> bool:
    """Whether keys of a type have always been compared as now; state by other types has changed its form."""
    return isinstance(kind, KEYS)


def _is_comparable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_comparable(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_comparable(kind.elementType)
    if isinstance(kind, StringType):
        return bool(kind.isUTF8BinaryCollation())
    return isinstance(kind, (*KEYS, *ALSO_EQUAL))


def _text(column: str, kind: DataType) -> str:
    """A key column as text without quotes; null stays null."""
    if is_window(kind):
        return f"date_format({column}.start, {ISO})"
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"date_format({column}, {ISO})"
    if isinstance(kind, BinaryType):
        return f"base64({column})"
    return f"CAST({column} AS STRING)"


def _json(column: str) -> str:
    """A value as JSON: what follows ``{"k":`` in Spark's own rendering."""
    rendered = f"to_json(named_struct('k', {column}), {JSON})"
    return f"substring({rendered}, 6, length({rendered}) - 6)"


def _plain(column: str, kind: DataType) -> str:
    """A column as it is written: decimals are not JSON numbers, and no time is past the year 9999."""
    if isinstance(kind, DecimalType):
        return f"CAST({column} AS STRING)"
    if isinstance(kind, TimestampType | TimestampNTZType):
        last = f"CAST('{LAST_TIME}' AS {kind.simpleString()})"
        return f"if({column} > {last}, {last}, {column})"
    if isinstance(kind, StructType) and _has(kind, UNLIKE_JSON):
        inner = (
            f"{literal(f.name)}, {_plain(f'{column}.{quoted(f.name)}', f.dataType)}" for f in kind.fields
        )
        return f"if({column} IS NULL, NULL, named_struct({', '.join(inner)}))"
    if isinstance(kind, ArrayType) and _has(kind, UNLIKE_JSON):
        return f"transform({column}, item -> {_plain('item', kind.elementType)})"
    return column


def _has(kind: DataType, wanted: type[DataType] | tuple[type[DataType], ...]) -> bool:
    """Whether a type is, or contains, one of the wanted types."""
    if isinstance(kind, StructType):
        return any(_has(field.dataType, wanted) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has(kind.elementType, wanted)
    return isinstance(kind, wanted)


def is_window(kind: DataType) -> bool:
    """Whether a column is a window of Spark's."""
    return (
        isinstance(kind, StructType)
        and kind.names == ["start", "end"]
        and all(isinstance(field.dataType, TimestampType | TimestampNTZType) for field in kind.fields)
    )
