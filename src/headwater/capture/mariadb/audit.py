"""An audit of MariaDB's tables, as of one position in the binlog (``capture/reread/audit.py`` compares).

A consistent snapshot gives the position and the rows as of it; the topic is read up to the transactions that
the snapshot includes.
"""

from typing import NamedTuple

import msgspec

from headwater.access import Log
from headwater.capture.mariadb.binlog.gtid import Gtids, gtids
from headwater.capture.mariadb.key_ranges import Rows
from headwater.capture.mariadb.position import Place
from headwater.capture.mariadb.snapshot import Snapshot
from headwater.capture.mariadb.source import MariaDBSource
from headwater.capture.reread.audit import Report, compare, fold, wait
from headwater.decoders import from_json

__all__ = ["audit"]


class _Source(msgspec.Struct):
    server_id: int
    file: str
    pos: int
    gtid: str | None = None


def audit(name: str, source: MariaDBSource, table: str, log: Log) -> Report:
    """Compares one table, ``database.table``.

    The capture must run, so that its topic catches up with the table.
    """
    with source.open_snapshot() as (snapshot, server_id):
        point = snapshot.begin()
        rows = Rows(snapshot, table)
        until = _Until(gtids(point, mariadb=True), server_id, snapshot)
        wait(
            name, log, point, lambda position: gtids(Place.parse(position).gtid, mariadb=True).includes(point)
        )
        return compare(table, point, rows, fold(log, f"{name}.{table}", rows.names, until.is_after))


class _Until(NamedTuple):
    """Where reading the topic ends."""

    seen: Gtids
    server_id: int
    snapshot: Snapshot

    def is_after(self, source: msgspec.Raw) -> bool:
        """Whether an event is after the snapshot of the audit.

        Rows of a snapshot have no transaction but a position in the binlog, which is only valid on the same
        server.
        """
        event = from_json(source, _Source)
        if event.gtid is not None:
            return not self.seen.has(event.gtid)
        place = (self.snapshot.file, self.snapshot.place)
        return event.server_id == self.server_id and (event.file, event.pos) > place
