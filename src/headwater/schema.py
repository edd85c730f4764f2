"""Event types: from Python classes to JSON on the wire and to Spark schemas.

One rule for both directions: timestamps are ISO 8601 UTC with microseconds, decimals strings, binary base64.
Nothing here imports Spark; a schema is Spark's own notation (DDL text), which every Spark call accepts.
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

from headwater.decoders import from_json
from headwater.errors import UsageError

__all__ = ["Column", "Event", "columns", "ddl", "encode", "key_text", "reason", "wire"]

NUMBER = "DECIMAL(38,9)"
"""Every Decimal: 29 digits before the point and 9 behind it, as warehouses have it."""

SCALARS: dict[type, str] = {
    inspect.IntType: "BIGINT",
    inspect.FloatType: "DOUBLE",
    inspect.StrType: "STRING",
    inspect.BoolType: "BOOLEAN",
    inspect.DateTimeType: "TIMESTAMP",
    inspect.DateType: "DATE",
    inspect.DecimalType: NUMBER,
    inspect.BytesType: "BINARY",
}
SUPPORTED = "int, float, str, bool, datetime, date, Decimal, bytes, an Event, a list or an Optional of these"


@dataclass_transform(frozen_default=True)
class Event(msgspec.Struct, frozen=True):
    """An immutable fact: derive from it and annotate the fields. A field without default must be in every record."""


class Column(msgspec.Struct, frozen=True):
    """One field of an event as Spark sees it; ``default`` is wire JSON, ``nested`` holds an inner event's fields."""

    name: str
    kind: str
    required: bool
    default: str | None = None
    nested: tuple["Column", ...] = ()


def columns(event: type[Event]) -> tuple[Column, ...]:
    """The columns of an event type, in order. UsageError names the field whose type has no Spark form."""
    info = inspect.type_info(event)
    if not isinstance(info, inspect.StructType):
        raise UsageError(f"{event!r} is no event type", expected="a class derived from headwater.Event")
    return tuple(_column(event.__name__, field) for field in info.fields)


def ddl(event: type[Event]) -> str:
    """The event's schema in Spark's notation: ``order_id BIGINT, at TIMESTAMP``."""
    return ", ".join(f"`{column.name}` {column.kind}" for column in columns(event))


def _column(owner: str, field: inspect.Field) -> Column:
    name = field.encode_name
    if name.startswith("_"):
        raise UsageError(f"field {owner}.{name} begins with '_'", hint="such columns are Headwater's own")
    inner, optional = _unwrap(field.type)
    nested = (
        tuple(_column(inner.cls.__name__, f) for f in inner.fields)
        if isinstance(inner, inspect.StructType)
        else ()
    )
    return Column(
        name, _kind(f"{owner}.{name}", inner), field.required and not optional, _default(field), nested
    )


def _default(field: inspect.Field) -> str | None:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.json.encode(wire(field.default_factory())).decode()
    if field.default is msgspec.NODEFAULT or field.default is None:
        return None
    return msgspec.json.encode(wire(field.default)).decode()


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    """An Optional's inner type, and whether it was optional."""
    if isinstance(kind, inspect.UnionType):
        inner = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
        if len(inner) == 1 and len(kind.types) == 2:
            return inner[0], True
    return kind, False


def _kind(where: str, kind: inspect.Type) -> str:
    kind, _ = _unwrap(kind)
    if type(kind) in SCALARS:
        return SCALARS[type(kind)]
    if isinstance(kind, inspect.ListType):
        return f"ARRAY<{_kind(where, kind.item_type)}>"
    if isinstance(kind, inspect.StructType):
        inner = (_column(kind.cls.__name__, field) for field in kind.fields)
        return f"STRUCT<{', '.join(f'`{c.name}`: {c.kind}' for c in inner)}>"
    got = type(kind).__name__.removesuffix("Type").lower()
    raise UsageError(f"field {where} has a type without a Spark form", got=got, expected=SUPPORTED)


def encode(event: Event) -> bytes:
    """The event as wire JSON."""
    return msgspec.json.encode(wire(event))


def wire(value: Any) -> Any:
    """A Python value as JSON has it on the wire."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {encoded: wire(getattr(value, name)) for name, encoded in names}
    if isinstance(value, list | tuple):
        return [wire(item) for item in value]
    text = TEXTS.get(type(value))
    return value if text is None else text(value)


def _stamp(value: datetime) -> str:
    """A moment in UTC with microseconds; one without a zone is taken for UTC."""
    utc = value.astimezone(UTC) if value.tzinfo else value
    return f"{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _double(value: float) -> float | str:
    """JSON has no infinity and nothing that is no number; Spark reads and writes these texts for them."""
    return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


TEXTS: dict[type, Callable[[Any], Any]] = {
    float: _double,
    datetime: _stamp,
    date: date.isoformat,
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: base64.b64encode(value).decode(),
}


ESCAPE = re.compile(r"\\(?:u00(..)|.)")


def _as_spark_does(escape: re.Match[str]) -> str:
    """Spark writes the number of a control character with capital letters."""
    return f"\\u00{escape[1].upper()}" if escape[1] else escape[0]


def _looks_like_array(text: str) -> bool:
    return text == "[null]" or text.startswith('["')


def key_text(values: Sequence[Any]) -> str:
    """A record's key: one value as text, several as a compact JSON array; a lone null is ``[null]``.

    A lone text that looks like one of these, ``[null]`` or what begins with ``["``, is an array too.
    """
    wired = [wire(value) for value in values]
    if len(wired) != 1 or wired[0] is None or (isinstance(wired[0], str) and _looks_like_array(wired[0])):
        array = msgspec.json.encode(wired).decode()
        return ESCAPE.sub(_as_spark_does, array) if "\\u" in array else array
    return wired[0] if isinstance(wired[0], str) else msgspec.json.encode(wired[0]).decode()


def reason(value: bytes | None, event: type[Event]) -> str:
    """Why a record is not such an event, for people; never raises."""
    if value is None:
        return "the value is null"
    try:
        from_json(value, event)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return str(error)
    return f"a field does not fit {ddl(event)}"
