"""Envelope: Debezium's JSON around a row, joined from pieces so that a row costs string joins only.

A piece is a str in which each character is one byte of UTF-8 ("é" is the two characters "Ã©"). Offsets in it
are offsets in the bytes of the database, joining is cheap, and one ``encode("latin-1")`` gives the bytes of
the record. `piece` converts names and constants, `quote` and `quote_text` convert texts; a number is its own
piece.

A source compiles the layout of a row (`row`) and of its source block (`block`) for each table and schema
version, and builds events from them with `create_event`, `update_events`, `delete_events` and
`truncate_event`.
"""

import re
import string
import time
from base64 import b64encode
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import msgspec

from headwater.capture.source import EventContext, Record

__all__ = [
    "NULL",
    "UNAVAILABLE",
    "UNAVAILABLE_BYTES",
    "Hole",
    "base64",
    "block",
    "compile_function",
    "create_event",
    "delete_events",
    "literal",
    "members",
    "piece",
    "quote",
    "quote_text",
    "row",
    "stamp",
    "truncate_event",
    "two_complement",
    "update_events",
    "value",
]

NULL = "null"
UNAVAILABLE = '"__debezium_unavailable_value"'
"""The piece of an unknown value that the database did not send: Debezium's own placeholder."""
UNAVAILABLE_BYTES = f'"{b64encode(UNAVAILABLE.strip(chr(34)).encode()).decode()}"'

quote = encode_basestring
"""A piece of text as a piece with quotes: a JSON string."""
SURROGATES = re.compile("[\ud800-\udfff]")
_new = tuple.__new__


class Hole(NamedTuple):
    """A value of a `block` that is filled in later: the name of its argument, a piece."""

    name: str
    quoted: bool = False
    """Whether it is inside a JSON string; the argument then has no character that needs a backslash."""


def piece(text: str) -> str:
    """A text with its UTF-8 bytes as characters."""
    return text.encode().decode("latin-1")


def quote_text(text: str) -> str:
    """Any text as the piece of a JSON string. Single surrogates, which some databases store, are escaped."""
    try:
        return quote(piece(text))
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        parts = SURROGATES.split(quote(whole))
        escapes = [f"\\u{ord(surrogate):04x}" for surrogate in SURROGATES.findall(whole)]
        return "".join(part for pair in zip(map(piece, parts), (*escapes, ""), strict=True) for part in pair)


_BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
_TWO = [first + second for first in _BASE64 for second in _BASE64]
"""Two characters of Base64 for each number of 12 bits."""


def two_complement(number: int) -> str:
    """The Base64 of an integer's shortest two's complement, as Java writes the digits of a decimal."""
    # The most common lengths are looked up: 3, 2 and 4 bytes.
    if 0x8000 <= number < 0x800000:
        return f'"{_TWO[number >> 12]}{_TWO[number & 0xFFF]}"'
    if 0x80 <= number < 0x8000:
        return f'"{_TWO[number >> 4]}{_BASE64[(number & 0xF) << 2]}="'
    if 0x800000 <= number < 0x80000000:
        return f'"{_TWO[number >> 20]}{_TWO[number >> 8 & 0xFFF]}{_TWO[(number & 0xFF) << 4]}=="'
    length = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
    return f'"{b64encode(number.to_bytes(length, "big", signed=True)).decode()}"'


def base64(raw: bytes) -> str:
    """Bytes as a JSON string in Base64."""
    return f'"{b2a_base64(raw, newline=False).decode()}"'


def literal(text: str) -> str:
    """A piece as the constant part of the source code of an f-string in double quotes."""
    return repr(text)[1:-1].replace("\\'", "'").replace('"', '\\"').replace("{", "{{").replace("}", "}}")


def members(names: Sequence[str], expressions: Iterable[str]) -> str:
    """Source code inside an f-string: a JSON object with a member for each name and its expression."""
    pairs = (
        f"{literal(piece(msgspec.json.encode(name).decode()))}:{{{expression}}}"
        for name, expression in zip(names, expressions, strict=True)
    )
    return "{{" + ",".join(pairs) + "}}"


def compile_function(name: str, code: str, **names: Any) -> Any:
    """The function of that name which the source code defines; the code may use ``names``."""
    scope: dict[str, Any] = dict(names)
    exec(compile(code, f"<{name}>", "exec"), scope)  # noqa: S102  the code is ours; names in it are literals
    return scope[name]


def row(names: Sequence[str], columns: Sequence[int] | None = None) -> Callable[[Sequence[str]], str]:
    """A function from the pieces of all columns to a JSON object of all of them, or of ``columns`` only."""
    chosen = range(len(names)) if columns is None else columns
    inside = members([names[at] for at in chosen], [f"v[{at}]" for at in chosen])
    write: Callable[[Sequence[str]], str] = compile_function("row", f'def row(v):\n    return f"{inside}"\n')
    return write


def block(fields: Mapping[str, Any]) -> Callable[..., str]:
    """A function from the named pieces of the holes to a JSON object; everything else in it is constant."""
    parts, names = [], list[str]()
    for name, field in fields.items():
        head = literal(piece(msgspec.json.encode(name).decode()))
        if isinstance(field, Hole):
            names.append(field.name)
            parts.append(f'{head}:\\"{{{field.name}}}\\"' if field.quoted else f"{head}:{{{field.name}}}")
        else:
            parts.append(f"{head}:{literal(piece(msgspec.json.encode(field).decode()))}")
    arguments = ", ".join(dict.fromkeys(names))
    write: Callable[..., str] = compile_function(
        "block", f'def block({arguments}):\n    return f"{{{{{",".join(parts)}}}}}"\n'
    )
    return write


def stamp(now_ns: int | None = None) -> str:
    """The members with the time of an event's creation; one stamp serves many events."""
    ns = time.time_ns() if now_ns is None else now_ns
    return f'"ts_ms":{ns // 1_000_000},"ts_us":{ns // 1_000},"ts_ns":{ns}'


def value(before: str, after: str, source: str, op: str, created: str) -> bytes:
    """The value of one event; all arguments are pieces, ``created`` is a `stamp`."""
    text = f'{{"before":{before},"after":{after},"source":{source},"transaction":null,"op":"{op}",{created}}}'
    return text.encode("latin-1")


def create_event(context: EventContext, key: str | None, after: str, op: str = "c") -> Record:
    """The event of a new row, or with op ``r`` of a row that a snapshot has read."""
    topic, source, created, at_ms = context
    return _new(Record, (topic, _key(key), value(NULL, after, source, op, created), at_ms))


def update_events(
    context: EventContext, key: str | None, before: str, after: str, old_key: str | None = None
) -> list[Record]:
    """The events of a changed row; one whose key has changed is deleted and created."""
    if old_key is None or old_key == key:
        topic, source, created, at_ms = context
        return [_new(Record, (topic, _key(key), value(before, after, source, "u", created), at_ms))]
    return [*delete_events(context, old_key, before), create_event(context, key, after)]


def delete_events(context: EventContext, key: str | None, before: str) -> tuple[Record, Record]:
    """The event of a deleted row, and its tombstone."""
    topic, source, created, at_ms = context
    name = _key(key)
    event = _new(Record, (topic, name, value(before, NULL, source, "d", created), at_ms))
    return event, _new(Record, (topic, name, None, at_ms))


def truncate_event(context: EventContext) -> Record:
    """The event of a truncated table, without a key, as in Debezium."""
    topic, source, created, at_ms = context
    return _new(Record, (topic, None, value(NULL, NULL, source, "t", created), at_ms))


def _key(key: str | None) -> bytes | None:
    return None if key is None else key.encode("latin-1")
