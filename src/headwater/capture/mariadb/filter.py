"""ChangeFilter: which changes of MariaDB's tables become records, and which tables must stop."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headwater.capture.mariadb.binlog import events
from headwater.capture.mariadb.binlog.gtid import Gtids
from headwater.capture.mariadb.statement import effect
from headwater.capture.mariadb.tables import HISTORY, LEFT_OUT, Tables
from headwater.capture.messages import Notice
from headwater.capture.reread.key_change import KeyColumn, key_change, way_out
from headwater.capture.reread.schema_versions import ColumnSchema, TableSchema, Versions
from headwater.capture.reread.table_states import TableStates
from headwater.capture.source import Record

__all__ = ["ChangeFilter"]

WRITTEN_ALIKE: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "integer"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"), "text"),
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
}

SEQUENCE: Final = (
    "next_not_cached_value",
    "minimum_value",
    "maximum_value",
    "start_value",
    "increment",
    "cache_size",
    "cycle_option",
    "cycle_count",
)
"""The columns of a sequence (CREATE SEQUENCE), which is in the binlog like a table."""


class ChangeFilter:
    """Passes on changes that the snapshot of their table does not include, of tables that are not stopped.

    A snapshot may be newer than the position at which the stream begins. A table is stopped, and others
    continue, if its key has changed or is gone, or if its rows were changed by a statement without row
    events.
    """

    def __init__(
        self,
        tables: Tables,
        since: Mapping[str, Gtids],
        states: TableStates,
        versions: Versions[TableSchema],
        notices: list[Notice],
    ) -> None:
        self._states = states
        self._tables = tables
        self._since = since
        self._versions = versions
        self._notices = notices
        self._maps: dict[str, events.TableMap] = {}
        """By table, the last map whose key fits."""
        self._empty: set[str] = set()
        """Tables without rows in their topics: any key fits."""

    def rows(self, rows: events.Rows, gtid: str, file: str) -> list[Record]:
        """See `Changes.rows`."""
        table = f"{rows.table.schema}.{rows.table.name}"
        if not self._passes(table, gtid):
            return []
        if self._maps.get(table) is not rows.table and not self._fits(table, rows.table):
            return []
        return self._tables.rows(rows, gtid, file)

    def statement(self, query: events.Query, gtid: str, file: str) -> list[Record]:
        """See `Changes.statement`."""
        done = effect(query.statement, query.schema)
        if done.changes_schema:
            self._tables.note(query)
        for table in self._tables.captured(done.unlogged):
            if self._passes(table, gtid):
                why = f"its rows were changed without row events in the binlog: {query.statement}"
                self._notices.append(self._states.stop(table, why, way_out(table)))
        emptied = [
            table
            for table in self._tables.captured([*done.emptied, *self._versions.tables(done.databases)])
            if self._passes(table, gtid)
        ]
        self._empty.update(emptied)
        return [self._tables.truncate(table, query, gtid, file) for table in emptied]

    def leave_out(self, tables: Iterable[str]) -> None:
        """Stops tables that keep their history."""
        for table in tables:
            if table not in self._states.stopped:
                self._notices.append(self._states.stop(table, HISTORY, LEFT_OUT))

    def _passes(self, table: str, gtid: str) -> bool:
        included = self._since.get(table)
        return table not in self._states.stopped and (included is None or not included.has(gtid))

    def _fits(self, table: str, table_map: events.TableMap) -> bool:
        """Whether rows of this map have the same key as those before; stops the table otherwise."""
        if tuple(column.name for column in table_map.columns) == SEQUENCE:
            return False
        if self._tables.keeps_history(table_map):
            self._notices.append(self._states.stop(table, HISTORY, LEFT_OUT))
            return False
        published = self._versions.newest(table)
        key, columns = self._tables.schema(table_map)
        new = _key(key, columns)
        change = None
        if published is not None and table not in self._empty:
            change = key_change(_key(published.key, published.columns), new)
        if change is not None:
            cause = self._tables.cause(table) or "ALTER TABLE"
            out = way_out(table, key=bool(new))
            self._notices.append(self._states.stop(table, f"{change}: {cause}", out))
            return False
        self._maps[table] = table_map
        self._empty.discard(table)
        return True


def _key(key: Sequence[str], columns: Sequence[ColumnSchema]) -> list[KeyColumn]:
    by_name = {column.name: column for column in columns}
    return [_column(by_name[name]) for name in key]


def _column(column: ColumnSchema) -> KeyColumn:
    kind = column.type.removesuffix(" unsigned")
    shown = column.type if column.modifier is None else f"{column.type}({column.modifier})"
    return KeyColumn(column.name, WRITTEN_ALIKE.get(kind, (kind, column.modifier)), shown)
