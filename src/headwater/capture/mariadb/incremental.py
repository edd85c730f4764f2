"""Chunks of MariaDB's tables (``capture/reread/incremental.py`` explains them).

Nothing is written to the database and nothing is locked. Each chunk is read in a consistent snapshot, for
which the server reports the position in its binlog. A transaction is in the binlog a moment before others can
see it: a chunk whose position is before that of the stream is read again.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from headwater.capture.mariadb.key_ranges import Rows
from headwater.capture.mariadb.snapshot import Snapshot
from headwater.capture.messages import Notice
from headwater.capture.reread.incremental import (
    CHUNK_ROWS,
    IncrementalSnapshot,
    Span,
    Window,
    snapshot_notice,
)
from headwater.capture.source import EventContext, Record
from headwater.errors import CaptureError, one_line

__all__ = ["Chunks"]

AGAIN_S: Final = 0.02
ENDS: Final = frozenset({2, 16, 27})
"""Types of events after which no transaction is open: a statement, a commit, a heartbeat."""
CHANGED: Final = 1412
"""The table definition has changed since the snapshot began."""
TEMPORARY: Final = frozenset({1040, 1053, 1205, 1213, 1317, 1927})
"""Errors of the server that may pass; so may those of the connection, from 2000 on."""
BinlogPlace = tuple[int, int]
"""The number of a file, and the position in it."""


class Chunks:
    """The incremental snapshots of one reading.

    `advance`, `step` and `emit` are called between transactions.
    """

    def __init__(
        self,
        pending: tuple[IncrementalSnapshot, ...],
        notices: list[Notice],
        snapshot: Callable[[], Snapshot],
        context: Callable[[str, Snapshot], EventContext],
    ) -> None:
        self.pending = pending
        self._notices = notices
        self._snapshot = snapshot
        self._make_context = context
        self._context: EventContext
        self._window: Window[BinlogPlace] | None = None
        self._at: BinlogPlace | None = None
        self._again = 0.0

    def advance(self, event: bytes, file: str) -> bool:
        """Notes the position of an event of the stream; returns whether a chunk is due after it."""
        place = int.from_bytes(event[13:17], "little")
        if event[4] in ENDS and place and file:
            self._at = (_number(file), place)
        return self._due

    @property
    def _due(self) -> bool:
        return self._window is not None and self._at is not None and self._at >= self._window.high

    def drop(self, records: Sequence[Record]) -> None:
        """Removes the rows of these records from the waiting chunk: the stream is newer."""
        if self._window is not None:
            self._window.drop(records)

    def step(self) -> bool:
        """Reads the next chunk if none is waiting; returns whether one is due."""
        if self.pending and self._window is None and self._at is not None and time.monotonic() >= self._again:
            try:
                self._read(self.pending[0], self._at)
            except CaptureError as error:
                self._end("snapshot failed", str(error))
            except Exception as error:
                code = error.args[0] if type(error).__module__ == "pymysql.err" else None
                if code is None or code in TEMPORARY or code >= 2000:
                    raise
                if code == CHANGED:
                    self._again = time.monotonic() + AGAIN_S
                else:
                    self._end("snapshot failed", one_line(error.args[1]))
                return False
        return self._due

    def emit(self) -> list[Record]:
        """The records of the chunk that is due."""
        window, self._window = self._window, None
        if window is None:
            return []
        self.pending = (window.rest, *self.pending[1:])
        if not window.rest.ranges:
            self._end("snapshot finished", window.rest.summary)
        return list(window.records(self._context))

    def _read(self, pending: IncrementalSnapshot, at: BinlogPlace) -> None:
        snapshot = self._snapshot()
        snapshot.fix()
        try:
            high = (_number(snapshot.file), snapshot.place)
            if high < at:
                self._again = time.monotonic() + AGAIN_S
                return
            rows = Rows(snapshot, pending.table)
            within = pending.ranges[0]
            bounded = within.upto is not None or bool(within.ghosts)
            limit = None if bounded else CHUNK_ROWS
            span = Span({}, None) if within.ghosts else rows.span(within, pending.where, limit)
            ghosts = rows.ghosts(within.ghosts)
        finally:
            snapshot.end()
        if not pending.begun:
            self._notices.append(snapshot_notice("snapshot begun", pending, pending.where))
        more = not bounded and len(span.rows) == CHUNK_ROWS
        self._context = self._make_context(pending.table, snapshot)
        rest = pending.after(span, more=more, left=ghosts.left)
        self._window = Window(self._context.topic, span.rows, ghosts.gone, rest, high)

    def _end(self, what: str, text: str) -> None:
        ended, *later = self.pending
        self._notices.append(snapshot_notice(what, ended, text))
        self.pending = tuple(later)
        self._window = None


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
