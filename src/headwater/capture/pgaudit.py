"""An audit of PostgreSQL's tables, as of one place in the server's log (``capture/audit.py`` has what is compared).

A temporary slot gives that place and the rows as of it; the topic is read as far as the transactions that those rows show.
"""

import contextlib
from typing import Any, NamedTuple

import msgspec

from headwater.access import Log
from headwater.capture.audit import Report, compared, folded, wait
from headwater.capture.pgcatalog import Catalogue
from headwater.capture.pgchunks import Rows, Visible
from headwater.capture.pgconnect import Wire, connect, failures
from headwater.capture.pgoutput import parse_lsn
from headwater.decoders import from_json
from headwater.errors import CaptureError

__all__ = ["audit"]

CLOCK_MS = 60_000
"""A commit's time may be that much before the moment when others see it."""


class _Source(msgspec.Struct):
    lsn: int
    ts_ms: int
    txId: int | None = None  # noqa: N815  Debezium's name


def audit(name: str, url: str, table: str, log: Log, *, slot: str, decimals: Any = "precise") -> Report:
    """Compares one table, ``schema.table``. The capture must run: the topic must come as far as the database is."""
    schema, _, short = table.rpartition(".")
    with failures(f"capture {name}"), contextlib.ExitStack() as stack:
        wire = stack.enter_context(contextlib.closing(Wire(url)))
        reader = stack.enter_context(contextlib.closing(connect(url)))
        _, point, exported, *_ = wire.command(
            f"CREATE_REPLICATION_SLOT {slot}_audit TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        )[0]
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{exported}'")
        visible = Visible.parse(reader.execute("SELECT pg_current_snapshot()::text").fetchone()[0])
        begun_ms = int(reader.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()[0])
        catalogue = Catalogue(reader, decimals)
        rows = Rows(reader, catalogue, catalogue.table(schema, short))
        if not rows.key:
            raise CaptureError(
                f"table {table} has no key to compare it by", hint="name another one by --table"
            )
        until = _Until(parse_lsn(point), visible, begun_ms)
        wait(name, log, point, until.come)
        return compared(table, point, rows, folded(log, f"{name}.{table}", rows.names, until.passed))


class _Until(NamedTuple):
    """Where the topic is read to."""

    lsn: int
    visible: Visible
    at_ms: int

    def come(self, position: str) -> bool:
        return parse_lsn(msgspec.json.decode(position)["lsn"]) >= self.lsn

    def passed(self, said: msgspec.Raw) -> bool:
        source = from_json(said, _Source)
        if source.lsn >= self.lsn:
            return True
        recent = source.ts_ms >= self.at_ms - CLOCK_MS
        return source.txId is not None and recent and not self.visible.sees(source.txId)
