"""Field types: what each field of an event may hold, as declared, for those who judge records.

int         whole numbers of 64 bits
float       finite numbers; `AnyFloat` also NaN and the infinities
Decimal     38 digits, 9 of them after the point; `Decimal(18, 4)` says otherwise
"""

from collections.abc import Sequence
from decimal import Decimal as Number
from typing import Annotated, Any

import msgspec
from msgspec import inspect

from headwater.errors import UsageError

__all__ = ["DIGITS", "SCALARS", "AnyFloat", "Decimal", "FieldType", "decimal_kind", "field_type", "unwrap"]

DIGITS = (38, 9)
"""Precision and scale of a Decimal without its own: 29 digits before the point, as in warehouses."""
DIGITS_MAX = 38
NOT_FINITE = "not finite"

AnyFloat = Annotated[float, msgspec.Meta(extra={NOT_FINITE: True})]
"""A float that may be NaN or infinite, on the wire the texts ``NaN``, ``Infinity`` and ``-Infinity``."""


def Decimal(precision: int, scale: int) -> Any:  # noqa: N802 (a type in an annotation)
    """The type of decimals with at most ``precision`` digits, ``scale`` of them after the point.

    ``price: hw.Decimal(18, 4)``
    """
    if not 0 <= scale <= precision <= DIGITS_MAX or precision < 1:
        raise UsageError(
            "hw.Decimal has digits that Spark does not have",
            got=f"hw.Decimal({precision}, {scale})",
            expected=f"hw.Decimal(precision, scale) with 0 <= scale <= precision <= {DIGITS_MAX}",
        )
    return Annotated[Number, msgspec.Meta(extra={"precision": precision, "scale": scale})]


class FieldType(msgspec.Struct, frozen=True, omit_defaults=True):
    """The type of a value. The type of a record is a STRUCT; ``JsonCheck.java`` reads it as JSON."""

    kind: str
    """Spark's type, without its digits, items and fields."""
    name: str = ""
    """For a field of a STRUCT."""
    nullable: bool = False
    required: bool = False
    lenient: bool = False
    """Whether a DOUBLE may be NaN, a TIMESTAMP without zone is UTC, a DATE may be a number of days."""
    precision: int = 0
    scale: int = 0
    item: "FieldType | None" = None
    fields: "tuple[FieldType, ...]" = ()

    @property
    def expected(self) -> str:
        """What a value of this type is, for a person."""
        if self.kind == "DECIMAL":
            before = self.precision - self.scale
            return f"a decimal with at most {before} digits before the point and {self.scale} after it"
        if self.kind == "TIMESTAMP" and self.lenient:
            return "a time like 2026-01-05T09:00:00Z"
        return EXPECTED["ANY DOUBLE" if self.kind == "DOUBLE" and self.lenient else self.kind]


EXPECTED = {
    "ANY DOUBLE": "a number, or NaN, Infinity or -Infinity as text",
    "ARRAY": "a list",
    "BIGINT": "a whole number of 64 bits",
    "BINARY": "bytes in base64",
    "BOOLEAN": "true or false",
    "DATE": "a date like 2026-01-05",
    "DOUBLE": "a finite number",
    "STRING": "a text without half characters (surrogates)",
    "STRUCT": "an object",
    "TIMESTAMP": "a time with a zone, like 2026-01-05T09:00:00Z, in the years 1 to 9999",
}
SCALARS: dict[type, str] = {
    inspect.IntType: "BIGINT",
    inspect.FloatType: "DOUBLE",
    inspect.StrType: "STRING",
    inspect.BoolType: "BOOLEAN",
    inspect.DateTimeType: "TIMESTAMP",
    inspect.DateType: "DATE",
    inspect.DecimalType: "DECIMAL",
    inspect.BytesType: "BINARY",
}


def unwrap(kind: inspect.Type) -> tuple[inspect.Type, bool, dict[str, Any]]:
    """A type without Optional and annotations, whether it was optional, and what was annotated."""
    extra: dict[str, Any] = {}
    optional = False
    while True:
        if isinstance(kind, inspect.Metadata):
            extra |= kind.extra or {}
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            inner = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
            if len(inner) != 1 or len(kind.types) != 2:
                return kind, optional, extra
            kind, optional = inner[0], True
        else:
            return kind, optional, extra


def decimal_kind(extra: dict[str, Any]) -> str:
    """The type of a decimal in Spark."""
    precision, scale = _digits(extra)
    return f"DECIMAL({precision},{scale})"


def _digits(extra: dict[str, Any]) -> tuple[int, int]:
    return extra.get("precision", DIGITS[0]), extra.get("scale", DIGITS[1])


def field_type(event: type[msgspec.Struct], *, lenient: bool = False) -> FieldType:
    """The type of a record. ``lenient``: times may have no zone, dates may be numbers of days."""
    info = inspect.type_info(event)
    fields = info.fields if isinstance(info, inspect.StructType) else ()
    return FieldType("STRUCT", fields=_fields(fields, lenient))


def _fields(fields: Sequence[inspect.Field], lenient: bool) -> tuple[FieldType, ...]:
    field_types = []
    for field in fields:
        of_value = _of_value(field.type, lenient)
        required = field.required and not of_value.nullable
        field_types.append(
            msgspec.structs.replace(
                of_value, name=field.encode_name, required=required, nullable=not required
            )
        )
    return tuple(field_types)


def _of_value(kind: inspect.Type, lenient: bool) -> FieldType:
    kind, nullable, extra = unwrap(kind)
    if isinstance(kind, inspect.StructType):
        return FieldType("STRUCT", nullable=nullable, fields=_fields(kind.fields, lenient))
    if isinstance(kind, inspect.ListType):
        return FieldType("ARRAY", nullable=nullable, item=_of_value(kind.item_type, lenient))
    scalar = SCALARS.get(type(kind), "STRING")
    digits = _digits(extra) if scalar == "DECIMAL" else (0, 0)
    free = bool(extra.get(NOT_FINITE)) if scalar == "DOUBLE" else lenient and scalar in {"DATE", "TIMESTAMP"}
    return FieldType(scalar, nullable=nullable, lenient=free, precision=digits[0], scale=digits[1])
