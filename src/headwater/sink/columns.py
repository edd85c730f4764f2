"""Columns in Spark's notation, for stores with types of their own: what they are, and rows of wire JSON as Python values."""

import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec

from headwater.change import Change
from headwater.errors import UsageError
from headwater.sink.store import Poison

__all__ = ["Kind", "kind", "reader"]

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
"""How JSON says what its numbers cannot."""


class Kind(msgspec.Struct, frozen=True):
    """A type: its name, the numbers of a decimal, the types inside and, for a struct, their names."""

    name: str
    numbers: tuple[int, ...] = ()
    inner: tuple["Kind", ...] = ()
    names: tuple[str, ...] = ()


def kind(text: str) -> Kind:
    """The type that Spark writes so, like ``DECIMAL(38,9)`` or ``STRUCT<`a`: INT>``; UsageError for one that no store has."""
    tokens = TOKEN.findall(text)
    found = _kind(tokens, text)
    if tokens:
        raise _unknown(text)
    return found


def reader(columns: Mapping[str, str]) -> Callable[[Change], dict[str, Any]]:
    """A function from a change with a value to its columns as Python values, what is null left out; Poison when one does not fit."""
    fields = {name: _python(kind(text)) | None for name, text in columns.items()}
    decode = msgspec.json.Decoder(TypedDict("Row", fields, total=False)).decode  # type: ignore[operator]
    unreal = [name for name, text in columns.items() if kind(text).name in {"FLOAT", "DOUBLE"}]

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


def _python(given: Kind) -> Any:
    """What msgspec makes of a type's JSON."""
    if given.name == "ARRAY":
        return list[_python(given.inner[0]) | None]  # type: ignore[misc]
    if given.name == "MAP":
        return dict[str, _python(given.inner[1]) | None]  # type: ignore[misc]
    if given.name == "STRUCT":
        fields = {name: _python(each) | None for name, each in zip(given.names, given.inner, strict=True)}
        return TypedDict("Struct", fields, total=False)  # type: ignore[operator]
    return float | UNREAL if given.name in {"FLOAT", "DOUBLE"} else PLAIN[given.name]


def _kind(tokens: list[str], text: str) -> Kind:
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
        numbers = [int(each) for each in inside if each != ","]
    if name == "DECIMAL":
        return Kind(name, (*numbers, *(10, 0)[len(numbers) :]))
    return Kind(name)


def _nested(name: str, tokens: list[str], text: str) -> Kind:
    inner: list[Kind] = []
    names: list[str] = []
    if not tokens or tokens.pop(0) != "<":
        raise _unknown(text)
    while tokens and tokens[0] != ">":
        if name == "STRUCT":
            field = tokens.pop(0)
            names.append(field[1:-1].replace("``", "`") if field[0] == "`" else field)
            if tokens[:1] == [":"]:
                tokens.pop(0)
        inner.append(_kind(tokens, text))
        while tokens and tokens[0] not in {",", ">"}:  # NOT NULL, COMMENT '...'
            tokens.pop(0)
        if tokens[:1] == [","]:
            tokens.pop(0)
    if not tokens or (name != "STRUCT" and len(inner) != (1 if name == "ARRAY" else 2)):
        raise _unknown(text)
    tokens.pop(0)
    return Kind(name, (), tuple(inner), tuple(names))


def _unknown(text: str) -> UsageError:
    return UsageError(
        "a column's type has no form in this store",
        got=text,
        expected=", ".join((*PLAIN, "ARRAY<…>", "MAP<…>", "STRUCT<…>")),
        hint="cast it in the view",
    )
