"""Wire: a view's rows as Kafka records, computed by Spark in the form that ``headwater.schema`` defines.

key = one column as text, several as a compact JSON array, a window as its start; value = a JSON object of all
columns; timestamps ISO 8601 UTC with microseconds, decimals strings, binary base64; headers view, run, batch.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
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

__all__ = ["VERSION", "check", "records"]

VERSION = "_version"
"""The one column of ours that is published: readers of real-time views drop a row that is not newer."""

ISO = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
JSON = {"timestampFormat": ISO, "timestampNTZFormat": ISO, "ignoreNullFields": "false"}
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
        if not isinstance(kinds[name], KEYS) and not _is_window(kinds[name]):
            raise UsageError(
                f"view {view.name!r}: key column {name!r} has no exact text",
                got=kinds[name].simpleString(),
                expected="text, whole numbers, decimals, booleans, dates, timestamps or a window",
            )


def records(rows: DataFrame, view: View, run: str, batch: str) -> DataFrame:
    """The rows as key, value and headers for Spark's Kafka sink."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    shown = [name for name in kinds if not name.startswith("_") or name == VERSION]
    value = F.to_json(F.struct(*[_plain(_column(name), kinds[name]).alias(name) for name in shown]), JSON)
    key = _key([(_column(name), kinds[name]) for name in view.key])
    headers = {"view": view.name, "run": run, "batch": batch}
    return rows.select(
        key.alias("key"),
        value.alias("value"),
        F.array(*[_header(name, text) for name, text in headers.items()]).alias("headers"),
    )


def _column(name: str) -> Column:
    return F.col(f"`{name}`")


def _header(name: str, text: str) -> Column:
    return F.struct(F.lit(name).alias("key"), F.lit(text).cast("binary").alias("value"))


def _key(parts: list[tuple[Column, DataType]]) -> Column:
    if len(parts) == 1:
        return F.coalesce(_text(*parts[0]), F.lit("[null]"))
    items = [_json(*part) for part in parts]
    return F.concat(F.lit("["), F.concat_ws(",", *items), F.lit("]"))


def _text(column: Column, kind: DataType) -> Column:
    """A key column as bare text; null stays null."""
    if _is_window(kind):
        column = column["start"]
        return F.date_format(column, ISO)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.date_format(column, ISO)
    if isinstance(kind, BinaryType):
        return F.base64(column)
    return column.cast("string")


def _json(column: Column, kind: DataType) -> Column:
    """A key column as one JSON value: what stands behind ``{"k":`` in Spark's own rendering."""
    plain = column if isinstance(kind, IntegralType | BooleanType) else _text(column, kind)
    rendered = F.to_json(F.struct(plain.alias("k")), JSON)
    return F.substring(rendered, F.lit(6), F.length(rendered) - 6)


def _plain(column: Column, kind: DataType) -> Column:
    """A column without decimals inside, which Spark would write as JSON numbers."""
    if isinstance(kind, DecimalType):
        return column.cast("string")
    if isinstance(kind, StructType) and _has_decimal(kind):
        inner = F.struct(
            *[_plain(column[field.name], field.dataType).alias(field.name) for field in kind.fields]
        )
        return F.when(column.isNotNull(), inner)
    if isinstance(kind, ArrayType) and _has_decimal(kind):
        return F.transform(column, lambda item: _plain(item, kind.elementType))
    return column


def _has_decimal(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_decimal(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_decimal(kind.elementType)
    return isinstance(kind, DecimalType)


def _is_window(kind: DataType) -> bool:
    return isinstance(kind, StructType) and kind.names == ["start", "end"]
