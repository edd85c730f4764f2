"""Event types: from Python classes to JSON and to schemas of Spark.

In both directions timestamps are ISO 8601 in UTC with microseconds, decimals are strings, and bytes are
base64. Nothing here imports Spark; a schema is text in Spark's DDL notation, which every Spark call accepts.
"""

import base64
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, dataclass_transform

import msgspec
from msgspec import inspect

from headwater.declare.field_types import SCALARS, decimal_kind, unwrap
from headwater.errors import UsageError

__all__ = ["Column", "Event", "Row", "columns", "ddl", "encode", "key_text", "wire"]

SUPPORTED = "int, float, str, bool, datetime, date, Decimal, bytes, an Event, a list or an Optional of these"


@dataclass_transform(frozen_default=True)
class Event(msgspec.Struct, frozen=True):
    """An immutable fact.

    Derive from it and annotate the fields; a field without default must be in every record.
    """


@dataclass_transform(frozen_default=True)
class Row(Event, frozen=True):
    """The current row of a key in a table.

    Derive from it and annotate the columns; one without default must be in every record.
    """


class Column(msgspec.Struct, frozen=True):
    """A field of an event in Spark. ``default`` is JSON; ``nested`` has the fields of an inner event."""

    name: str
    kind: str
    required: bool
    default: str | None = None
    nested: tuple["Column", ...] = ()


def columns(event: type[Event]) -> tuple[Column, ...]:
    """The columns of an event type, in order. UsageError for a field whose type Spark does not have."""
    info = inspect.type_info(event)
    if not isinstance(info, inspect.StructType):
        raise UsageError(f"{event!r} is not an event type", expected="a class derived from headwater.Event")
    return tuple(_column(event.__name__, field) for field in info.fields)


def ddl(event: type[Event]) -> str:
    """The schema of an event in Spark's notation: ``order_id BIGINT, at TIMESTAMP``."""
    return ", ".join(f"`{column.name}` {column.kind}" for column in columns(event))


def _column(owner: str, field: inspect.Field) -> Column:
    name = field.encode_name
    if name.startswith("_"):
        raise UsageError(
            f"field {owner}.{name} begins with '_', which is reserved for Headwater's own columns",
            hint="rename it",
        )
    inner, optional, _ = unwrap(field.type)
    nested = (
        tuple(_column(inner.cls.__name__, f) for f in inner.fields)
        if isinstance(inner, inspect.StructType)
        else ()
    )
    return Column(
        name, _kind(f"{owner}.{name}", field.type), field.required and not optional, _default(field), nested
    )


def _default(field: inspect.Field) -> str | None:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.json.encode(wire(field.default_factory())).decode()
    if field.default is msgspec.NODEFAULT or field.default is None:
        return None
    return msgspec.json.encode(wire(field.default)).decode()


def _kind(where: str, kind: inspect.Type) -> str:
    kind, _, extra = unwrap(kind)
    if isinstance(kind, inspect.DecimalType):
        return decimal_kind(extra)
    if type(kind) in SCALARS:
        return SCALARS[type(kind)]
    if isinstance(kind, inspect.ListType):
        return f"ARRAY<{_kind(where, kind.item_type)}>"
    if isinstance(kind, inspect.StructType):
        inner = (_column(kind.cls.__name__, field) for field in kind.fields)
        return f"STRUCT<{', '.join(f'`{c.name}`: {c.kind}' for c in inner)}>"
    got = type(kind).__name__.removesuffix("Type").lower()
    raise UsageError(f"field {where} has a type that Spark does not have", got=got, expected=SUPPORTED)


def encode(event: Event) -> bytes:
    """The event as JSON."""
    return msgspec.json.encode(wire(event))


def wire(value: Any) -> Any:
    """A Python value in the form that JSON has."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {encoded: wire(getattr(value, name)) for name, encoded in names}
    if isinstance(value, list | tuple):
        return [wire(item) for item in value]
    text = TEXTS.get(type(value))
    return value if text is None else text(value)


def _stamp(value: datetime) -> str:
    """A time in UTC with microseconds; one without a time zone is taken as UTC."""
    utc = value.astimezone(UTC) if value.tzinfo else value
    return f"{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _double(value: float) -> float | str:
    """JSON has no infinity and no NaN; Spark reads and writes these texts for them."""
    return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


TEXTS: dict[type, Callable[[Any], Any]] = {
    float: _double,
    datetime: _stamp,
    date: date.isoformat,
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: base64.b64encode(value).decode(),
}


ESCAPE = re.compile(r"\\(?:u00(..)|.)")


def _spark_escape(escape: re.Match[str]) -> str:
    """The escape as Spark writes it: the number of a control character has capital letters."""
    return f"\\u00{escape[1].upper()}" if escape[1] else escape[0]


def _looks_like_array(text: str) -> bool:
    return text == "[null]" or text.startswith('["')


def key_text(values: Sequence[Any]) -> str:
    """The key of a record: one value as text, several as a compact JSON array; a single null is ``[null]``.

    A single text that looks like an array, ``[null]`` or one that begins with ``["``, becomes an array too.
    """
    wired = [wire(value) for value in values]
    if len(wired) != 1 or wired[0] is None or (isinstance(wired[0], str) and _looks_like_array(wired[0])):
        array = msgspec.json.encode(wired).decode()
        return ESCAPE.sub(_spark_escape, array) if "\\u" in array else array
    return wired[0] if isinstance(wired[0], str) else msgspec.json.encode(wired[0]).decode()
