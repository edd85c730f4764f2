"""Values of MariaDB and MySQL as pieces of JSON, as Debezium writes them by default; the binlog and a result set meet here.

Dates are days and datetimes milliseconds (microseconds from four digits on) since 1970, timestamps ISO text in UTC, times microseconds,
decimals base64 of the unscaled number or text, bytes base64. Zero dates and days that do not exist are null: they have no place on a calendar.
"""

import datetime as dt
import socket
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from headwater.capture.envelope import compiled, two_complement, written

__all__ = [
    "Decimal",
    "base64",
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


def base64(raw: bytes) -> str:
    """Bytes."""
    return f'"{b2a_base64(raw, newline=False).decode()}"'


def geometry(raw: bytes) -> str:
    """Four bytes of SRID, then well-known binary."""
    return f'{{"wkb":{base64(raw[4:])},"srid":{int.from_bytes(raw[:4], "little") or "null"}}}'


def uuid(raw: bytes) -> str:
    """MariaDB's UUID: 16 bytes in the order in which it is written."""
    found = raw.hex()
    return f'"{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:]}"'


def inet4(raw: bytes) -> str:
    """MariaDB's INET4."""
    return f'"{socket.inet_ntop(socket.AF_INET, raw)}"'


def inet6(raw: bytes) -> str:
    """MariaDB's INET6."""
    return f'"{socket.inet_ntop(socket.AF_INET6, raw)}"'


def bits(raw: bytes, size: int) -> str:
    """One bit is a boolean; more are bytes, the lowest first."""
    if size == 1:
        return "true" if raw[-1] else "false"
    return base64(raw[::-1])


Decimal = Callable[[int], Callable[[int], str]]
"""From the scale of a column to what writes its unscaled numbers."""


def number(scale: int) -> Callable[[int], str]:
    """Decimals as base64 of the unscaled number, in as few bytes as its sign needs."""
    del scale  # it stands in the schema
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
    """The size of a packed decimal, and what reads it: nine digits in four bytes, fewer at both ends.

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
    read: Callable[[bytes], int] = compiled("read", code, from_bytes=int.from_bytes)
    return sum(widths), read


def single(raw: bytes) -> str:
    """The shortest text that is this 32-bit float and no other."""
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
    """Days since 1970; None where the calendar has no such day."""
    try:
        return dt.date(year, month, day).toordinal() - EPOCH_DAY
    except ValueError:
        return None


@lru_cache(65536)
def date(packed: int) -> int | str:
    """A date: years from bit 9 on, months from bit 5 on."""
    found = days(packed >> 9, packed >> 5 & 15, packed & 31)
    return "null" if found is None else found


@lru_cache(65536)
def _seconds(packed: int) -> int | None:
    """The date part of a datetime, 13 months to a year, as seconds since 1970."""
    months, day = divmod(packed, 32)
    found = days(months // 13, months % 13, day)
    return None if found is None else found * 86400


def moment(packed: int, fraction: int, digits: int) -> int | str:
    """A datetime: the packed whole seconds and microseconds of the binlog."""
    start = _seconds(packed >> 17)
    if start is None:
        return "null"
    whole = start + (packed >> 12 & 31) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)
    return whole * 1000 + fraction // 1000 if digits <= 3 else whole * 1000000 + fraction


@lru_cache(65536)
def _second(value: int) -> str:
    return dt.datetime.fromtimestamp(value, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def stamp(seconds: int, fraction: int, digits: int) -> str:
    """A timestamp; the server's zero is null."""
    if not seconds:
        return "null"
    if not digits:
        return f'"{_second(seconds)}Z"'
    return f'"{_second(seconds)}.{f"{fraction:06}"[:digits]}Z"'


def span(packed: int, shift: int, unit: int) -> int:
    """A time of day or a span of time: one number with its sign, hours on top, the fraction in the lowest bits."""
    size = abs(packed)
    whole = size >> shift
    found = ((whole >> 12) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)) * 1000000
    found += (size & (1 << shift) - 1) * unit
    return -found if packed < 0 else found


def label(values: Sequence[str]) -> tuple[str, ...]:
    """What an enum's numbers stand for; 0 is the empty text that a wrong value became."""
    return ('""', *map(written, values))


def labels(values: Sequence[str]) -> Callable[[int], str]:
    """What a set's bits stand for."""

    @lru_cache(4096)
    def write(value: int) -> str:
        return written(",".join(each for bit, each in enumerate(values) if value >> bit & 1))

    return write
