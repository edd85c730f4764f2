"""PostgreSQL's values as pieces of JSON in Debezium's form, by type, from the texts that the server sends.

The texts are those of a session with ``TimeZone=UTC``, ``DateStyle=ISO``, ``IntervalStyle=iso_8601`` and
``lc_monetary=C``. Values of other types than those here are published as their text, and numbers that JSON
does not have (NaN, infinity) as their name.
"""

import re
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import isfinite, isnan
from typing import Literal, NamedTuple

from headwater.capture.envelope import NULL, UNAVAILABLE, UNAVAILABLE_BYTES, quote, two_complement

__all__ = ["Decimals", "Encode", "Kind", "Type", "Types"]

Encode = Callable[[str], str]
Decimals = Literal["precise", "string"]

BOOL, BYTEA, INT8, INT2, INT4, OID, POINT, FLOAT4, FLOAT8, MONEY = 16, 17, 20, 21, 23, 26, 600, 700, 701, 790
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ = 1082, 1083, 1114, 1184, 1186, 1266
BIT, VARBIT, NUMERIC = 1560, 1562, 1700
CACHE_ENTRIES = 10_000
DAY_US = 86_400_000_000
MONTH_US = 2_629_800_000_000
"""A twelfth of 365.25 days, as Debezium counts."""


class Type(NamedTuple):
    """The columns of pg_type that are used here."""

    oid: int
    base: int
    """The base type of a domain; otherwise 0."""
    typmod: int
    element: int
    """The element type of an array; otherwise 0."""
    delimiter: str = ","
    """The separator of an array's elements."""


class Kind(NamedTuple):
    """How values of a column become pieces."""

    encode: Encode | None
    """None: the text itself is JSON."""
    unavailable: str
    """The piece of a value that is not known."""


class Types:
    """The types of one database, by their ids."""

    def __init__(self, rows: Iterable[Type] = (), *, decimals: Decimals = "precise") -> None:
        self._rows: Mapping[int, Type] = {row.oid: row for row in rows}
        self._decimals = decimals

    def __contains__(self, oid: int) -> bool:
        return oid in self._rows or oid in _ENCODERS

    def kind(self, oid: int, typmod: int) -> Kind:  # noqa: PLR0911  one for each family of types
        """How a column of this type is encoded."""
        row = self._rows.get(oid)
        if row is not None and row.base:
            return self.kind(row.base, row.typmod)
        if row is not None and row.element and oid not in _ENCODERS:
            element = self.kind(row.element, typmod).encode
            token = _token(row.delimiter)
            return Kind(lambda text: _array(text, element, token), f"[{UNAVAILABLE}]")
        if oid in {NUMERIC, MONEY} and self._decimals == "string":
            return Kind((lambda text: f'"{_cents(text)}"') if oid == MONEY else _named, UNAVAILABLE)
        if oid == NUMERIC:
            return Kind(_numeric(typmod), UNAVAILABLE)
        if oid in {BIT, VARBIT}:
            return Kind(_flag if (oid, typmod) == (BIT, 1) else _bits, UNAVAILABLE_BYTES)
        if oid in _BY_PRECISION:
            coarse, fine = _BY_PRECISION[oid]
            return Kind(coarse if 0 <= typmod <= 3 else fine, UNAVAILABLE)
        if oid == TIMESTAMPTZ:
            return Kind(_zoned(6 if typmod < 0 else typmod), UNAVAILABLE)
        unavailable = UNAVAILABLE_BYTES if oid == BYTEA else UNAVAILABLE
        return Kind(_ENCODERS.get(oid, quote), unavailable)


def _named(text: str) -> str:
    return f'"{text}"'


def _flag(text: str) -> str:
    return "true" if text in {"t", "1"} else "false"


def _float(text: str) -> str:
    if text == "-0":  # readers of JSON take it for an integer, which has no -0
        return "-0.0"
    return text if text[-1] <= "9" else f'"{text}"'


def _bytes(text: str) -> str:
    return f'"{b64encode(bytes.fromhex(text[2:])).decode()}"'


