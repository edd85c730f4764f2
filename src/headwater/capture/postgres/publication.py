"""The publication of a PostgreSQL capture: the tables whose changes the server sends."""

import logging
import time
from typing import Any

from headwater.capture.messages import Notice
from headwater.capture.postgres.catalogue import Catalogue, identifier, string
from headwater.capture.postgres.connection import psycopg
from headwater.errors import CaptureError, one_line

__all__ = ["Publication"]

NO_IDENTITY = (
    "it has no replica identity: while it is published, the server refuses to update and delete its rows;"
    " give it a primary key, or ALTER TABLE {table} REPLICA IDENTITY FULL"
)

logger = logging.getLogger(__name__)


class Publication:
    """The publication ``name`` of a capture, over one connection.

    It is created before the slot: a slot that is older than its publication fails later, when changes are
    decoded.
    """

    def __init__(self, capture: str, name: str, tables: tuple[str, ...], *, root: bool) -> None:
        self.name = name
        self._capture = capture
        self._tables = tables
        self._root = root

    def complete(self, connection: Any, catalogue: Catalogue) -> list[tuple[str, str]]:
        """Creates or alters the publication until it is as declared; returns the tables that it publishes."""
        wanted = catalogue.expand(self._tables)
        names = ", ".join(f"{identifier(schema)}.{identifier(name)}" for schema, name in wanted)
        options = f"publish_via_partition_root = {str(self._root).lower()}"
        settings = catalogue.rows(
            f"SELECT puballtables, pubviaroot FROM pg_publication WHERE pubname = {string(self.name)}"  # noqa: S608  quoted
        )
        if not settings:
            self._alter(connection, f"CREATE PUBLICATION {self.name} FOR TABLE {names} WITH ({options})")
            return catalogue.published(self.name)
        all_tables, root = settings[0]
        if root != self._root:
            self._alter(connection, f"ALTER PUBLICATION {self.name} SET ({options})")
        if catalogue.entries(self.name) != set(wanted) and not all_tables:
            self._alter(connection, f"ALTER PUBLICATION {self.name} SET TABLE {names}")
        return catalogue.published(self.name)

    def drop(self, connection: Any) -> None:
        """Drops the publication, if it exists."""
        self._alter(connection, f"DROP PUBLICATION IF EXISTS {self.name}")

    def warnings(self, tables: set[tuple[str, str]]) -> list[Notice]:
        """Warns of tables whose rows cannot be updated while they are published."""
        notices = []
        for schema, name in sorted(tables):
            text = NO_IDENTITY.format(table=f"{identifier(schema)}.{identifier(name)}")
            logger.warning("capture %s: table %s.%s: %s", self._capture, schema, name, text)
            notices.append(Notice("no identity", time.time_ns() // 1_000_000, f"{schema}.{name}", text))
        return notices

    def _alter(self, connection: Any, statement: str) -> None:
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise CaptureError(
                f"capture {self._capture}: the role may not change its publication",
                got=one_line(error),
                hint=f"let an owner of the tables run: {statement}",
            ) from error
