"""Chunks of MariaDB's tables (``capture/chunks.py`` has what they are).

Nothing is written to the database and nothing is locked. The server says which place of its binlog a consistent snapshot fits, and a
chunk is read in such a snapshot. A transaction is in the binlog a moment before others can see it: a chunk of a place that the stream
has left behind is read again.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from headwater.capture.chunks import CHUNK_ROWS, Chunked, Span, Window, told
from headwater.capture.control import Notice
from headwater.capture.envelope import Around
from headwater.capture.mariarows import Rows
from headwater.capture.mariasnapshot import Snapshot
from headwater.capture.source import Record
from headwater.errors import CaptureError, one_line

__all__ = ["Chunks"]

AGAIN_S: Final = 0.02
ENDS: Final = frozenset({2, 16, 27})
"""Events behind which no transaction is open, or which say that there is nothing more: a statement, a commit, a heartbeat."""
CHANGED: Final = 1412
"""The table is another one than at the moment of the snapshot."""
PASSING: Final = frozenset({1040, 1053, 1205, 1213, 1317, 1927})
"""Errors of the server that trying again may mend; so may those of the connection, from 2000 on."""
BinlogPlace = tuple[int, int]
"""The number of a file, and the place in it."""


class Chunks:
    """The incremental snapshots of one reading of a source; `come`, `step` and `emit` are called between transactions."""

    def __init__(
        self,
        pending: tuple[Chunked, ...],
        notices: list[Notice],
        snapshot: Callable[[], Snapshot],
        around: Callable[[str, Snapshot], Around],
    ) -> None:
        self.pending = pending
        self._notices = notices
        self._snapshot = snapshot
        self._make_around = around
        self._around: Around
        self._window: Window[BinlogPlace] | None = None
        self._at: BinlogPlace | None = None
        self._again = 0.0

    def come(self, event: bytes, file: str) -> bool:
        """Takes in an event of the stream; says whether a chunk is to go out behind it."""
        place = int.from_bytes(event[13:17], "little")
        if event[4] in ENDS and place and file:
            self._at = (_number(file), place)
        return self._due

    @property
    def _due(self) -> bool:
        return self._window is not None and self._at is not None and self._at >= self._window.high

    def drop(self, records: Sequence[Record]) -> None:
        """What the stream brings is taken out of the chunk that waits."""
        if self._window is not None:
            self._window.drop(records)

    def step(self) -> bool:
        """Reads the next chunk if none waits; says whether it may go out at once."""
        if self.pending and self._window is None and self._at is not None and time.monotonic() >= self._again:
            try:
                self._read(self.pending[0], self._at)
            except CaptureError as error:
                self._end("snapshot failed", str(error))
            except Exception as error:
                if (
                    type(error).__module__ != "pymysql.err"
                    or error.args[0] in PASSING
                    or error.args[0] >= 2000
                ):
                    raise
                if error.args[0] == CHANGED:
                    self._again = time.monotonic() + AGAIN_S
                else:
                    self._end("snapshot failed", one_line(error.args[1]))
                return False
        return self._due

    def emit(self) -> list[Record]:
        """The chunk that the stream has come to."""
        window, self._window = self._window, None
        if window is None:
            return []
        self.pending = (window.behind, *self.pending[1:])
        if not window.behind.ranges:
            self._end("snapshot finished", window.behind.summary)
        return list(window.records(self._around))

    def _read(self, wanted: Chunked, at: BinlogPlace) -> None:
        snapshot = self._snapshot()
        snapshot.moment()
        try:
            high = (_number(snapshot.file), snapshot.place)
            if high < at:
                self._again = time.monotonic() + AGAIN_S
                return
            rows = Rows(snapshot, wanted.table)
            now = wanted.ranges[0]
            bounded = now.upto is not None or bool(now.ghosts)
            span = (
                Span({}, None)
                if now.ghosts
                else rows.span(now, wanted.where, None if bounded else CHUNK_ROWS)
            )
            ghosts = rows.ghosts(now.ghosts)
        finally:
            snapshot.end()
        if not wanted.begun:
            self._notices.append(told("snapshot begun", wanted, wanted.where))
        more = not bounded and len(span.rows) == CHUNK_ROWS
        self._around = self._make_around(wanted.table, snapshot)
        behind = wanted.behind(span, more=more, left=ghosts.left)
        self._window = Window(self._around.topic, span.rows, ghosts.gone, behind, high)

    def _end(self, what: str, text: str) -> None:
        ended, *later = self.pending
        self._notices.append(told(what, ended, text))
        self.pending = tuple(later)
        self._window = None


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