def _numeric(typmod: int) -> Encode:
    scale = None if typmod < 4 else ((typmod - 4 & 0x7FF) ^ 1024) - 1024
    point, digits = (-scale - 1, -scale) if scale is not None and scale > 0 else (0, 0)

    def encode(text: str) -> str:
        if text[point:digits] == ".":
            return two_complement(int(text[:point] + text[digits:]))
        if text[-1] > "9":  # NaN, Infinity
            return f'"{text}"'
        whole, _, fraction = text.partition(".")
        if scale is None:
            return f'{{"scale":{len(fraction)},"value":{two_complement(int(whole + fraction))}}}'
        if scale < 0:
            return two_complement(int(whole) // 10**-scale)
        return two_complement(int(whole + fraction.ljust(scale, "0")))

    return encode


def _cents(text: str) -> str:
    digits = "".join(character for character in text if character.isdigit() or character == ".")
    return f"-{digits}" if text[0] in "-(" else digits


def _money(text: str) -> str:
    return two_complement(int(_cents(text).replace(".", "")))


def _bits(text: str) -> str:
    number = int(text, 2) if text else 0
    return f'"{b64encode(number.to_bytes((len(text) + 7) // 8, "little")).decode()}"'


def _point(text: str) -> str:
    x, y = map(float, text[1:-1].split(","))
    wkb = b64encode(struct.pack("<BIdd", 1, 1, x, y)).decode()
    return f'{{"x":{_number(x)},"y":{_number(y)},"wkb":"{wkb}","srid":null}}'


def _number(value: float) -> str:
    if isfinite(value):
        return repr(value)
    return '"NaN"' if isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


class _Cache(dict[str, int]):
    """The values of recent texts; it is cleared when it is full."""

    def __init__(self, parse: Callable[[str], int]) -> None:
        super().__init__()
        self._parse = parse

    def __missing__(self, text: str) -> int:
        if len(self) >= CACHE_ENTRIES:
            self.clear()
        value = self[text] = self._parse(text)
        return value


def _civil(text: str) -> int:
    """Days from 1970-01-01 to a date of the Gregorian calendar, of any year; ``-0043-03-15`` is in 44 BC."""
    year_text, month_text, day_text = text.rsplit("-", 2)
    month, day = int(month_text), int(day_text)
    year = int(year_text) - (month <= 2)
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _astronomical(text: str) -> str:
    """A date or timestamp with the year of ISO 8601: 44 BC is -0043."""
    if not text.endswith(" BC"):
        return text
    year, _, rest = text[:-3].partition("-")
    return f"{1 - int(year):05d}-{rest}" if year != "0001" else f"0000-{rest}"


_days = _Cache(_civil)
_minutes = _Cache(
    lambda text: (_civil(text[:10]) * 1440 + int(text[11:13]) * 60 + int(text[14:16])) * 60_000_000
)


def _date(text: str) -> str:
    if text[-1] > "9":
        return f'"{text}"' if text[-1] == "y" else str(_civil(_astronomical(text)))
    return str(_days[text])


def _time_us(text: str) -> int:
    """Microseconds since midnight; 24:00:00 is not 0."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))


FOREVER_US = 9_223_372_036_825_200_000
SINCE_EVER_US = -9_223_372_036_832_400_000
"""Debezium's numbers for infinite timestamps, outside of the range of finite ones."""


def _timestamp_us(text: str) -> int:
    if text[-1] > "9" or text[10] != " ":
        if text[-1] == "y":
            return SINCE_EVER_US if text[0] == "-" else FOREVER_US
        day, _, time = _astronomical(text).partition(" ")
        return _civil(day) * DAY_US + _time_us(time)
    if len(text) == 19:
        return _minutes[text[:16]] + int(text[17:19]) * 1_000_000
    return _minutes[text[:16]] + int(text[17:19]) * 1_000_000 + int(text[20:].ljust(6, "0"))


def _timestamp(text: str) -> str:
    if len(text) == 19 and text[-1] <= "9":
        return str(_minutes[text[:16]] + int(text[17:]) * 1_000_000)
    return str(_timestamp_us(text))


def _timestamp_ms(text: str) -> str:
    return str(_timestamp_us(text) // 1_000)


def _time(text: str) -> str:
    return str(_time_us(text))


def _time_ms(text: str) -> str:
    return str(_time_us(text) // 1_000)


def _zoned(digits: int) -> Encode:
    empty, width = f".{'0' * digits}" if digits else "", digits + 1

    def encode(text: str) -> str:
        if text[10:11] == " " and text[-3] == "+":  # a year of four digits, after Christ
            fraction = text[19:-3].ljust(width, "0") if text[19] == "." else empty
            return f'"{text[:10]}T{text[11:19]}{fraction}Z"'
        if text[-1] > "9":
            if text[-1] == "y":
                return f'"{text}"'
            text = _astronomical(text)
        day, _, time = text[:-3].partition(" ")  # the zone is +00
        if len(day) > 10 and day[0] != "-":
            day = f"+{day}"
        fraction = time[8:].ljust(width, "0") if len(time) > 8 else empty
        return f'"{day}T{time[:8]}{fraction}Z"'

    return encode


def _timetz(text: str) -> str:
    match = re.fullmatch(r"([\d:.]+)([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?", text)
    if match is None:
        return quote(text)
    offset = (int(match[3]) * 60 + int(match[4] or 0)) * 60 + int(match[5] or 0)
    shift = offset * (1_000_000 if match[2] == "-" else -1_000_000)
    micros = _time_us(match[1]) + shift
    if shift or micros > DAY_US:
        micros %= DAY_US
    seconds, rest = divmod(micros, 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f'"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}Z"'


_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d+))?S)?)?"
)


