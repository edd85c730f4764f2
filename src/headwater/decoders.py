"""Decoders: bytes as values of a type, safely from any thread.

msgspec prepares a struct type when it first decodes one, and fills in its fields while other threads may
already use the type: two threads that decode the first values of a type at once crash the process. So each
decoder is made once, under a lock, before it is used.
"""

import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["from_json", "from_msgpack"]

T = TypeVar("T")

_lock = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_json_texts: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def from_json(data: bytes | bytearray | memoryview | str, kind: type[T], *, strict: bool = True) -> T:
    """JSON as a value of a type. Raises msgspec.DecodeError, or msgspec.ValidationError for another type.

    Without ``strict`` a text may be a number, as Infinity and NaN are.
    """
    decoders = _json if strict else _json_texts
    decoder = decoders.get(kind)
    if decoder is None:
        with _lock:
            decoder = decoders[kind] = msgspec.json.Decoder(kind, strict=strict)
    value: T = decoder.decode(data)
    return value


def from_msgpack(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """Msgpack as a value of a type, with the same errors."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _lock:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    value: T = decoder.decode(data)
    return value
