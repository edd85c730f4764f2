"""MySQL's binary JSON as text. MariaDB does not have it: its JSON columns are text.

A value is a type byte and either a small value or an offset from the start of its object or array. Small and
large containers differ in the width of counts and offsets. Objects have their keys in MySQL's order: by
length, then bytes.
"""

from base64 import b64encode
from collections.abc import Callable
from functools import partial
from json.encoder import encode_basestring as quote
from struct import unpack_from

from headwater.errors import CaptureError

__all__ = ["json_text"]

LITERALS = ("null", "true", "false")
NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q", 11: "<d"}
INLINE = {4, 5, 6}
INLINE_LARGE = {*INLINE, 7, 8}


def json_text(raw: bytes) -> str:
    """The text of a document; MySQL writes an empty one for null in a partial update."""
    return _value(raw[0], raw, 1) if raw else "null"


def _value(kind: int, b: bytes, at: int) -> str:
    if kind <= 3:
        return _container(b[at:], large=bool(kind & 1), pairs=kind < 2)
    if kind == 4:
        return LITERALS[b[at]]
    if kind in NUMBERS:
        return repr(unpack_from(NUMBERS[kind], b, at)[0])
    if kind == 12:
        size, at = _size(b, at)
        return quote(b[at : at + size].decode())
    if kind == 15:
        size, start = _size(b, at + 1)
        return _opaque(b[at], b[start : start + size])
    raise CaptureError("a JSON column has a value of an unknown type", got=f"type {kind}")


def _size(b: bytes, at: int) -> tuple[int, int]:
    """A length with seven bits in each byte, and the offset after it."""
    size = shift = 0
    while b[at] & 0x80:
        size |= (b[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return size | b[at] << shift, at + 1


def _container(b: bytes, *, large: bool, pairs: bool) -> str:
    width = 4 if large else 2
    count = int.from_bytes(b[:width], "little")
    at = 2 * width
    keys = []
    if pairs:
        for n in range(count):
            entry = at + n * (width + 2)
            start = int.from_bytes(b[entry : entry + width], "little")
            size = int.from_bytes(b[entry + width : entry + width + 2], "little")
            keys.append(quote(b[start : start + size].decode()))
        at += count * (width + 2)
    values = []
    for n in range(count):
        entry = at + n * (width + 1)
        kind = b[entry]
        inline = kind in (INLINE_LARGE if large else INLINE)
        place = entry + 1 if inline else int.from_bytes(b[entry + 1 : entry + 1 + width], "little")
        values.append(_value(kind, b, place))
    if pairs:
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"
    return "[" + ", ".join(values) + "]"


def _opaque(kind: int, raw: bytes) -> str:
    """An SQL value in JSON: decimals and times as MySQL shows them, others as Base64."""
    if kind == 246:
        return _decimal(raw[0], raw[1], raw[2:])
    if kind in OPAQUE:
        return quote(OPAQUE[kind](int.from_bytes(raw, "little", signed=True)))
    return quote(f"base64:type{kind}:{b64encode(raw).decode()}")


def _decimal(precision: int, scale: int, raw: bytes) -> str:
    value = int.from_bytes(raw, "big") ^ 1 << (8 * len(raw) - 1)
    negative = value >> (8 * len(raw) - 1)
    if negative:
        value ^= (1 << 8 * len(raw)) - 1
    whole = precision - scale
    groups = [*([scale % 9] if scale % 9 else []), *[9] * (scale // 9), *[9] * (whole // 9), whole % 9]
    unscaled = shift = power = 0
    for digits in groups:
        width = 8 * (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[digits]
        unscaled += (value >> shift & (1 << width) - 1) * 10**power
        shift, power = shift + width, power + digits
    text = f"{unscaled:0{scale + 1}}"
    text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
    return f"-{text}" if negative else text


def _moment(packed: int, *, whole: bool) -> str:
    fraction, packed = packed & 0xFFFFFF, packed >> 24
    months, day = divmod(packed >> 17, 32)
    date = f"{months // 13:04}-{months % 13:02}-{day:02}"
    if whole:
        return date
    return f"{date} {packed >> 12 & 31:02}:{packed >> 6 & 63:02}:{packed & 63:02}.{fraction:06}"


def _span(packed: int) -> str:
    size = abs(packed)
    fraction, whole = size & 0xFFFFFF, size >> 24
    sign = "-" if packed < 0 else ""
    return f"{sign}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{fraction:06}"


OPAQUE: dict[int, Callable[[int], str]] = {
    7: partial(_moment, whole=False),
    10: partial(_moment, whole=True),
    11: _span,
    12: partial(_moment, whole=False),
}
