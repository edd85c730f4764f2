"""Decoders: bytes as values of a type, safely from any thread.

msgspec prepares a struct when it first decodes one, and fills in what it knows of the fields while others may already use it: two threads that decode
the first values of a type at once crash the process. Here each decoder is made once, under a lock, before anything is decoded with it.
"""

import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["from_json", "from_msgpack"]

T = TypeVar("T")

_lock = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def from_json(data: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """JSON as a value of a type. Raises msgspec.DecodeError, or msgspec.ValidationError when it is of another type."""
    found = _json.get(kind)
    if found is None:
        with _lock:
            found = _json[kind] = msgspec.json.Decoder(kind)
    value: T = found.decode(data)
    return value


def from_msgpack(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """The same for msgpack."""
    found = _msgpack.get(kind)
    if found is None:
        with _lock:
            found = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    value: T = found.decode(data)
    return value
