"""An audit of PostgreSQL's tables, as of one position in the server's log (see ``capture/reread/audit.py``).

A temporary slot gives the position and the rows as of it; the topic is read up to the transactions that these
rows include.
"""

import contextlib
import uuid
from typing import Any, NamedTuple

import msgspec

from headwater.access import Log
from headwater.capture.postgres.catalogue import Catalogue
from headwater.capture.postgres.connection import Wire, connect, failures
from headwater.capture.postgres.incremental import Rows, Visibility
from headwater.capture.postgres.messages import parse_lsn
from headwater.capture.reread.audit import Report, compare, fold, wait
from headwater.decoders import from_json
from headwater.errors import CaptureError

__all__ = ["audit"]

SLOT_LENGTH = 48
"""Of the capture's own name; PostgreSQL takes 63 characters in all."""
CLOCK_MS = 60_000
"""How much earlier the time of a commit may be than the moment when others see it."""


class _Source(msgspec.Struct):
    lsn: int
    ts_ms: int
    txId: int | None = None  # noqa: N815  Debezium's name


def audit(name: str, url: str, table: str, log: Log, *, slot: str, decimals: Any = "precise") -> Report:
    """Compares one table, ``schema.table``.

    The capture must run, so that its topic catches up with the table.
    """
    schema, _, short = table.rpartition(".")
    # A name of its own: the server drops the slot of an audit that has ended, but not at once.
    own_slot = f"{slot[:SLOT_LENGTH]}_audit_{uuid.uuid4().hex[:8]}"
    with failures(f"capture {name}"), contextlib.ExitStack() as stack:
        wire = stack.enter_context(contextlib.closing(Wire(url)))
        reader = stack.enter_context(contextlib.closing(connect(url)))
        _, point, exported, *_ = wire.command(
            f"CREATE_REPLICATION_SLOT {own_slot} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        )[0]
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{exported}'")
        visibility = Visibility.parse(reader.execute("SELECT pg_current_snapshot()::text").fetchone()[0])
        begun_ms = int(reader.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()[0])
        catalogue = Catalogue(reader, decimals)
        rows = Rows(reader, catalogue, catalogue.table(schema, short))
        if not rows.key:
            raise CaptureError(
                f"table {table} has no key to compare it by", hint="name another one by --table"
            )
        until = _Until(parse_lsn(point), visibility, begun_ms)
        wait(name, log, point, until.is_reached)
        return compare(table, point, rows, fold(log, f"{name}.{table}", rows.names, until.is_after))


class _Until(NamedTuple):
    """Where reading the topic ends."""

    lsn: int
    visibility: Visibility
    at_ms: int

    def is_reached(self, position: str) -> bool:
        """Whether a position of the capture includes everything before the audit's snapshot."""
        return parse_lsn(msgspec.json.decode(position)["lsn"]) >= self.lsn

    def is_after(self, source: msgspec.Raw) -> bool:
        """Whether an event is after the audit's snapshot."""
        event = from_json(source, _Source)
        if event.lsn >= self.lsn:
            return True
        recent = event.ts_ms >= self.at_ms - CLOCK_MS
        return event.txId is not None and recent and not self.visibility.sees(event.txId)
