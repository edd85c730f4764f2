"""Checks during streaming: new schema versions, tables that must stop, table names from commands."""

from collections.abc import Callable, MutableMapping

from headwater.capture.messages import Notice
from headwater.capture.postgres.catalogue import Catalogue
from headwater.capture.postgres.changes import TableDescription
from headwater.capture.postgres.messages import Relation
from headwater.capture.postgres.table_schema import TableSchema, table_schema
from headwater.capture.reread.key_change import KeyColumn, key_change, way_out
from headwater.capture.reread.schema_versions import Versions
from headwater.capture.reread.table_states import TableStates

__all__ = ["Guard"]

NEVER = 1 << 64
"""The LSN from which on the changes of a stopped table are published."""
WRITTEN_ALIKE = {20: "integer", 21: "integer", 23: "integer", 25: "text", 1043: "text"}
"""By oid: int8, int2, int4; text, varchar."""


class Guard:
    """Describes tables for the stream, and stops a table whose changes cannot be published any more.

    Only that table stops: its changes are skipped until it gets a new snapshot.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        versions: Versions[TableSchema],
        since: MutableMapping[str, int],
        states: TableStates,
        notices: list[Notice],
    ) -> None:
        self.at: Callable[[], int] = lambda: 0
        """The LSN of the commit of the current transaction."""
        self._catalogue = catalogue
        self._versions = versions
        self._since = since
        self._states = states
        self._notices = notices
        for table in states.stopped:
            since[table] = NEVER

    def describe(self, relation: Relation) -> TableDescription:
        """See `Catalogue.describe`; called for each version of a table before its first change."""
        table = f"{relation.schema}.{relation.name}"
        description = self._catalogue.describe(relation)
        if self.at() < self._since.get(table, 0):
            return description
        published = self._versions.newest(table)
        key = () if published is None else published.key
        if set(key) == set(description.key):
            # The log has no order of columns, and the catalogue is as of now.
            description = description._replace(key=key)
        current = table_schema(relation, description.key, 0)
        if change := key_change(self._key(published), self._key(current)):
            out = way_out(table, key=bool(description.key))
            self._notices.append(self._states.stop(table, f"ALTER TABLE has changed it: {change}", out))
            self._since[table] = NEVER
        return description

    def _key(self, schema: TableSchema | None) -> list[KeyColumn]:
        if schema is None:
            return []
        columns = {column.name: column for column in schema.columns}
        return [
            KeyColumn(
                column.name,
                WRITTEN_ALIKE.get(column.type, (column.type, column.modifier)),
                self._catalogue.type_name(column.type, column.modifier),
            )
            for column in map(columns.__getitem__, schema.key)
        ]
