"""An audit of MariaDB's tables, as of one place in the binlog (``capture/audit.py`` has what is compared).

A consistent snapshot gives that place and the rows as of it; the topic is read as far as the transactions that those rows show.
"""

from typing import NamedTuple

import msgspec

from headwater.access import Log
from headwater.capture.audit import Report, compared, folded, wait
from headwater.capture.gtid import Gtids, gtids
from headwater.capture.mariadb import MariaDBSource
from headwater.capture.mariaplace import Place
from headwater.capture.mariarows import Rows
from headwater.capture.mariasnapshot import Snapshot
from headwater.decoders import from_json

__all__ = ["audit"]


class _Source(msgspec.Struct):
    server_id: int
    file: str
    pos: int
    gtid: str | None = None


def audit(name: str, source: MariaDBSource, table: str, log: Log) -> Report:
    """Compares one table, ``database.table``. The capture must run: the topic must come as far as the database is."""
    with source.looking() as (snapshot, server_id):
        point = snapshot.begin()
        rows = Rows(snapshot, table)
        until = _Until(gtids(point, mariadb=True), server_id, snapshot)
        wait(
            name, log, point, lambda position: gtids(Place.parse(position).gtid, mariadb=True).includes(point)
        )
        return compared(table, point, rows, folded(log, f"{name}.{table}", rows.names, until.passed))


class _Until(NamedTuple):
    """Where the topic is read to."""

    seen: Gtids
    server_id: int
    snapshot: Snapshot

    def passed(self, said: msgspec.Raw) -> bool:
        """Rows of a snapshot have no transaction but a place in the binlog, which means nothing on another server."""
        source = from_json(said, _Source)
        if source.gtid is not None:
            return not self.seen.has(source.gtid)
        place = (self.snapshot.file, self.snapshot.place)
        return source.server_id == self.server_id and (source.file, source.pos) > place
