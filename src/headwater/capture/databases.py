"""What an application declares of a MariaDB, MySQL or SQLite database, or of a table to be polled. Making one opens nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwater.capture.declared import Concealing
from headwater.capture.mariadb import MariaDBSource
from headwater.capture.mariaplace import ANEW
from headwater.capture.outbox import Outbox, check_outbox, routed
from headwater.capture.polling import PollingSource
from headwater.capture.source import Source
from headwater.capture.sqlite import SqliteSource

if TYPE_CHECKING:
    from headwater.access import Log
    from headwater.capture.audit import Report

__all__ = ["MariaDB", "Polling", "Sqlite"]


class MariaDB(Concealing, frozen=True):
    """MariaDB 10.11 or later, or MySQL 8, at ``mysql://user:password@host:port``. Tables are ``database.table``; ``*`` is any name."""

    url: str
    tables: Sequence[str]
    partitions: int | None = None
    decimals: Literal["precise", "string"] = "precise"
    """Decimals as Debezium's bytes, or as text."""
    outbox: str | None = None
    """The table, one of `tables`, whose rows are events: they go to ``<name>.event.<aggregatetype>``, not to a topic of the table."""

    @property
    def kind(self) -> str:
        return "mariadb"

    def check(self, name: str) -> None:
        self.open(name, Path())
        check_outbox(name, self.outbox, self.tables)

    def open(self, name: str, folder: Path) -> Source:
        del folder  # a large transaction is passed on as it comes
        return self._source(name)

    def routed(self, name: str) -> Outbox | None:
        return routed(name, self.outbox)

    def _source(self, name: str) -> MariaDBSource:
        return MariaDBSource(name, self.url, self.tables, decimals=self.decimals)

    def audit(self, name: str, log: "Log", table: str) -> "Report":
        """Whether a table and its topic are the same. See ``capture/mariaaudit.py``."""
        from headwater.capture.mariaaudit import audit  # noqa: PLC0415  few need it

        return audit(name, self._source(name), table, log)

    def anew(self) -> str:
        return ANEW

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        del begun  # nothing of it is in the server
        return self._source(name).prepare()

    def remove(self, name: str) -> None:
        """Nothing is left in the server: it keeps its binlog by time."""


class Sqlite(Concealing, frozen=True):
    """A SQLite file, captured by triggers on its tables."""

    path: str | Path
    tables: Sequence[str]
    partitions: int | None = None
    outbox: str | None = None
    """As that of `MariaDB`."""

    @property
    def kind(self) -> str:
        return "sqlite"

    def check(self, name: str) -> None:
        self.open(name, Path())
        check_outbox(name, self.outbox, self.tables)

    def open(self, name: str, folder: Path) -> Source:
        del folder
        return SqliteSource(name, self.path, self.tables)

    def routed(self, name: str) -> Outbox | None:
        return routed(name, self.outbox)

    def anew(self) -> str:
        return ANEW

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        return SqliteSource(name, self.path, self.tables).prepare(begun=begun)

    def remove(self, name: str) -> None:
        SqliteSource(name, self.path, self.tables).remove()


class Polling(Concealing, frozen=True):
    """A table of a database without any log, by a column that grows with every change. Deletes are not seen."""

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

    def routed(self, name: str) -> Outbox | None:
        del name  # rows that are deleted at once are not seen by polling
        return None

    def anew(self) -> str:
        return ANEW

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        del begun  # nothing of it is in the database
        return self._source(name).prepare()

    def remove(self, name: str) -> None:
        """Polling leaves nothing behind."""
