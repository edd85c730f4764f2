"""Types in Spark's notation, and the JSON of a record as Python values of these types."""

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec

from headwater.change import Change
from headwater.errors import UsageError
from headwater.sink.store import Poison, SinkFeed

__all__ = ["SparkType", "change_reader", "check_columns", "parse_type"]

TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")
PLAIN: dict[str, Any] = {
    "BOOLEAN": bool,
    "TINYINT": int,
    "SMALLINT": int,
    "INT": int,
    "BIGINT": int,
    "FLOAT": float,
    "DOUBLE": float,
    "STRING": str,
    "BINARY": bytes,
    "DATE": dt.date,
    "TIMESTAMP": dt.datetime,
    "TIMESTAMP_NTZ": dt.datetime,
    "DECIMAL": Decimal,
}
ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "VARCHAR": "STRING",
    "CHAR": "STRING",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
UNREAL = Literal["NaN", "Infinity", "-Infinity"]
"""The texts with which JSON has values that its numbers cannot have."""


class SparkType(msgspec.Struct, frozen=True):
    """A type: its name, the digits of a decimal, the inner types and, for a struct, their names."""

    name: str
    numbers: tuple[int, ...] = ()
    inner: tuple["SparkType", ...] = ()
    names: tuple[str, ...] = ()


def parse_type(text: str) -> SparkType:
    """The type in Spark's notation, like ``DECIMAL(38,9)`` or ``STRUCT<`a`: INT>``.

    UsageError for a type that no store has.
    """
    tokens = TOKEN.findall(text)
    column = _parse(tokens, text)
    if tokens:
        raise _unknown(text)
    return column


def check_columns(feed: SinkFeed, names: Sequence[str] = (), purpose: str = "") -> None:
    """UsageError for a column whose type no store has, and for names that are not columns of the feed."""
    for notation in feed.columns.values():
        parse_type(notation)
    if missing := [name for name in names if name not in feed.columns]:
        raise UsageError(
            f"sink {feed.sink}: no such column {purpose}",
            got=", ".join(missing),
            expected="one of " + ", ".join(feed.columns),
        )


def change_reader(columns: Mapping[str, str]) -> Callable[[Change], dict[str, Any]]:
    """A function from a change with a value to its columns as Python values, without nulls.

    Poison if a value does not fit.
    """
    fields = {name: _python(parse_type(text)) | None for name, text in columns.items()}
    decode = msgspec.json.Decoder(TypedDict("Row", fields, total=False)).decode  # type: ignore[operator]
    unreal = [name for name, text in columns.items() if parse_type(text).name in {"FLOAT", "DOUBLE"}]

    def read(change: Change) -> dict[str, Any]:
        try:
            row: dict[str, Any] = decode(change.value or "null")
        except (msgspec.MsgspecError, ValueError) as error:
            raise Poison(change.partition, change.offset, f"the value does not fit: {error}") from error
        for name in unreal:
            if isinstance(row.get(name), str):
                row[name] = float(row[name])
        return row

    return read


def _python(column: SparkType) -> Any:
    """The Python type into which msgspec decodes a type's JSON."""
    if column.name == "ARRAY":
        return list[_python(column.inner[0]) | None]  # type: ignore[misc]
    if column.name == "MAP":
        return dict[str, _python(column.inner[1]) | None]  # type: ignore[misc]
    if column.name == "STRUCT":
        fields = {name: _python(part) | None for name, part in zip(column.names, column.inner, strict=True)}
        return TypedDict("Struct", fields, total=False)  # type: ignore[operator]
    return float | UNREAL if column.name in {"FLOAT", "DOUBLE"} else PLAIN[column.name]


def _parse(tokens: list[str], text: str) -> SparkType:
    name = tokens.pop(0).upper() if tokens else ""
    name = ALIASES.get(name, name)
    if name in {"ARRAY", "MAP", "STRUCT"}:
        return _nested(name, tokens, text)
    if name not in PLAIN:
        raise _unknown(text)
    numbers: list[int] = []
    if tokens[:1] == ["("]:
        inside = tokens[1 : tokens.index(")")]
        del tokens[: len(inside) + 2]
        numbers = [int(digits) for digits in inside if digits != ","]
    if name == "DECIMAL":
        return SparkType(name, (*numbers, *(10, 0)[len(numbers) :]))
    return SparkType(name)


def _nested(name: str, tokens: list[str], text: str) -> SparkType:
    inner: list[SparkType] = []
    names: list[str] = []
    if not tokens or tokens.pop(0) != "<":
        raise _unknown(text)
    while tokens and tokens[0] != ">":
        if name == "STRUCT":
            field = tokens.pop(0)
            names.append(field[1:-1].replace("``", "`") if field[0] == "`" else field)
            if tokens[:1] == [":"]:
                tokens.pop(0)
        inner.append(_parse(tokens, text))
        while tokens and tokens[0] not in {",", ">"}:  # NOT NULL, COMMENT '...'
            tokens.pop(0)
        if tokens[:1] == [","]:
            tokens.pop(0)
    if not tokens or (name != "STRUCT" and len(inner) != (1 if name == "ARRAY" else 2)):
        raise _unknown(text)
    tokens.pop(0)
    return SparkType(name, (), tuple(inner), tuple(names))


def _unknown(text: str) -> UsageError:
    return UsageError(
        "this store has no type for a column",
        got=text,
        expected=", ".join((*PLAIN, "ARRAY<…>", "MAP<…>", "STRUCT<…>")),
        hint="cast it in the view",
    )
