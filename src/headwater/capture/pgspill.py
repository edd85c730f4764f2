"""Spill: the changes of a transaction that is streamed before it has ended, in memory at first and on disk when it grows."""

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Spill"]

MEMORY_BYTES = 4 << 20
FRAME = struct.Struct(">II")
ALWAYS = b"RY"
"""Kinds of messages that describe tables and types: the server sends them once, whatever becomes of the savepoint that they came with."""
KIND_AT = 25


class Spill:
    """Messages of one transaction in their order, each with the subtransaction that it belongs to; what those that were rolled back have done is not given out."""

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(folder) if folder else None)  # noqa: SIM115  closed by close
        self._gone: set[int] = set()

    def add(self, xid: int, message: bytes) -> None:
        """Keeps a message, which is as a transaction that is not streamed would have sent it."""
        self._file.write(FRAME.pack(xid, len(message)) + message)

    def forget(self, xid: int) -> None:
        """A subtransaction was rolled back."""
        self._gone.add(xid)

    def messages(self) -> Iterator[bytes]:
        """What is left of the transaction."""
        self._file.seek(0)
        while head := self._file.read(FRAME.size):
            xid, length = FRAME.unpack(head)
            message = self._file.read(length)
            if xid not in self._gone or message[KIND_AT] in ALWAYS:
                yield message

    def close(self) -> None:
        self._file.close()
