"""Values of MariaDB and MySQL, from the binlog and from result sets, as pieces of JSON in Debezium's form.

Dates are days and datetimes milliseconds (microseconds from four digits on) since 1970, timestamps ISO texts
in UTC, times microseconds, decimals Base64 of the unscaled number or text, bytes Base64. Zero dates and days
that do not exist are null, since no calendar has them.
"""

import datetime as dt
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from headwater.capture.envelope import base64, compile_function, quote_text, two_complement

__all__ = [
    "Decimal",
    "bits",
    "date",
    "days",
    "decimal",
    "double",
    "geometry",
    "inet4",
    "inet6",
    "label",
    "labels",
    "moment",
    "number",
    "single",
    "span",
    "stamp",
    "unscaled",
    "uuid",
]

EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_SINGLE = Struct("<f")


def geometry(raw: bytes) -> str:
    """A geometry: four bytes of SRID, then well-known binary."""
    return f'{{"wkb":{base64(raw[4:])},"srid":{int.from_bytes(raw[:4], "little") or "null"}}}'


def uuid(raw: bytes) -> str:
    """MariaDB's UUID: 16 bytes in the order of its text."""
    digits = raw.hex()
    return f'"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"'


def inet4(raw: bytes) -> str:
    """MariaDB's INET4."""
    return f'"{socket.inet_ntop(socket.AF_INET, raw)}"'


def inet6(raw: bytes) -> str:
    """MariaDB's INET6."""
    return f'"{socket.inet_ntop(socket.AF_INET6, raw)}"'


def bits(raw: bytes, size: int) -> str:
    """A bit field: one bit is a boolean, more are bytes, the lowest first."""
    if size == 1:
        return "true" if raw[-1] else "false"
    return base64(raw[::-1])


Decimal = Callable[[int], Callable[[int], str]]
"""From the scale of a column to a function that writes its unscaled numbers."""


def number(scale: int) -> Callable[[int], str]:
    """Decimals as Base64 of the unscaled number, in the fewest bytes."""
    del scale  # it is in the schema
    return two_complement


def decimal(scale: int) -> Callable[[int], str]:
    """Decimals as text, with all their digits."""

    def write(unscaled: int) -> str:
        digits = f"{abs(unscaled):0{scale + 1}}"
        if scale:
            digits = f"{digits[:-scale]}.{digits[-scale:]}"
        return f'"-{digits}"' if unscaled < 0 else f'"{digits}"'

    return write


def unscaled(precision: int, scale: int) -> tuple[int, Callable[[bytes], int]]:
    """The size of a packed decimal, and a function that reads it: four bytes for nine digits.

    The first bit is set in positive numbers; negative ones are inverted.
    """
    whole = precision - scale
    groups = [digits for digits in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9) if digits]
    widths = [(0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[digits] for digits in groups]
    top = 8 * sum(widths) - 1
    terms, shift, power = [], 0, 0
    for digits, width in zip(reversed(groups), reversed(widths), strict=True):
        terms.append(f"(v >> {shift} & {(1 << 8 * width) - 1}) * {10**power}")
        shift, power = shift + 8 * width, power + digits
    code = f"""def read(raw):
    v = from_bytes(raw, "big") ^ {1 << top}
    if v >> {top}:
        v ^= {(2 << top) - 1}
        return -({" + ".join(terms)})
    return {" + ".join(terms)}
"""
    read: Callable[[bytes], int] = compile_function("read", code, from_bytes=int.from_bytes)
    return sum(widths), read


def single(raw: bytes) -> str:
    """The shortest text of a 32-bit float."""
    (value,) = _SINGLE.unpack(raw)
    for digits in (6, 7, 8):
        if _SINGLE.pack(float(short := f"{value:.{digits}g}")) == raw:
            break
    else:
        short = f"{value:.9g}"
    return repr(float(short))


double = repr
"""A 64-bit float: Python's own shortest text."""


@lru_cache(65536)
def days(year: int, month: int, day: int) -> int | None:
    """Days since 1970; None if the calendar has no such day."""
    try:
        return dt.date(year, month, day).toordinal() - EPOCH_DAY
    except ValueError:
        return None


@lru_cache(65536)
def date(packed: int) -> int | str:
    """A date: years from bit 9 on, months from bit 5 on."""
    day = days(packed >> 9, packed >> 5 & 15, packed & 31)
    return "null" if day is None else day


@lru_cache(65536)
def _seconds(packed: int) -> int | None:
    """The date part of a datetime, 13 months to a year, as seconds since 1970."""
    months, day = divmod(packed, 32)
    date = days(months // 13, months % 13, day)
    return None if date is None else date * 86400


def moment(packed: int, fraction: int, digits: int) -> int | str:
    """A datetime from the packed seconds and the microseconds of the binlog."""
    start = _seconds(packed >> 17)
    if start is None:
        return "null"
    whole = start + (packed >> 12 & 31) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)
    return whole * 1000 + fraction // 1000 if digits <= 3 else whole * 1000000 + fraction


@lru_cache(65536)
def _second(value: int) -> str:
    return dt.datetime.fromtimestamp(value, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def stamp(seconds: int, fraction: int, digits: int) -> str:
    """A timestamp; 0 is null."""
    if not seconds:
        return "null"
    if not digits:
        return f'"{_second(seconds)}Z"'
    return f'"{_second(seconds)}.{f"{fraction:06}"[:digits]}Z"'


def span(packed: int, shift: int, unit: int) -> int:
    """A time of day or time span: a signed number, hours in the highest bits, the fraction in the lowest."""
    size = abs(packed)
    whole = size >> shift
    micros = ((whole >> 12) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)) * 1000000
    micros += (size & (1 << shift) - 1) * unit
    return -micros if packed < 0 else micros


def label(values: Sequence[str]) -> tuple[str, ...]:
    """The texts of an enum, by number; 0 is the empty text, which the server stores for a wrong value."""
    return ('""', *map(quote_text, values))


def labels(values: Sequence[str]) -> Callable[[int], str]:
    """A function from the bits of a set to its text."""

    @lru_cache(4096)
    def write(value: int) -> str:
        return quote_text(",".join(text for bit, text in enumerate(values) if value >> bit & 1))

    return write
