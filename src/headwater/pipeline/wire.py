"""Wire: a view's rows as Kafka records, computed by Spark in the form that ``headwater.schema`` defines.

key = one column as text, several as a compact JSON array, a window as its start; value = a JSON object of all
columns; timestamps ISO 8601 UTC with microseconds, decimals strings, binary base64; headers view, run, batch.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.errors import UsageError
from headwater.graph import View

__all__ = [
    "GONE",
    "UNTIL",
    "VERSION",
    "WEIGHT",
    "check",
    "expressions",
    "is_window",
    "json_expression",
    "key_expression",
    "literal",
    "quoted",
    "records",
    "row_expression",
]

VERSION = "_version"
"""Published: readers of real-time views drop a row that is not newer."""
UNTIL = "_until"
"""Published: the row is complete once the watermark has reached this time."""
GONE = "_gone"
"""Not published: true for a row that is no longer in the view."""
WEIGHT = "_weight"
"""Not published: 1 for a row that comes into a table, -1 for one that is taken out; a row that changes is both."""

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


def check(rows: DataFrame, view: View) -> None:
    """Refuses a view whose key is not among its columns or has no text form."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    twice = {name for name in rows.columns if rows.columns.count(name) > 1}
    if twice:
        raise UsageError(
            f"view {view.name!r} has two columns named {', '.join(sorted(twice))!r}",
            hint="rename one with alias()",
        )
    for name in view.key:
        if name not in kinds:
            raise UsageError(
                f"view {view.name!r}: key column {name!r} is not in its output", got=", ".join(kinds)
            )
        if not isinstance(kinds[name], KEYS) and not is_window(kinds[name]):
            raise UsageError(
                f"view {view.name!r}: key column {name!r} has no exact text",
                got=kinds[name].simpleString(),
                expected="text, whole numbers, decimals, booleans, dates, timestamps or a window",
            )


def expressions(kind: StructType, view: View) -> tuple[str, str]:
    """SQL for the key and the value of rows of this kind: text, since a batch should not spend its time on building columns."""
    value = json_expression(row_expression(kind))
    return key_expression(kind, view.key), f"IF({GONE}, NULL, {value})" if GONE in kind.names else value


def row_expression(kind: StructType) -> str:
    """SQL for what is published of rows of this kind, as a struct."""
    kinds = {field.name: field.dataType for field in kind.fields}
    shown = [name for name in kinds if not name.startswith("_") or name in {VERSION, UNTIL}]
    return f"named_struct({', '.join(f'{literal(name)}, {_plain(quoted(name), kinds[name])}' for name in shown)})"


def json_expression(row: str) -> str:
    """SQL for the text of a struct."""
    return f"to_json({row}, {JSON})"


def key_expression(kind: StructType, key: Sequence[str]) -> str:
    """SQL for the text of a key."""
    kinds = {field.name: field.dataType for field in kind.fields}
    return _key([(quoted(name), kinds[name]) for name in key])


def records(rows: DataFrame, sql: tuple[str, str], **headers: str) -> DataFrame:
    """The rows as key, value and headers for Spark's Kafka sink."""
    key, value = sql
    pairs = [
        f"named_struct('key', {literal(n)}, 'value', CAST({literal(t)} AS BINARY))"
        for n, t in headers.items()
    ]
    return rows.selectExpr(f"{key} AS key", f"{value} AS value", f"array({', '.join(pairs)}) AS headers")


def quoted(name: str) -> str:
    """A column's name as Spark's SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _key(parts: list[tuple[str, DataType]]) -> str:
    if len(parts) == 1:
        return f"coalesce({_text(*parts[0])}, '[null]')"
    items = ", ',', ".join(_json(*part) for part in parts)
    return f"concat('[', {items}, ']')"


def _text(column: str, kind: DataType) -> str:
    """A key column as bare text; null stays null."""
    if is_window(kind):
        return f"date_format({column}.start, {ISO})"
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"date_format({column}, {ISO})"
    if isinstance(kind, BinaryType):
        return f"base64({column})"
    return f"CAST({column} AS STRING)"


def _json(column: str, kind: DataType) -> str:
    """A key column as one JSON value: what stands behind ``{"k":`` in Spark's own rendering."""
    plain = column if isinstance(kind, IntegralType | BooleanType) else _text(column, kind)
    rendered = f"to_json(named_struct('k', {plain}), {JSON})"
    return f"substring({rendered}, 6, length({rendered}) - 6)"


def _plain(column: str, kind: DataType) -> str:
    """A column without decimals inside, which Spark would write as JSON numbers."""
    if isinstance(kind, DecimalType):
        return f"CAST({column} AS STRING)"
    if isinstance(kind, StructType) and _has_decimal(kind):
        inner = (
            f"{literal(f.name)}, {_plain(f'{column}.{quoted(f.name)}', f.dataType)}" for f in kind.fields
        )
        return f"if({column} IS NULL, NULL, named_struct({', '.join(inner)}))"
    if isinstance(kind, ArrayType) and _has_decimal(kind):
        return f"transform({column}, item -> {_plain('item', kind.elementType)})"
    return column


def _has_decimal(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_decimal(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_decimal(kind.elementType)
    return isinstance(kind, DecimalType)


def is_window(kind: DataType) -> bool:
    """Whether a column is a window, as Spark makes them."""
    return isinstance(kind, StructType) and kind.names == ["start", "end"]
