"""A socket client of a few lines that sends one request at a time to any broker, and hands back its answer as it came."""

import itertools
import socket
import struct

from headwater.protocol.kafka.codec import Message, layout
from support.protocol import build

_length = struct.Struct(">i")
_head = struct.Struct(">hhi")
CLIENT_ID = b"wire"


class Wire:
    """One connection. Error codes, offsets and sessions are what the broker said: nothing is tried again, nothing is translated."""

    def __init__(self, bootstrap: str, seconds: float = 60) -> None:
        host, _, port = bootstrap.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        self._ids = itertools.count(1)

    def call(self, name: str, version: int, **fields: object) -> Message:
        """One request in that version, its fields as nested dictionaries, and the decoded response."""
        self.send(name, version, **fields)
        return self.receive(name, version)

    def send(self, name: str, version: int, **fields: object) -> None:
        """The request alone: for one that is never answered, or much later."""
        request = layout(name, "request")
        head = (
            _head.pack(request.api.key, version, next(self._ids))
            + struct.pack(">h", len(CLIENT_ID))
            + CLIENT_ID
        )
        if version in request.api.flexible:
            head += b"\0"
        body = b"".join(request.encode(version, build(request, "", fields), head))
        self._socket.sendall(_length.pack(len(body)) + body)

    def receive(self, name: str, version: int) -> Message:
        response = layout(name, "response")
        (size,) = _length.unpack(self._exactly(4))
        skipped = 5 if version in response.api.flexible and name != "ApiVersions" else 4
        return response.decode(version, self._exactly(size), skipped)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            piece = self._socket.recv(count - len(pieces))
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            pieces += piece
        return bytes(pieces)
