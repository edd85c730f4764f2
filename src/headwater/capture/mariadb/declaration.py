"""What an application declares of a MariaDB or MySQL server. Creating one opens nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwater.capture.database import Declaration
from headwater.capture.mariadb.position import RESTART
from headwater.capture.mariadb.source import MariaDBSource
from headwater.capture.outbox_router import OutboxRouter, check_outbox, outbox_router
from headwater.capture.source import Source

if TYPE_CHECKING:
    from headwater.access import Log
    from headwater.capture.reread.audit import Report

__all__ = ["MariaDB"]


class MariaDB(Declaration, frozen=True):
    """MariaDB 10.11 or later, or MySQL 8, at ``mysql://user:password@host:port``.

    Tables are ``database.table``; ``*`` matches any name.
    """

    url: str
    tables: Sequence[str]
    partitions: int | None = None
    decimals: Literal["precise", "string"] = "precise"
    """Decimals as Debezium's bytes, or as text."""
    outbox: str | None = None
    """The table, one of `tables`, whose rows are events: they go to ``<name>.event.<aggregatetype>`` instead
    of a topic of the table."""

    @property
    def kind(self) -> str:
        return "mariadb"

    def check(self, name: str) -> None:
        self.open(name, Path())
        check_outbox(name, self.outbox, self.tables)

    def open(self, name: str, folder: Path) -> Source:
        del folder  # a large transaction is published in parts, and not kept on disk
        return self._source(name)

    def outbox_router(self, name: str) -> OutboxRouter | None:
        return outbox_router(name, self.outbox)

    def _source(self, name: str) -> MariaDBSource:
        return MariaDBSource(name, self.url, self.tables, decimals=self.decimals)

    def audit(self, name: str, log: "Log", table: str) -> "Report":
        """Whether a table and its topic are the same. See ``audit.py``."""
        from headwater.capture.mariadb.audit import audit  # noqa: PLC0415  few need it

        return audit(name, self._source(name), table, log)

    def restart_position(self) -> str:
        return RESTART

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        del begun  # a capture creates nothing in the server
        return self._source(name).prepare()

    def remove(self, name: str) -> None:
        """A capture creates nothing in the server, which keeps its binlog by time."""
