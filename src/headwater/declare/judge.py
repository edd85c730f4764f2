"""Judge: whether a record fits its type to the last digit, and if not, which field and why.

Views judge inside Spark (``pipeline/spark/jvm/JsonCheck.java``), sinks and the reasons in ``<topic>.invalid``
here; tests compare the two.
"""

import json
import math
import re
from collections.abc import Callable
from datetime import MAXYEAR, UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import msgspec

from headwater.declare.field_types import FieldType, field_type

__all__ = ["Fault", "Judge", "judge_of"]

SHOWN_CHARACTERS = 60
NUMBER_MAX = 1000
"""Spark reads no longer number."""
DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]{1,9})?"
    r"(Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)?"
)
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
SURROGATE = re.compile("[\ud800-\udfff]")
ZONE_MINUTES_MAX = 18 * 60
LONG_MAX = 1 << 63
INFINITE = {"NaN", "Infinity", "-Infinity"}


class Fault(NamedTuple):
    """Why a record does not fit. Without ``field`` it is the whole value that does not."""

    field: str
    got: str
    expected: str

    def __str__(self) -> str:
        if not self.field:
            return f"the value is {self.got}; expected {self.expected}"
        return f"field {self.field!r}: got {self.got}; expected {self.expected}"


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """An object with all its fields, also those that come twice."""


class _NotJsonError(ValueError):
    pass


class Judge:
    """Judges records of one type."""

    def __init__(self, kind: FieldType) -> None:
        self._kind = kind

    def fault(self, value: bytes | None) -> Fault | None:
        """Why a record does not fit, or None; never raises."""
        an_object = "one JSON object"
        if value is None:
            return Fault("", "null", an_object)
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            return Fault("", f"not UTF-8 at byte {error.start}", an_object)
        if not text.lstrip(" ").startswith("{"):
            return Fault("", f'"{_cut(text)}"' if text else "empty", an_object)
        try:
            read = _read(text)
        except (ValueError, RecursionError) as error:
            return Fault("", f"not JSON: {error}", an_object)
        return _in_object(self._kind, read, "")


@cache
def judge_of(event: type[msgspec.Struct], *, lenient: bool = False) -> Judge:
    """The judge of a type. ``lenient``: of rows in Debezium's envelope."""
    return Judge(field_type(event, lenient=lenient))


def _constant(name: str) -> Any:
    raise _NotJsonError(f"{name} without quotes")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_constant
)


def _read(text: str) -> Any:
    return _DECODER.decode(text)


def _in_object(kind: FieldType, found: _Object, path: str) -> Fault | None:
    types = {field.name: field for field in kind.fields}
    for name, value in found:
        field = types.get(name)
        fault = _in_value(field, value, f"{path}{name}") if field is not None else None
        if fault is not None:
            return fault
    present = {name for name, _ in found}
    for field in kind.fields:
        if field.required and field.name not in present:
            return Fault(f"{path}{field.name}", "nothing", field.expected)
    return None


def _in_value(kind: FieldType, value: Any, path: str) -> Fault | None:
    if value is None:
        return None if kind.nullable else Fault(path, "null", kind.expected)
    if kind.kind == "STRUCT" and isinstance(value, _Object):
        return _in_object(kind, value, f"{path}.")
    if kind.kind == "ARRAY" and isinstance(value, list) and not isinstance(value, _Object) and kind.item:
        faults = (_in_value(kind.item, item, f"{path}[{place}]") for place, item in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)
    fits = FITS.get(kind.kind)
    return None if fits is not None and fits(kind, value) else Fault(path, _shown(value), kind.expected)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Number)


def _fits_text(kind: FieldType, value: Any) -> bool:  # noqa: ARG001
    return not _is_text(value) or SURROGATE.search(value) is None


def _fits_long(kind: FieldType, value: Any) -> bool:  # noqa: ARG001
    return _is_whole(value) and -LONG_MAX <= int(value) < LONG_MAX


def _is_whole(value: Any) -> bool:
    return isinstance(value, _Number) and len(value) <= NUMBER_MAX and value.lstrip("-").isdigit()


def _fits_double(kind: FieldType, value: Any) -> bool:
    if isinstance(value, _Number):
        return len(value) <= NUMBER_MAX and math.isfinite(float(value))
    return kind.lenient and _is_text(value) and value in INFINITE


def _fits_decimal(kind: FieldType, value: Any) -> bool:
    if not isinstance(value, str) or len(value) > NUMBER_MAX or NUMBER.fullmatch(value) is None:
        return False
    _, digits, exponent = Decimal(value).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant or not isinstance(exponent, int):
        return not significant
    scale = -(exponent + len(text) - len(significant))
    return scale <= kind.scale and len(significant) - scale <= kind.precision - kind.scale


def _fits_date(kind: FieldType, value: Any) -> bool:
    if isinstance(value, _Number):
        first, last = date(1, 1, 1).toordinal(), date(MAXYEAR, 12, 31).toordinal()
        days = date(1970, 1, 1).toordinal()
        return kind.lenient and _is_whole(value) and first <= int(value) + days <= last
    return _is_text(value) and DATE.fullmatch(value) is not None and _day(value) is not None


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _fits_time(kind: FieldType, value: Any) -> bool:
    match = TIME.fullmatch(value) if _is_text(value) else None
    if match is None or (match[5] is None and not kind.lenient):
        return False
    day, hour, minute, second, _, sign, zone_hours, zone_minutes = match.groups()
    zone = 60 * int(zone_hours or 0) + int(zone_minutes or 0)
    if int(zone_minutes or 0) > 59 or zone > ZONE_MINUTES_MAX:
        return False
    try:
        moment = datetime.fromisoformat(f"{day}T{hour}:{minute}:{second}").replace(tzinfo=UTC)
        return bool(moment - timedelta(minutes=-zone if sign == "-" else zone))
    except (ValueError, OverflowError):
        return False


def _fits_bytes(kind: FieldType, value: Any) -> bool:  # noqa: ARG001
    return _is_text(value) and BASE64.fullmatch(value) is not None


FITS: dict[str, Callable[[FieldType, Any], bool]] = {
    "BIGINT": _fits_long,
    "BINARY": _fits_bytes,
    "BOOLEAN": lambda kind, value: isinstance(value, bool),  # noqa: ARG005
    "DATE": _fits_date,
    "DECIMAL": _fits_decimal,
    "DOUBLE": _fits_double,
    "STRING": _fits_text,
    "TIMESTAMP": _fits_time,
}


def _shown(value: Any) -> str:
    """A value as it was written, cut."""
    if isinstance(value, _Number):
        return _cut(value)
    if isinstance(value, _Object):
        return "an object"
    return "a list" if isinstance(value, list) else _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
