"""PostgresSource: a PostgreSQL database by logical replication with ``pgoutput``.

The slot is created after the publication and exports the snapshot: rows as of exactly the point where its
stream begins. A table that is added later, or whose snapshot was interrupted by a crash, gets a snapshot from
a temporary slot. The stream then skips changes of that table from before its snapshot. So each change is
published once, by snapshot or stream.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headwater.capture import envelope
from headwater.capture.messages import Command, Notice, PastLimit
from headwater.capture.postgres.catalogue import Catalogue, PublishedTable, Slot, string
from headwater.capture.postgres.connection import Wire, connect, failures, psycopg
from headwater.capture.postgres.messages import lsn_text, parse_lsn
from headwater.capture.postgres.position import Place, decode, encode, without_gaps
from headwater.capture.postgres.publication import Publication
from headwater.capture.postgres.read_by_key import read_current
from headwater.capture.postgres.slot import check_slot, slot_name, starting_place
from headwater.capture.postgres.snapshot import WORKERS, Copies, Copy, copy_of
from headwater.capture.postgres.stream import Stream
from headwater.capture.postgres.table_schema import TableSchema, table_schema
from headwater.capture.postgres.values import Decimals
from headwater.capture.reread.incremental import incremental_snapshot
from headwater.capture.reread.schema_versions import Versions
from headwater.capture.reread.table_states import TableEvent, TableState, TableStates
from headwater.capture.source import EventContext, Part, Partial, Progress, Record

__all__ = ["PostgresSource"]

ALARM_BYTES = 1 << 30
"""When the server keeps this much of its log for the capture, there is a notification."""
LIMIT_BYTES = 10 << 30
"""When it keeps this much, the notification says what to do."""
DROP_S = 10.0
"""How long a reader that was asked to end may keep its slot in use."""
LAG_S = 1.0
"""How old the known end of the server's log may be."""


