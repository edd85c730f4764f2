"""Behind: how much of a binlog a capture has not read yet."""

from typing import Any, Final

from headwater.clock import Clock

__all__ = ["Behind"]

ASK_S: Final = 1.0


class Behind:
    """Of one reading of the binlog. Its connection is asked nothing else, so that an answer is never in the way of another."""

    def __init__(self, connection: Any, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._file, self._place = "", 0
        self._asked = -ASK_S
        self._bytes = 0

    def passed(self, event: bytes, file: str) -> None:
        """An event was read that stands in a file; some that the server makes up stand nowhere."""
        place = int.from_bytes(event[13:17], "little")
        if file != self._file or place:
            self._file, self._place = file, place

    def bytes(self) -> int:
        """What the server has written behind it; asked at most every second."""
        now = self._clock.monotonic()
        if self._file and now - self._asked >= ASK_S:
            self._asked = now
            with self._connection.cursor() as cursor:
                cursor.execute("SHOW BINARY LOGS")
                files = [(name, int(size)) for name, size, *_ in cursor.fetchall()]
            rest = sum(size for name, size in files if _number(name) >= _number(self._file))
            self._bytes = max(0, rest - self._place)
        return self._bytes


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
