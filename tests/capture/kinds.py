"""Types of databases for tests of values: what a column may hold, edges first, and what a record must say of it.

The oracle is the database: it shows each value as text, or as hexadecimal, and `Kind.same` says whether the JSON of a record is that value.
Nothing here shares code with the captures.
"""

import json
import random
import struct
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, NamedTuple

EPOCH = date(1970, 1, 1)
CONTEXT = Context(prec=2000)
"""Enough for every digit."""
TEXTS = [
    "",
    " ",
    "a",
    "a  ",
    "  a",
    "NULL",
    "null",
    "\\N",
    "[null]",
    "'",
    '"',
    "\\",
    "\\'",
    "a\nb",
    "\t\r\n\b\f",
    "\x01\x1f\x7f",
    "é",
    "e\u0301",
    "ß",
    "한국어",
    "日本語",
    "😀",
    "\ufffd",
    "\ufeff",
    "\u2028\u2029",
    "\uffff",
    "\U0010ffff",
    "{}",
    '{"a":1}',
    "]={",
    "{a,b}",
    "%s",
    "0",
    "007",
    "1e5",
    "__debezium_unavailable_value",
]


class Kind(NamedTuple):
    """A type: its SQL, literals of its values, how its value is shown, and whether JSON says what is shown."""

    sql: str
    literals: Sequence[str]
    same: Callable[[Any, str], bool]
    shown: str = "{0}"
    """SQL that shows a column."""
    key: bool = True
    """Whether a primary key may contain it."""
    more: Callable[[random.Random], str] | None = None
    """Another literal, by chance."""

    def literal(self, chance: random.Random) -> str:
        if self.more is not None and chance.random() < 0.5:
            return self.more(chance)
        return chance.choice(self.literals)


def whole(found: Any, text: str) -> bool:
    return type(found) is int and found == int(text)


def plain(found: Any, text: str) -> bool:
    return isinstance(found, str) and found == text


def flag(found: Any, text: str) -> bool:
    return found is (text in {"t", "1", "true"})


def raw(found: Any, text: str) -> bool:
    """Bytes, shown in hexadecimal."""
    return b64decode(found, validate=True) == bytes.fromhex(text.removeprefix("\\x"))


def double(found: Any, text: str) -> bool:
    if text in {"NaN", "Infinity", "-Infinity"}:
        return bool(found == text)
    return not isinstance(found, str) and struct.pack("<d", found) == struct.pack("<d", float(text))


def single(found: Any, text: str) -> bool:
    if text in {"NaN", "Infinity", "-Infinity"}:
        return bool(found == text)
    return not isinstance(found, str) and struct.pack("<f", found) == struct.pack("<f", float(text))


def decimal(scale: int) -> Callable[[Any, str], bool]:
    """Base64 of the unscaled number."""

    def same(found: Any, text: str) -> bool:
        if text in {"NaN", "Infinity", "-Infinity"}:
            return bool(found == text)
        number = int.from_bytes(b64decode(found, validate=True), signed=True)
        return Decimal(number).scaleb(-scale, CONTEXT) == Decimal(text)

    return same


def numeric(found: Any, text: str) -> bool:
    """A decimal with a scale of its own."""
    if text in {"NaN", "Infinity", "-Infinity"}:
        return bool(found == text)
    unscaled = int.from_bytes(b64decode(found["value"], validate=True), signed=True)
    scale = len(text.partition(".")[2])
    return found["scale"] == scale and Decimal(unscaled).scaleb(-scale, CONTEXT) == Decimal(text)


def day(found: Any, text: str) -> bool:
    """Days since 1970; None where the calendar has no such day."""
    try:
        return bool(found == (date.fromisoformat(text) - EPOCH).days)
    except ValueError:
        return found is None


def moment(unit: int) -> Callable[[Any, str], bool]:
    """A time without a zone, as so many microseconds since 1970 in each unit; None where the calendar has none such."""

    def same(found: Any, text: str) -> bool:
        try:
            at = datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            return found is None
        return bool(found == (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=unit))

    return same


def span(unit: int) -> Callable[[Any, str], bool]:
    """A time of day, or a span of hours."""

    def same(found: Any, text: str) -> bool:
        hours, minutes, seconds = text.lstrip("-").split(":")
        whole = (int(hours) * 3600 + int(minutes) * 60) * 1_000_000 + int(Decimal(seconds) * 1_000_000)
        return bool(found == (-whole if text[0] == "-" else whole) // unit)

    return same


def bits(found: Any, text: str) -> bool:
    """Shown as ones and zeros; the lowest byte comes first."""
    if len(text) == 1:
        return found is (text == "1")
    data = b64decode(found, validate=True)
    return len(data) == (len(text) + 7) // 8 and int.from_bytes(data, "little") == int(text or "0", 2)


def parsed(found: Any, text: str) -> bool:
    """A JSON document, as text."""
    return isinstance(found, str) and found == text and json.loads(found) == json.loads(text)


def integers(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda chance: str(
        chance.randint(low, high) >> chance.randrange(60) if low else chance.randint(low, high)
    )


def digits(precision: int, scale: int, *, sign: str = "-") -> Callable[[random.Random], str]:
    """A decimal of so many digits, or fewer."""

    def make(chance: random.Random) -> str:
        number = chance.randrange(10 ** chance.randint(1, precision))
        minus = sign * (chance.random() < 0.5)
        return f"{minus}{Decimal(number).scaleb(-scale, CONTEXT):f}"

    return make


def dates(first: int, last: int, form: str) -> Callable[[random.Random], str]:
    """A moment between two years."""

    start, end = datetime(first, 1, 1, tzinfo=UTC), datetime(last, 12, 31, tzinfo=UTC)

    def make(chance: random.Random) -> str:
        at = start + timedelta(microseconds=chance.randrange((end - start) // timedelta(microseconds=1)))
        return form.format(f"{at.date().isoformat()} {at.time().isoformat('microseconds')}")

    return make


def octets(most: int, form: str) -> Callable[[random.Random], str]:
    return lambda chance: form.format(chance.randbytes(chance.randint(0, most)).hex())
