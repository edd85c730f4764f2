"""Envelope: Debezium's JSON around a row, made of pieces so that a row costs string joins only.

A piece is a str in which each character is one byte of UTF-8 ("é" is the two characters "Ã©"): offsets in it are offsets in the bytes
that a database has sent, joining is cheap, and one ``encode("latin-1")`` makes the bytes of the record. Names and constants become
pieces by `piece`, texts by `quoted`, and what is a number already is its own piece.

A source compiles for each table and schema version what a row of it looks like (`row`) and what its source block looks like
(`block`), and puts them together with `created`, `updated`, `deleted` and `truncated`.
"""

import re
import string
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, NamedTuple, TypeVar

import msgspec

from headwater.capture.source import Record

__all__ = [
    "NULL",
    "UNAVAILABLE",
    "UNAVAILABLE_BYTES",
    "Around",
    "Hole",
    "block",
    "compiled",
    "created",
    "deleted",
    "literal",
    "members",
    "piece",
    "quoted",
    "row",
    "stamp",
    "truncated",
    "two_complement",
    "updated",
    "value",
    "written",
]

NULL = "null"
UNAVAILABLE = '"__debezium_unavailable_value"'
"""The piece of a value that the database did not send and nobody here knows: Debezium's own placeholder."""
UNAVAILABLE_BYTES = f'"{b64encode(UNAVAILABLE.strip(chr(34)).encode()).decode()}"'

Function = TypeVar("Function", bound=Callable[..., Any])
quoted = encode_basestring
"""A text in pieces' characters as a JSON string."""
HALVES = re.compile("[\ud800-\udfff]")
_new = tuple.__new__


class Hole(NamedTuple):
    """A value of a `block` that is filled in later: the name of its argument, which is a piece."""

    name: str
    quoted: bool = False
    """Whether it stands inside a JSON string; the argument then holds nothing that needs a backslash."""


def piece(text: str) -> str:
    """Any text with its UTF-8 bytes as characters."""
    return text.encode().decode("latin-1")


def written(text: str) -> str:
    """Any text as the piece of a JSON string. Half a character of UTF-16, which some databases store, is escaped."""
    try:
        return quoted(piece(text))
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        parts = HALVES.split(quoted(whole))
        halves = [f"\\u{ord(half):04x}" for half in HALVES.findall(whole)]
        return "".join(part for pair in zip(map(piece, parts), (*halves, ""), strict=True) for part in pair)


_BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
_TWO = [first + second for first in _BASE64 for second in _BASE64]
"""Two characters of Base64 for each number of 12 bits."""


def two_complement(number: int) -> str:
    """The Base64 of a whole number's shortest two's complement, which is how Java writes the digits of a decimal."""
    # The lengths that most have are looked up: 3, 2 and 4 bytes.
    if 0x8000 <= number < 0x800000:
        return f'"{_TWO[number >> 12]}{_TWO[number & 0xFFF]}"'
    if 0x80 <= number < 0x8000:
        return f'"{_TWO[number >> 4]}{_BASE64[(number & 0xF) << 2]}="'
    if 0x800000 <= number < 0x80000000:
        return f'"{_TWO[number >> 20]}{_TWO[number >> 8 & 0xFFF]}{_TWO[(number & 0xFF) << 4]}=="'
    length = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
    return f'"{b64encode(number.to_bytes(length, "big", signed=True)).decode()}"'


def literal(text: str) -> str:
    """A piece as the constant part of an f-string's source code between double quotes."""
    return repr(text)[1:-1].replace("\\'", "'").replace('"', '\\"').replace("{", "{{").replace("}", "}}")


def members(names: Sequence[str], expressions: Iterable[str]) -> str:
    """Source code of an f-string's inside: a JSON object with a member for each name and the piece that its expression gives."""
    pairs = (
        f"{literal(piece(msgspec.json.encode(name).decode()))}:{{{expression}}}"
        for name, expression in zip(names, expressions, strict=True)
    )
    return "{{" + ",".join(pairs) + "}}"


