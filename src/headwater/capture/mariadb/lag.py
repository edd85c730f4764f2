"""BinlogLag: how many bytes of the binlog a capture has not read yet."""

from typing import Any, Final

from headwater.clock import Clock

__all__ = ["BinlogLag"]

QUERY_S: Final = 1.0


class BinlogLag:
    """The lag of one reading of the binlog.

    It needs a connection of its own, so that answers are never mixed up.
    """

    def __init__(self, connection: Any, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._file, self._place = "", 0
        self._queried = -QUERY_S
        self._bytes = 0

    def passed(self, event: bytes, file: str) -> None:
        """Notes the position of an event that was read; artificial events of the server have none."""
        place = int.from_bytes(event[13:17], "little")
        if file != self._file or place:
            self._file, self._place = file, place

    def bytes(self) -> int:
        """What the server has written after that event; queried at most once a second."""
        now = self._clock.monotonic()
        if self._file and now - self._queried >= QUERY_S:
            self._queried = now
            with self._connection.cursor() as cursor:
                cursor.execute("SHOW BINARY LOGS")
                files = [(name, int(size)) for name, size, *_ in cursor.fetchall()]
            rest = sum(size for name, size in files if _number(name) >= _number(self._file))
            self._bytes = max(0, rest - self._place)
        return self._bytes


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
