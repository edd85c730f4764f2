"""Counted: which changes of MariaDB's tables become records."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headwater.capture import binlog
from headwater.capture.control import Notice
from headwater.capture.gtid import Gtids
from headwater.capture.keychange import KeyColumn, key_change, way_out
from headwater.capture.mariastatement import effect
from headwater.capture.mariatables import HISTORY, LEFT_OUT, Tables
from headwater.capture.source import Record
from headwater.capture.versions import ColumnSchema, Versions

__all__ = ["Counted"]

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
"""The columns of what CREATE SEQUENCE makes, which is in the binlog like a table."""


class Counted:
    """Passes on what counts: not the changes that the snapshot of their table has seen, since it was read later than the place where the
    stream begins, and none of a table that is stopped. One whose key is another or gone, or that has lost rows which nobody names, is
    stopped, that table alone.
    """

    def __init__(
        self,
        tables: Tables,
        since: Mapping[str, Gtids],
        stopped: Mapping[str, str],
        versions: Versions,
        notices: list[Notice],
    ) -> None:
        self.stopped = dict(stopped)
        """The tables that cannot go on, and why."""
        self._tables = tables
        self._since = since
        self._versions = versions
        self._notices = notices
        self._maps: dict[str, binlog.TableMap] = {}
        """By table, the last map that was found to fit."""
        self._empty: set[str] = set()
        """Tables without rows in their topics: any key will do."""

    def rows(self, rows: binlog.Rows, gtid: str, file: str) -> list[Record]:
        """See `Changes.rows`."""
        table = f"{rows.table.schema}.{rows.table.name}"
        if not self._counts(table, gtid):
            return []
        if self._maps.get(table) is not rows.table and not self._fits(table, rows.table):
            return []
        return self._tables.rows(rows, gtid, file)

    def statement(self, query: binlog.Query, gtid: str, file: str) -> list[Record]:
        """See `Changes.statement`."""
        done = effect(query.statement, query.schema)
        if done.defines:
            self._tables.note(query)
        for table in self._tables.captured(done.torn):
            if self._counts(table, gtid):
                why = f"rows are gone or others have come that the binlog does not name: {query.statement}"
                self._stop(table, why, way_out(table))
        emptied = [
            table
            for table in self._tables.captured([*done.emptied, *self._versions.tables(done.databases)])
            if self._counts(table, gtid)
        ]
        self._empty.update(emptied)
        return [self._tables.truncated(table, query, gtid, file) for table in emptied]

    def leave_out(self, tables: Iterable[str]) -> None:
        """Tables that keep their history are stopped from the beginning."""
        for table in tables:
            if table not in self.stopped:
                self._stop(table, HISTORY, LEFT_OUT)

    def _counts(self, table: str, gtid: str) -> bool:
        seen = self._since.get(table)
        return table not in self.stopped and (seen is None or not seen.has(gtid))

    def _fits(self, table: str, found: binlog.TableMap) -> bool:
        """Whether rows of this shape go on under the keys of those before; stops the table otherwise."""
        if tuple(column.name for column in found.columns) == SEQUENCE:
            return False
        if self._tables.keeps_history(found):
            self._stop(table, HISTORY, LEFT_OUT)
            return False
        known = self._versions.newest(table)
        key, columns = self._tables.described(found)
        new = _key(key, columns)
        changed = (
            None if known is None or table in self._empty else key_change(_key(known.key, known.columns), new)
        )
        if changed is not None:
            self._stop(
                table,
                f"{changed}: {self._tables.cause(table) or 'ALTER TABLE'}",
                way_out(table, key=bool(new)),
            )
            return False
        self._maps[table] = found
        self._empty.discard(table)
        return True

    def _stop(self, table: str, why: str, way: str) -> None:
        self.stopped = self.stopped | {table: why}
        self._notices.append(Notice("table stopped", time.time_ns() // 1_000_000, table, f"{why}; {way}"))


def _key(key: Sequence[str], columns: Sequence[ColumnSchema]) -> list[KeyColumn]:
    by_name = {column.name: column for column in columns}
    return [_column(by_name[name]) for name in key]


def _column(column: ColumnSchema) -> KeyColumn:
    kind = column.type.removesuffix(" unsigned")
    shown = column.type if column.modifier is None else f"{column.type}({column.modifier})"
    return KeyColumn(column.name, WRITTEN_ALIKE.get(kind, (kind, column.modifier)), shown)