class PostgresSource:
    """The tables of one database.

    One thread; `close` ends the connections, and keeps slot and publication.
    """

    def __init__(
        self,
        name: str,
        url: str,
        tables: tuple[str, ...],
        *,
        root: bool = False,
        decimals: Decimals = "precise",
        folder: Path | None = None,
        alarm_bytes: int = ALARM_BYTES,
        limit_bytes: int = LIMIT_BYTES,
        past_limit: PastLimit = "tell",
        snapshot_workers: int = WORKERS,
    ) -> None:
        self.name = name
        self.alarm_bytes = alarm_bytes
        self.limit_bytes = limit_bytes
        self.past_limit: PastLimit = past_limit
        self.slot = slot_name(name)
        self.progress: Progress | None = None
        self.notices: list[Notice] = []
        self._url = url
        self._publication = Publication(name, self.slot, tables, root=root)
        self._decimals: Decimals = decimals
        self._folder = folder
        self._workers = snapshot_workers
        self._versions = Versions(TableSchema, self.notices)
        self._wire: Wire | None = None
        self._queries: Any = None
        """The connection for queries, while the other one streams."""
        self._stream: Stream | None = None
        self._database = ""
        self._place = Place("", "0/0")
        self._confirmed = 0
        self._end = 0
        self._measured = -LAG_S

    def recall(self, records: list[bytes]) -> None:
        """The values of ``<name>.schema``: versions that are published already."""
        self._versions.recall(records)

    def close(self) -> None:
        for connection in (self._wire, self._queries):
            if connection is not None:
                connection.close()
        self._wire = self._queries = self._stream = None

    def confirm(self, position: str) -> None:
        self._confirmed = parse_lsn(decode(position).lsn)
        if self._stream is not None:
            self._stream.confirm(self._confirmed)

    def with_snapshot(self, position: str, command: Command) -> str:
        """See `SnapshotSource.with_snapshot`."""
        place = decode(position)
        name = command.table if "." in command.table else f"public.{command.table}"
        states = TableStates(place.tables, place.stopped)
        if not command.incremental:
            states.change(name, TableEvent.SNAPSHOT)
            place = msgspec.structs.replace(place, tables=states.read, stopped=states.stopped, again=True)
            return encode(place)
        states.change(name, TableEvent.INCREMENTAL)
        snapshot = incremental_snapshot(msgspec.structs.replace(command, table=name))
        return encode(msgspec.structs.replace(place, snapshots=(*place.snapshots, snapshot)))

    def reread(self, records: Sequence[Partial]) -> Mapping[bytes, Mapping[str, bytes]]:
        """See `RereadSource.reread`."""
        with failures(f"capture {self.name}"):
            table = records[0].topic.removeprefix(f"{self.name}.")
            return read_current(self._queries, Catalogue(self._queries, self._decimals), table, records)

    def retained_bytes(self) -> int:
        """How much of the server's log the slot retains."""
        with failures(f"capture {self.name}"):
            connection = self._queries or connect(self._url)
            try:
                self._measure(Catalogue(connection))
                return Catalogue(connection).retained_bytes(self.slot)
            finally:
                if connection is not self._queries:
                    connection.close()

    def give_up(self) -> None:
        """Drops the slot, and ends our own reading from it."""
        self.close()
        with failures(f"capture {self.name}"), contextlib.closing(connect(self._url)) as queries:
            Catalogue(queries).drop_slot(self.slot, DROP_S)

    @property
    def lag_bytes(self) -> int:
        """How much the server has written after what was read; messages of the stream do not contain it."""
        if self._queries is not None and time.monotonic() - self._measured >= LAG_S:
            with contextlib.suppress(psycopg.Error):  # reading meets the same error and raises it
                self._measure(Catalogue(self._queries))
        place = self._place if self._stream is None else self._stream.place
        at = parse_lsn(place.lsn)
        return max(0, self._end - at) if at else 0

    def _measure(self, catalogue: Catalogue) -> None:
        self._measured = time.monotonic()
        self._end = catalogue.end()

    def read(self, position: str | None) -> Iterator[Part]:
        self.close()
        # Each reading closes its own connections: an old one may end after a new one has begun.
        with failures(f"capture {self.name}"), contextlib.ExitStack() as stack:
            wire = self._wire = stack.enter_context(contextlib.closing(Wire(self._url)))
            self._queries = stack.enter_context(contextlib.closing(connect(self._url)))
            catalogue = Catalogue(self._queries, self._decimals)
            catalogue.check_server()
            system, _, _, self._database = wire.command("IDENTIFY_SYSTEM")[0]
            before = catalogue.members(self.slot)
            published = self._publication.complete(self._queries, catalogue)
            slot = catalogue.slot(self.slot)
            place = None if position is None else decode(position)
            if place is not None and place.again and not place.system:
                self._drop(slot)
                place, slot = Place(system, "0/0", again=True), None
            else:
                place = starting_place(
                    self.name, catalogue, slot, place, system=system, database=self._database
                )
            place = self._place = without_gaps(place, before, catalogue.members(self.slot))
            self._confirmed = slot.confirmed if slot else 0
            states = TableStates(place.tables, place.stopped)
            missing = [table for table in published if states.of(".".join(table)) is TableState.NEW]
            unidentified = catalogue.unidentified(self.slot).intersection(missing)
            self.notices += self._publication.warnings(unidentified)
            if slot is None or missing:
                yield from self._snapshot(wire, missing, fresh=slot is None)
            self._stream = Stream(
                self.name,
                self.slot,
                self._database,
                self._place,
                wire=wire,
                connection=self._queries,
                catalogue=catalogue,
                versions=self._versions,
                notices=self.notices,
                folder=self._folder,
                confirmed=self._confirmed,
            )
            yield from self._stream.parts()

    def _drop(self, slot: Slot | None) -> None:
        if slot is not None:
            self._queries.execute(f"SELECT pg_drop_replication_slot({string(self.slot)})")

    def prepare(self, *, begun: bool) -> list[str]:
        """Checks settings and rights, creates publication and slot if missing, and returns lines for people.

        A capture that has `begun` and lost its slot has lost changes: no other slot is created here.
        """
        with failures(f"capture {self.name}"), contextlib.closing(connect(self._url)) as queries:
            catalogue = Catalogue(queries)
            catalogue.check_server()
            database = catalogue.rows("SELECT current_database()::text")[0][0]
            before = catalogue.published(self.slot)
            tables = self._publication.complete(queries, catalogue)
            names = ", ".join(".".join(table) for table in tables)
            did = [f"publication {self.slot} {'is there' if before == tables else 'is created'}: {names}"]
            slot = catalogue.slot(self.slot)
            if slot is not None or begun:
                check_slot(self.name, slot, database, begun=begun)
                return [*did, f"slot {self.slot} is there"]
            catalogue.rows(f"SELECT pg_create_logical_replication_slot({string(self.slot)}, 'pgoutput')")
            return [*did, f"slot {self.slot} is created: the server keeps its log from now on"]

    def remove(self) -> None:
        """Drops slot and publication: the server retains nothing for this capture any more.

        A reader is ended.
        """
        with failures(f"capture {self.name}"), contextlib.closing(connect(self._url)) as queries:
            Catalogue(queries).drop_slot(self.slot, DROP_S)
            self._publication.drop(queries)

    def _snapshot(self, wire: Wire, tables: list[tuple[str, str]], *, fresh: bool) -> Iterator[Part]:
        """Rows as of the point where a slot begins: the slot of the capture, or a temporary one."""
        slot = self.slot if fresh else f"{self.slot}_snapshot"
        kind = "" if fresh else "TEMPORARY "
        _, point, exported, *_ = wire.command(
            f"CREATE_REPLICATION_SLOT {slot} {kind}LOGICAL pgoutput (SNAPSHOT 'export')"
        )[0]
        place = self._place
        self._place = msgspec.structs.replace(place, lsn=point if fresh else place.lsn)
        with contextlib.closing(Copies(self._url, exported, self._workers)) as copies:
            catalogue = Catalogue(copies.connection, self._decimals)
            at = parse_lsn(point)
            pending = [
                copy_of(self.name, self._database, catalogue, catalogue.table(*table), at) for table in tables
            ]
            copies.start(pending)
            for copy in pending:
                yield from self._copy(copies, copy, at)
        if not fresh:
            wire.command(f"DROP_REPLICATION_SLOT {slot}")
        self.progress = None
        self._place = msgspec.structs.replace(self._place, again=False)
        yield Part([], encode(self._place))

    def _copy(self, copies: Copies, copy: Copy, point: int) -> Iterator[Part]:
        table, relation = copy.table, copy.table.relation
        name = f"{relation.schema}.{relation.name}"
        self._notify("snapshot begun", table, f"about {table.rows} rows")
        published_before = self._versions.knows(name)
        records: Sequence[Record] = self._versions.record(
            self.name, table_schema(relation, copy.description.key, point)
        )
        if self._place.again or published_before:
            context = EventContext(copy.topic, copy.source, envelope.stamp(), copy.at_ms)
            yield Part([*records, envelope.truncate_event(context)], None, (context,))
            records = []
        total = 0
        self.progress = Progress(name, 0, table.rows)
        for rows in copies.rows(copy):
            total += len(rows)
            self.progress = Progress(name, total, table.rows)
            yield Part(records if rows else [], None)
            records = rows or records
        self._notify("snapshot finished", table, f"as of {lsn_text(point)}")
        states = TableStates(self._place.tables, self._place.stopped)
        states.change(name, TableEvent.SNAPSHOT_FINISHED, lsn_text(point))
        self._place = msgspec.structs.replace(self._place, tables=states.read)
        yield Part(records, encode(self._place))

    def _notify(self, what: str, table: PublishedTable, text: str) -> None:
        name = f"{table.relation.schema}.{table.relation.name}"
        self.notices.append(Notice(what, time.time_ns() // 1_000_000, name, text))
