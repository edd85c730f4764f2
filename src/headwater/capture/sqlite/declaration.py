"""What an application declares of a SQLite database, or of a table to be polled.

Creating one opens nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from headwater.capture.database import Declaration
from headwater.capture.outbox_router import OutboxRouter, check_outbox, outbox_router
from headwater.capture.source import Source
from headwater.capture.sqlite.polling import PollingSource
from headwater.capture.sqlite.source import RESTART, SqliteSource

__all__ = ["Polling", "Sqlite"]


class Sqlite(Declaration, frozen=True):
    """A SQLite file, captured by triggers on its tables."""

    path: str | Path
    tables: Sequence[str]
    partitions: int | None = None
    outbox: str | None = None
    """As in `MariaDB`."""

    @property
    def kind(self) -> str:
        return "sqlite"

    def check(self, name: str) -> None:
        self.open(name, Path())
        check_outbox(name, self.outbox, self.tables)

    def open(self, name: str, folder: Path) -> Source:
        del folder
        return SqliteSource(name, self.path, self.tables)

    def outbox_router(self, name: str) -> OutboxRouter | None:
        return outbox_router(name, self.outbox)

    def restart_position(self) -> str:
        return RESTART

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        return SqliteSource(name, self.path, self.tables).prepare(begun=begun)

    def remove(self, name: str) -> None:
        SqliteSource(name, self.path, self.tables).remove()


class Polling(Declaration, frozen=True):
    """A table of a database without a log, polled by a column that grows with every change.

    Deletes are not seen.
    """

    url: str
    table: str
    version: str
    partitions: int | None = None
    every_s: float = 1

    @property
    def kind(self) -> str:
        return "polling"

    def check(self, name: str) -> None:
        self.open(name, Path())

    def open(self, name: str, folder: Path) -> Source:
        del folder
        return self._source(name)

    def _source(self, name: str) -> PollingSource:
        return PollingSource(name, self.url, self.table, self.version, every_s=self.every_s)

    def outbox_router(self, name: str) -> OutboxRouter | None:
        del name  # polling does not see rows that are deleted at once
        return None

    def restart_position(self) -> str:
        return RESTART

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        del begun  # a capture by polling creates nothing in the database
        return self._source(name).prepare()

    def remove(self, name: str) -> None:
        """Polling creates nothing in the database."""
