"""Logs of child processes: they survive restarts, rotate, and take a bounded part of the disk."""

import contextlib
import os
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

__all__ = ["ChildLog"]

FILE_BYTES_MAX = 8 * 1024 * 1024
OLDER_FILES = 3
"""``NAME.log.1`` is the newest of these; a part takes at most four files of eight megabytes."""
COPY_BYTES = 1024 * 1024
TAIL_BYTES = 8_192
TAIL_LINES = 12


class ChildLog:
    """The log of one child, ``NAME.log``, which the child appends to as its standard output.

    The child and its descendants keep the file open, so it is rotated in place: copied to ``NAME.log.1`` and
    cut. What is written between the end of the copy and the cut is lost, which takes microseconds. Who starts
    a child calls `rotate` again and again.
    """

    def __init__(self, path: Path, *, bytes_max: int = FILE_BYTES_MAX, older: int = OLDER_FILES) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._older = older

    def open(self, name: str, now_ms: int) -> FileIO:
        """The file to append to, after a line that says which process follows."""
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        log = self.path.open("ab", buffering=0)  # nothing is left to be written, and to fail, when it closes
        with contextlib.suppress(OSError):  # a full disk does not keep a child from running
            log.write(f"---- {name} starts, {now:%Y-%m-%d %H:%M:%S} UTC\n".encode())
        return log

    def rotate(self) -> None:
        """Moves the content to an older file once it is large; called often."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > self._bytes_max:
                for number in range(self._older, 1, -1):
                    newer = self._numbered(number - 1)
                    if newer.exists():
                        newer.replace(self._numbered(number))
                self._cut()

    def _cut(self) -> None:
        with self.path.open("r+b") as log:
            try:
                with self._numbered(1).open("wb") as copy:
                    while part := log.read(COPY_BYTES):
                        copy.write(part)
            finally:  # also without room for the copy: the bound holds
                os.ftruncate(log.fileno(), 0)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def tail(self) -> list[str]:
        """The last lines since the last start of the child."""
        try:
            with self.path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        lines = [line for line in text.rpartition("\n---- ")[2].splitlines() if line.strip()]
        if text.startswith("---- ") or "\n---- " in text:
            lines = lines[1:]
        return lines[-TAIL_LINES:]

    def last_error(self) -> str:
        """The last error of Headwater since the last start, or else the last line."""
        lines = self.tail()
        return next(
            (line for line in reversed(lines) if line.startswith("headwater: ")), lines[-1] if lines else ""
        )
