"""TableStates: the life of a captured table, for the databases whose tables stop and begin one by one.

`TABLE_LIFE` has every state and what changes it. The sources change states by it only, and docs/capture.md
shows it.
"""

import time
from collections.abc import Mapping
from enum import Enum

from headwater.capture.messages import Notice
from headwater.errors import CaptureError

__all__ = ["TABLE_LIFE", "TableEvent", "TableState", "TableStates"]


class TableState(Enum):
    """What a capture does with a table: a word, and its meaning."""

    NEW = (
        "new",
        "it is captured and has no rows in its topic yet, or not the current ones: its snapshot is due",
    )
    STREAMING = "streaming", "its rows are in its topic, and each change is published"
    STOPPED = "stopped", "its changes are skipped; the other tables continue"


class TableEvent(Enum):
    """What changes the state of a table: its description."""

    SNAPSHOT_FINISHED = "its snapshot is published, or it was created while the capture ran"
    UNPUBLISHABLE = (
        "its key has changed or is gone, or its rows have changed in a way that the log does not show"
    )
    SNAPSHOT = "`snapshot --table`"
    INCREMENTAL = "`snapshot --table --incremental`, or a repair by an audit"
    INTERRUPTED = "it was not captured for a while, or was dropped and created again"


TABLE_LIFE: Mapping[TableState, Mapping[TableEvent, TableState]] = {
    TableState.NEW: {
        TableEvent.SNAPSHOT_FINISHED: TableState.STREAMING,
        TableEvent.UNPUBLISHABLE: TableState.STOPPED,
    },
    TableState.STREAMING: {
        TableEvent.UNPUBLISHABLE: TableState.STOPPED,
        TableEvent.SNAPSHOT: TableState.NEW,
        TableEvent.INCREMENTAL: TableState.STREAMING,
        TableEvent.INTERRUPTED: TableState.NEW,
    },
    TableState.STOPPED: {
        TableEvent.SNAPSHOT: TableState.NEW,
        TableEvent.INTERRUPTED: TableState.NEW,
    },
}
"""By state and event, the next state. An event that a state does not have is refused."""


class TableStates:
    """The states of a capture's tables, as a position has them.

    ``read`` and ``stopped`` are never changed in place.
    """

    def __init__(self, read: Mapping[str, str], stopped: Mapping[str, str]) -> None:
        self.read = dict(read)
        """By table, the position of its snapshot."""
        self.stopped = dict(stopped)
        """By table, why it has stopped."""

    def of(self, table: str) -> TableState:
        """The state of a table."""
        if table in self.stopped:
            return TableState.STOPPED
        return TableState.STREAMING if table in self.read else TableState.NEW

    def change(self, table: str, event: TableEvent, text: str = "") -> TableState:
        """Changes the state of a table; ``text`` is the position of its snapshot, or why it stops.

        CaptureError if its state does not have the event.
        """
        state = self.of(table)
        following = TABLE_LIFE[state].get(event)
        if following is None:
            raise self._refusal(table, state)
        if following is not state:
            self.read = self._without(self.read, table) if following is TableState.NEW else self.read
            self.stopped = self._without(self.stopped, table)
        if following is TableState.STREAMING and event is TableEvent.SNAPSHOT_FINISHED:
            self.read = self.read | {table: text}
        if following is TableState.STOPPED:
            self.stopped = self.stopped | {table: text}
        return following

    def stop(self, table: str, why: str, way_out: str) -> Notice:
        """Stops a table, and returns the notice."""
        self.change(table, TableEvent.UNPUBLISHABLE, why)
        return Notice("table stopped", time.time_ns() // 1_000_000, table, f"{why}; {way_out}")

    def _refusal(self, table: str, state: TableState) -> CaptureError:
        if state is TableState.STOPPED:
            return CaptureError(
                f"table {table} is stopped",
                got=self.stopped[table],
                hint=f"`--table {table}` alone takes a new snapshot of it",
            )
        captured = ", ".join(sorted(self.read)) or "none"
        return CaptureError(f"table {table} is not captured", hint=f"there is {captured}")

    @staticmethod
    def _without(tables: dict[str, str], table: str) -> dict[str, str]:
        return {name: text for name, text in tables.items() if name != table}
