"""Frames: the header of a request, and a response with its header in front."""

import struct
from typing import Any

from headwater.door.kafka.api import Handler
from headwater.errors import ProtocolError
from headwater.protocol.kafka.codec import Message

__all__ = ["API_VERSIONS", "encode_response", "read_client_id", "read_head", "read_size", "skip_tags"]

API_VERSIONS = 18

read_head = struct.Struct(">hhi").unpack_from
"""API key, version and correlation id."""
read_size = struct.Struct(">i").unpack_from
_int16 = struct.Struct(">h")
_plain_head = struct.Struct(">ii")
_flexible_head = struct.Struct(">iix")
_size = struct.Struct(">i")


def read_client_id(frame: memoryview) -> tuple[str, int]:
    """The client id in a request's header, and the position after it."""
    (length,) = _int16.unpack_from(frame, 8)
    if length < 0:
        return "", 10
    if 10 + length > len(frame):
        raise ProtocolError("the client id of a request reaches past its end", got=f"{length} bytes")
    return str(frame[10 : 10 + length], "utf-8", "replace"), 10 + length


def skip_tags(frame: memoryview, position: int) -> int:
    """The position after the tagged fields of a request's header, of which there are none yet."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    raise ProtocolError("a request header has tagged fields", expected="none")


def encode_response(handler: Handler, version: int, correlation: int, message: Message) -> list[Any]:
    """The pieces of a response frame, large record batches among them uncopied."""
    flexible = version >= handler.flexible and handler.key != API_VERSIONS
    head = _flexible_head if flexible else _plain_head
    pieces = handler.response.encode(version, message, head.pack(0, correlation))
    size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
    _size.pack_into(pieces[0], 0, size - 4)
    return pieces
