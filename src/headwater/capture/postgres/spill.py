"""Spill: the changes of a streamed transaction that has not ended, in memory and, when it grows, on disk."""

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Spill"]

MEMORY_BYTES = 4 << 20
FRAME = struct.Struct(">II")
ALWAYS = b"RY"
"""Messages that describe tables and types: the server sends each once, even if its savepoint is rolled
back."""
KIND_AT = 25


class Spill:
    """Messages of one transaction in order, each with its subtransaction; rolled back ones are left out."""

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(folder) if folder else None)  # noqa: SIM115  closed by close
        self._rolled_back: set[int] = set()

    def add(self, xid: int, message: bytes) -> None:
        """Keeps a message, in the form of a transaction that is not streamed."""
        self._file.write(FRAME.pack(xid, len(message)) + message)

    def roll_back(self, xid: int) -> None:
        """A subtransaction was rolled back."""
        self._rolled_back.add(xid)

    def messages(self) -> Iterator[bytes]:
        """The messages of the transaction."""
        self._file.seek(0)
        while head := self._file.read(FRAME.size):
            xid, length = FRAME.unpack(head)
            message = self._file.read(length)
            if xid not in self._rolled_back or message[KIND_AT] in ALWAYS:
                yield message

    def close(self) -> None:
        self._file.close()