def _interval(text: str) -> str:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return quote(text)
    years, months, days, hours, minutes = (int(group or 0) for group in match.groups()[:5])
    seconds = int(match[7] or 0) * 1_000_000 + int((match[8] or "").ljust(6, "0"))
    micros = (years * 12 + months) * MONTH_US + days * DAY_US + (hours * 60 + minutes) * 60_000_000
    return str(micros + (-seconds if match[6] else seconds))


_BOUNDS = re.compile(r"(?:\[[-+\d]+:[-+\d]+\])+=")
"""The prefix of an array literal whose indexes do not begin at 1."""


@lru_cache
def _token(delimiter: str) -> re.Pattern[str]:
    """The tokens of an array literal: signs, quoted elements and plain ones."""
    signs = "{}" + re.escape(delimiter)
    return re.compile(rf'(?P<sign>[{signs}])|"(?P<quoted>(?:[^"\\]|\\.)*)"|[^{signs}"]+', re.DOTALL)


def _array(text: str, element: Encode | None, token: re.Pattern[str]) -> str:
    """An array literal as a JSON array; bounds are left out, as in Debezium."""
    bounds = _BOUNDS.match(text) if text[0] == "[" else None
    tokens = token.finditer(text, bounds.end() if bounds else 0)
    next(tokens)
    return _elements(tokens, element)


def _elements(tokens: Iterator[re.Match[str]], element: Encode | None) -> str:
    elements: list[str] = []
    for token in tokens:
        if token["sign"] == "{":
            elements.append(_elements(tokens, element))
        elif token["sign"] == "}":
            break
        elif token["sign"] is None:
            inside = token["quoted"]
            if inside is None and token[0] == "NULL":
                elements.append(NULL)
                continue
            plain = token[0] if inside is None else re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL)
            elements.append(plain if element is None else element(plain))
    return f"[{','.join(elements)}]"


_BY_PRECISION: dict[int, tuple[Encode, Encode]] = {
    TIME: (_time_ms, _time),
    TIMESTAMP: (_timestamp_ms, _timestamp),
}
_ENCODERS: dict[int, Encode | None] = {
    BOOL: _flag,
    BYTEA: _bytes,
    INT8: None,
    INT2: None,
    INT4: None,
    OID: None,
    POINT: _point,
    FLOAT4: _float,
    FLOAT8: _float,
    MONEY: _money,
    DATE: _date,
    INTERVAL: _interval,
    TIMETZ: _timetz,
    TIME: _time,
    TIMESTAMP: _timestamp,
    BIT: _bits,
    VARBIT: _bits,
}
