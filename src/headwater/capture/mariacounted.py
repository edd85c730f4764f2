"""Counted: which changes of MariaDB's tables become records."""

import time
from collections.abc import Mapping

from headwater.capture import binlog
from headwater.capture.control import Notice
from headwater.capture.gtid import Gtids
from headwater.capture.mariatables import Tables
from headwater.capture.source import Record
from headwater.capture.versions import Versions

__all__ = ["Counted"]


class Counted:
    """Passes on what counts: not the changes that the snapshot of their table has seen, since it was read later than the place where the
    stream begins, and none of a table that is stopped. One that had a key and has none any more is stopped, that table alone.
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

    def rows(self, rows: binlog.Rows, gtid: str, file: str) -> list[Record]:
        """See `Changes.rows`."""
        table = f"{rows.table.schema}.{rows.table.name}"
        if not self._counts(table, gtid):
            return []
        if not rows.table.key and (key := self._versions.key(table)):
            self._stop(table, key)
            return []
        return self._tables.rows(rows, gtid, file)

    def statement(self, query: binlog.Query, gtid: str, file: str) -> list[Record]:
        """See `Changes.statement`."""
        return [
            record
            for record in self._tables.statement(query, gtid, file)
            if self._counts(self._tables.of(record.topic), gtid)
        ]

    def _counts(self, table: str, gtid: str) -> bool:
        seen = self._since.get(table)
        return table not in self.stopped and (seen is None or not seen.has(gtid))

    def _stop(self, table: str, key: tuple[str, ...]) -> None:
        cause = self._tables.cause(table) or "ALTER TABLE"
        why = f"its key ({', '.join(key)}) is gone, changes have no row to go to: {cause}"
        self.stopped = self.stopped | {table: why}
        text = f"{why}; give it a key again, then `headwater capture snapshot NAME app.py --table {table}`"
        self._notices.append(Notice("table stopped", time.time_ns() // 1_000_000, table, text))