def compiled(name: str, code: str, **known: Any) -> Any:
    """The function of that name which the source code defines."""
    names: dict[str, Any] = dict(known)
    exec(compile(code, f"<{name}>", "exec"), names)  # noqa: S102  the code is ours; names in it are literals
    return names[name]


def row(names: Sequence[str], columns: Sequence[int] | None = None) -> Callable[[Sequence[str]], str]:
    """A function from the pieces of all columns to the JSON object of them, or of ``columns`` in that order: the key."""
    chosen = range(len(names)) if columns is None else columns
    inside = members([names[at] for at in chosen], [f"v[{at}]" for at in chosen])
    made: Callable[[Sequence[str]], str] = compiled("row", f'def row(v):\n    return f"{inside}"\n')
    return made


def block(fields: Mapping[str, Any]) -> Callable[..., str]:
    """A function from the named pieces of the holes to a JSON object; everything else in it is constant."""
    parts, names = [], list[str]()
    for name, given in fields.items():
        head = literal(piece(msgspec.json.encode(name).decode()))
        if isinstance(given, Hole):
            names.append(given.name)
            parts.append(f'{head}:\\"{{{given.name}}}\\"' if given.quoted else f"{head}:{{{given.name}}}")
        else:
            parts.append(f"{head}:{literal(piece(msgspec.json.encode(given).decode()))}")
    arguments = ", ".join(dict.fromkeys(names))
    made: Callable[..., str] = compiled(
        "block", f'def block({arguments}):\n    return f"{{{{{",".join(parts)}}}}}"\n'
    )
    return made


def stamp(now_ns: int | None = None) -> str:
    """The members that say when an event was made: once for many events, since nobody needs them closer."""
    ns = time.time_ns() if now_ns is None else now_ns
    return f'"ts_ms":{ns // 1_000_000},"ts_us":{ns // 1_000},"ts_ns":{ns}'


def value(before: str, after: str, source: str, op: str, made: str) -> bytes:
    """The value of one event; all arguments are pieces, ``made`` is a `stamp`."""
    return f'{{"before":{before},"after":{after},"source":{source},"transaction":null,"op":"{op}",{made}}}'.encode(
        "latin-1"
    )


class Around(NamedTuple):
    """What one event shares with those beside it."""

    topic: str
    source: str
    """The piece of its source block."""
    made: str
    """A `stamp`."""
    at_ms: int
    """When it was committed."""


def created(around: Around, key: str | None, after: str, op: str = "c") -> Record:
    """A row that is new, or with op ``r`` one that a snapshot has found."""
    topic, source, made, at_ms = around
    return _new(Record, (topic, _key(key), value(NULL, after, source, op, made), at_ms))


def updated(
    around: Around, key: str | None, before: str, after: str, old_key: str | None = None
) -> list[Record]:
    """A row that has changed; with another ``old_key``, it goes and comes again under its new one."""
    if old_key is None or old_key == key:
        topic, source, made, at_ms = around
        return [_new(Record, (topic, _key(key), value(before, after, source, "u", made), at_ms))]
    return [*deleted(around, old_key, before), created(around, key, after)]


def deleted(around: Around, key: str | None, before: str) -> tuple[Record, Record]:
    """A row that is gone, and the tombstone behind it."""
    topic, source, made, at_ms = around
    name = _key(key)
    gone = _new(Record, (topic, name, value(before, NULL, source, "d", made), at_ms))
    return gone, _new(Record, (topic, name, None, at_ms))


def truncated(around: Around) -> Record:
    """All rows of a table are gone. It has no key, as in Debezium."""
    topic, source, made, at_ms = around
    return _new(Record, (topic, None, value(NULL, NULL, source, "t", made), at_ms))


def _key(key: str | None) -> bytes | None:
    return None if key is None else key.encode("latin-1")
