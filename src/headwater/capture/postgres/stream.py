"""The stream of a PostgreSQL capture: messages of its slot as parts, and reports of what is durable."""

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headwater.capture.messages import Notice
from headwater.capture.postgres.catalogue import Catalogue, identifier
from headwater.capture.postgres.changes import Changes
from headwater.capture.postgres.connection import Wire, psycopg
from headwater.capture.postgres.guard import Guard
from headwater.capture.postgres.incremental import Chunks
from headwater.capture.postgres.messages import lsn_text, parse_lsn
from headwater.capture.postgres.position import Place, encode
from headwater.capture.postgres.table_schema import TableSchema
from headwater.capture.reread.schema_versions import Versions
from headwater.capture.reread.table_states import TableStates
from headwater.capture.source import Part
from headwater.errors import UnavailableError

__all__ = ["Stream"]

PART_RECORDS = 5_000
PART_BYTES = 8 << 20
XLOG_DATA = ord("w")
QUIET_S = 0.05
ALIVE_S = 1.0
HEARTBEAT_S = 5.0
"""How often the capture asks the server for its position, reports its own, and checks the publication."""

Take = Callable[[bytes], Iterator[None] | None]


class Stream:
    """One reading of a slot, from a place on. One thread; `place` is the place after the last part."""

    def __init__(
        self,
        name: str,
        slot: str,
        database: str,
        place: Place,
        *,
        wire: Wire,
        connection: Any,
        catalogue: Catalogue,
        versions: Versions[TableSchema],
        notices: list[Notice],
        folder: Path | None,
        confirmed: int,
    ) -> None:
        self.place = place
        self._name = name
        self._slot = slot
        self._wire = wire
        self._catalogue = catalogue
        self._confirmed = confirmed
        self._reported = 0.0
        self._checked = 0.0
        since = {table: parse_lsn(lsn) for table, lsn in place.tables.items()}
        self._states = TableStates(place.tables, place.stopped)
        guard = Guard(catalogue, versions, since, self._states, notices)
        self._changes = changes = Changes(
            name,
            database,
            guard.describe,
            lsn=parse_lsn(place.lsn),
            since=since,
            versions=versions,
            folder=folder,
        )
        guard.at = lambda: changes.committed_at
        self._chunks = Chunks(name, database, connection, catalogue, changes)
        self._chunks.notices = notices

    def confirm(self, lsn: int) -> None:
        """Everything up to this LSN is durable in the log."""
        self._confirmed = lsn
        self._report()

    def parts(self) -> Iterator[Part]:
        """Changes without end, as parts."""
        take = self._chunks.begin(self.place.snapshots)
        publications = f"publication_names '{identifier(self._slot)}'"
        options = f"proto_version '2', {publications}, streaming 'on', messages 'true'"
        start = f"START_REPLICATION SLOT {self._slot} LOGICAL {self.place.lsn} ({options})"
        self._wire.command(start)
        try:
            yield from self._follow(take)
        finally:
            self._changes.close()

    def _follow(self, take: Take) -> Iterator[Part]:
        """Messages as they arrive. A part ends when the socket is empty, or when the part is full."""
        changes, chunks, wire = self._changes, self._chunks, self._wire
        get = wire.pg.get_copy_data
        wait_s, published, size = QUIET_S, (changes.lsn, chunks.pending), 0
        while True:
            count, data = get(1)
            if count > 0:
                message = bytes(data)
                size += count
                if message[0] != XLOG_DATA:
                    self._keepalive(message)
                    continue
                steps = take(message)
                if steps is not None or len(changes.records) >= PART_RECORDS or size >= PART_BYTES:
                    for _ in steps or (None,):
                        yield from self._parts(1)
                        self._report_in_time()
                    self._check_in_time()
                    size = 0
                continue
            if count < 0:
                wire.finish_copy()
                raise UnavailableError(f"capture {self._name}: the server has ended the stream")
            chunks.step()
            if changes.done or (changes.lsn, chunks.pending) != published:
                published, wait_s = (changes.lsn, chunks.pending), QUIET_S
                yield from self._parts(1 << 62)
            self._check_in_time()
            ready, _, _ = select.select([wire.pg.socket], [], [], wait_s)
            if ready:
                wire.pg.consume_input()
                continue
            wait_s = QUIET_S if chunks.waiting else ALIVE_S
            if chunks.waiting:
                self._report(reply=True)
            self._report_in_time()
            yield Part([], None)

    def _parts(self, least: int) -> Iterator[Part]:
        """The records of ended transactions with their position, then ``least`` or more of an open one."""
        changes = self._changes
        records, done = changes.records, changes.done
        self.place = msgspec.structs.replace(
            self.place,
            lsn=lsn_text(changes.lsn),
            snapshots=self._chunks.pending,
            stopped=self._states.stopped,
        )
        if done or not (records or changes.open):
            rest = records[done:]
            changes.records, changes.done = rest, 0
            del records[done:]
            yield Part(records, encode(self.place), truncated=changes.truncated, partial=changes.partial)
            records = rest
        elif not records:  # inside a transaction all of whose rows so far are skipped
            yield Part([], None)
        if len(records) >= least:
            changes.records = []
            yield Part(records, None, truncated=changes.truncated, partial=changes.partial)
        changes.truncated = changes.truncated and bool(changes.records)
        changes.partial = changes.partial and bool(changes.records)
        changes.restamp()

    def _keepalive(self, message: bytes) -> None:
        """A keepalive: outside of a transaction, the server has sent all changes before its end."""
        end = int.from_bytes(message[1:9])
        if not self._changes.open and not self._changes.records and end > self._changes.lsn:
            self._changes.lsn = end
        if message[17]:
            self._report()

    def _report_in_time(self) -> None:
        if time.monotonic() - self._reported > HEARTBEAT_S:
            self._report(reply=True)

    def _report(self, *, reply: bool = False) -> None:
        self._reported = time.monotonic()
        try:
            self._wire.status(self._confirmed, time.time_ns() // 1_000, reply=reply)
        except psycopg.Error:
            return  # the connection has failed: reading from it raises the error

    def _check_in_time(self) -> None:
        """UnavailableError if the server does not send the changes of a table, since it was created again."""
        if time.monotonic() - self._checked < HEARTBEAT_S:
            return
        self._checked = time.monotonic()
        members = self._catalogue.members(self._slot)
        for table in self.place.tables:
            if members.get(table) != self.place.members.get(table) and self._catalogue.exists(
                *table.split(".", 1)
            ):
                raise UnavailableError(
                    f"capture {self._name}: table {table} was created again or left out of publication"
                    f" {self._slot}; it gets a new snapshot"
                )
