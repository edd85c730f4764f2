"""PostgresSource: a PostgreSQL database by logical replication with ``pgoutput``.

The slot is made after the publication and exports the snapshot: rows as of exactly the point where its stream begins. A table that is
added later, or whose snapshot was cut off by a crash, gets a snapshot of its own from a temporary slot; what the stream then
brings of that table from before the snapshot is passed over. So each change is in the topics once, whichever way it came.
"""

import contextlib
import logging
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headwater.capture import envelope
from headwater.capture.alarm import PastLimit
from headwater.capture.chunks import chunked
from headwater.capture.control import Command, Notice
from headwater.capture.envelope import Around
from headwater.capture.pgasked import Guard, NoticingVersions, published_as
from headwater.capture.pgcatalog import Catalogue, Published, Slot, identifier, string
from headwater.capture.pgchanges import Changes
from headwater.capture.pgchunks import Chunks
from headwater.capture.pgconnect import Wire, connect, failures, psycopg
from headwater.capture.pgoutput import lsn_text, parse_lsn
from headwater.capture.pgplace import Place, decode, encode, still_known
from headwater.capture.pgreread import current
from headwater.capture.pgsnapshot import WORKERS, Copies, Copy, copy_of
from headwater.capture.pgtypes import Decimals
from headwater.capture.source import Part, Partial, Progress, Record
from headwater.errors import Away, CaptureError, one_line

__all__ = ["PostgresSource", "slot_name"]

PART_RECORDS = 5_000
PART_BYTES = 8 << 20
ALARM_BYTES = 1 << 30
LIMIT_BYTES = 10 << 30
"""As much of its log the server may keep for us before that is told, and told with urgency."""
XLOG_DATA = ord("w")
QUIET_S = 0.05
ALIVE_S = 1.0
HEARTBEAT_S = 5.0
"""So often the server is asked how far it is, and told how far we are."""
DROP_S = 10.0
"""So long a slot may be held by a reader that was asked to end."""
LAG_S = 1.0
"""So old may be what the server has said of the end of its log."""

logger = logging.getLogger(__name__)


def slot_name(name: str) -> str:
    """The name of a capture's slot and publication."""
    return "headwater_" + re.sub(r"[^a-z0-9_]", "_", name.lower())


class PostgresSource:
    """The tables of one database. One thread; `close` ends the connections, and slot and publication stay."""

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
        self._url = url
        self._tables = tables
        self._root = root
        self._decimals: Decimals = decimals
        self._folder = folder
        self._workers = snapshot_workers
        self.notices: list[Notice] = []
        self._versions = NoticingVersions(self.notices)
        self._wire: Wire | None = None
        self._asking: Any = None
        self._database = ""
        self._place = Place("", "0/0")
        self._confirmed = 0
        self._said = 0.0
        self._looked = 0.0
        self._end = 0
        self._measured = -LAG_S

    def recall(self, records: list[bytes]) -> None:
        """The values of ``<name>.schema``: versions that are published already."""
        self._versions = NoticingVersions(self.notices)
        for value in records:
            self._versions.recall(value)

    def close(self) -> None:
        for each in (self._wire, self._asking):
            if each is not None:
                each.close()
        self._wire = self._asking = None

    def confirm(self, position: str) -> None:
        self._confirmed = parse_lsn(decode(position).lsn)
        self._say()

    def asked(self, position: str, command: Command) -> str:
        """A snapshot of one table: in chunks beside the stream, or anew with a truncate."""
        place = decode(position)
        name = published_as(command.table, place.tables)
        if not command.incremental:
            kept = {each: lsn for each, lsn in place.tables.items() if each != name}
            stopped = {each: why for each, why in place.stopped.items() if each != name}
            return encode(msgspec.structs.replace(place, tables=kept, stopped=stopped, again=True))
        if name in place.stopped:
            raise CaptureError(
                f"table {name} is stopped",
                got=place.stopped[name],
                hint=f"`--table {name}` alone begins it anew",
            )
        asked = chunked(msgspec.structs.replace(command, table=name))
        return encode(msgspec.structs.replace(place, snapshots=(*place.snapshots, asked)))

    def reread(self, records: Sequence[Partial]) -> Mapping[bytes, Mapping[str, bytes]]:
        """See `Rereadable.reread`."""
        with failures(f"capture {self.name}"):
            table = records[0].topic.removeprefix(f"{self.name}.")
            return current(self._asking, Catalogue(self._asking, self._decimals), table, records)

    def retained_bytes(self) -> int:
        """How much of the server's log the slot holds."""
        with failures(f"capture {self.name}"):
            connection = self._asking or connect(self._url)
            try:
                self._look(Catalogue(connection))
                return Catalogue(connection).retained_bytes(self.slot)
            finally:
                if connection is not self._asking:
                    connection.close()

    def give_up(self) -> None:
        """Drops the slot, and ends our own reading from it."""
        self.close()
        with failures(f"capture {self.name}"), contextlib.closing(connect(self._url)) as asking:
            Catalogue(asking).drop_slot(self.slot, DROP_S)

    @property
    def lag_bytes(self) -> int:
        """How much the server has written behind what was read. A message does not tell: its end of the log is its own place."""
        if self._asking is not None and time.monotonic() - self._measured >= LAG_S:
            with contextlib.suppress(psycopg.Error):  # who reads meets it too, and says so
                self._look(Catalogue(self._asking))
        at = parse_lsn(self._place.lsn)
        return max(0, self._end - at) if at else 0

    def _look(self, catalogue: Catalogue) -> None:
        self._measured = time.monotonic()
        self._end = catalogue.end()

    def read(self, position: str | None) -> Iterator[Part]:
        self.close()
        # Each reading closes its own connections: an old one may end after a new one has begun.
        with failures(f"capture {self.name}"), contextlib.ExitStack() as stack:
            wire = self._wire = stack.enter_context(contextlib.closing(Wire(self._url)))
            self._asking = stack.enter_context(contextlib.closing(connect(self._url)))
            catalogue = Catalogue(self._asking, self._decimals)
            catalogue.check_server()
            system, _, _, self._database = wire.command("IDENTIFY_SYSTEM")[0]
            before = catalogue.members(self.slot)
            published = self._publish(catalogue)
            slot = catalogue.slot(self.slot)
            known = None if position is None else decode(position)
            if known is not None and known.again and not known.system:
                self._drop(slot)
                place, slot = Place(system, "0/0", again=True), None
            else:
                place = self._check(catalogue, system, slot, known)
            place = self._place = still_known(place, before, catalogue.members(self.slot))
            self._confirmed = slot.confirmed if slot else 0
            missing = [each for each in published if ".".join(each) not in place.tables]
            self._warn(catalogue.unidentified(self.slot).intersection(missing))
            if slot is None or missing:
                yield from self._snapshot(wire, missing, fresh=slot is None)
            yield from self._stream(wire, catalogue)

    def _check(self, catalogue: Catalogue, system: str, slot: Slot | None, place: Place | None) -> Place:
        """Whether slot and position fit each other; a gap is never passed over in silence."""
        what, way_out = f"capture {self.name}", f"`headwater capture snapshot {self.name}` begins anew"
        if place is not None and place.system != system:
            raise CaptureError(
                f"{what}: this is another database server than the position is of",
                got=f"system {system}",
                expected=place.system,
                hint=way_out,
            )
        self._check_slot(slot, begun=place is not None)
        if place is None:
            return Place(system, lsn_text(slot.confirmed if slot else 0))
        at = parse_lsn(place.lsn)
        if slot is not None and slot.confirmed > at:
            raise CaptureError(
                f"{what}: slot {self.slot} was moved on by somebody else, changes in between are lost",
                got=lsn_text(slot.confirmed),
                expected=f"{place.lsn} or before",
                hint=way_out,
            )
        end = catalogue.end()
        if at > end:
            raise CaptureError(
                f"{what}: the position is newer than the server's log; was it restored from a backup?",
                got=f"{place.lsn}, the server is at {lsn_text(end)}",
                hint=way_out,
            )
        return place

    def _check_slot(self, slot: Slot | None, *, begun: bool) -> None:
        what, way_out = f"capture {self.name}", f"`headwater capture snapshot {self.name}` begins anew"
        if slot is not None and (slot.plugin != "pgoutput" or slot.database != self._database):
            raise CaptureError(
                f"{what}: slot {self.slot} is not ours",
                got=f"plugin {slot.plugin} in database {slot.database}",
                hint="give the capture another name",
            )
        if slot is not None and slot.lost:
            raise CaptureError(
                f"{what}: slot {self.slot} was lost, and with it changes that are not in the topics",
                hint=f"{way_out}; max_slot_wal_keep_size says how much the server keeps for it",
            )
        if slot is None and begun:
            raise CaptureError(f"{what}: slot {self.slot} is gone, and changes with it", hint=way_out)

    def _drop(self, slot: Slot | None) -> None:
        if slot is not None:
            self._asking.execute(f"SELECT pg_drop_replication_slot({string(self.slot)})")

    def prepare(self, *, begun: bool) -> list[str]:
        """Checks settings and rights and makes publication and slot, unless they are there; says what it found and did.

        A capture that has `begun` and lost its slot has lost changes: it gets no other one here.
        """
        with failures(f"capture {self.name}"), contextlib.closing(connect(self._url)) as self._asking:
            catalogue = Catalogue(self._asking)
            catalogue.check_server()
            self._database = catalogue.rows("SELECT current_database()::text")[0][0]
            before = catalogue.published(self.slot)
            tables = self._publish(catalogue)
            names = ", ".join(".".join(each) for each in tables)
            did = [f"publication {self.slot} {'is there' if before == tables else 'is made'}: {names}"]
            slot = catalogue.slot(self.slot)
            if slot is not None or begun:
                self._check_slot(slot, begun=begun)
                return [*did, f"slot {self.slot} is there"]
            catalogue.rows(f"SELECT pg_create_logical_replication_slot({string(self.slot)}, 'pgoutput')")
            return [*did, f"slot {self.slot} is made: the server keeps its log from now on"]

    def remove(self) -> None:
        """Drops slot and publication: the server keeps nothing for this capture any more. Who reads from the slot is ended."""
        with failures(f"capture {self.name}"), contextlib.closing(connect(self._url)) as self._asking:
            Catalogue(self._asking).drop_slot(self.slot, DROP_S)
            self._alter(f"DROP PUBLICATION IF EXISTS {self.slot}")

    def _publish(self, catalogue: Catalogue) -> list[tuple[str, str]]:
        """The publication, made or completed where it is not as declared; before the slot, or decoding would fail later."""
        wanted = catalogue.expand(self._tables)
        names = [f"{identifier(schema)}.{identifier(name)}" for schema, name in wanted]
        options = f"publish_via_partition_root = {str(self._root).lower()}"
        found = catalogue.rows(
            f"SELECT puballtables, pubviaroot FROM pg_publication WHERE pubname = {string(self.slot)}"  # noqa: S608  quoted
        )
        if not found:
            self._alter(f"CREATE PUBLICATION {self.slot} FOR TABLE {', '.join(names)} WITH ({options})")
            return catalogue.published(self.slot)
        if found[0][1] != self._root:
            self._alter(f"ALTER PUBLICATION {self.slot} SET ({options})")
        have = {
            (schema, name)
            for schema, name in catalogue.rows(
                "SELECT n.nspname::text, c.relname::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"  # noqa: S608  quoted
                " JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
                f" WHERE p.pubname = {string(self.slot)}"
            )
        }
        if have != set(wanted) and not found[0][0]:
            self._alter(f"ALTER PUBLICATION {self.slot} SET TABLE {', '.join(names)}")
        return catalogue.published(self.slot)

    def _warn(self, tables: set[tuple[str, str]]) -> None:
        """Of what publishing these tables does to who writes them."""
        for schema, name in sorted(tables):
            whole = f"{identifier(schema)}.{identifier(name)}"
            text = (
                "it has no replica identity: while it is published, the server refuses to update and delete its rows;"
                f" give it a primary key, or ALTER TABLE {whole} REPLICA IDENTITY FULL"
            )
            logger.warning("capture %s: table %s.%s: %s", self.name, schema, name, text)
            self.notices.append(Notice("no identity", time.time_ns() // 1_000_000, f"{schema}.{name}", text))

    def _alter(self, statement: str) -> None:
        try:
            self._asking.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise CaptureError(
                f"capture {self.name}: the role may not change its publication",
                got=one_line(error),
                hint=f"let an owner of the tables run: {statement}",
            ) from error

    def _snapshot(self, wire: Wire, tables: list[tuple[str, str]], *, fresh: bool) -> Iterator[Part]:
        """Rows as of the point where a slot begins: the capture's own, or a temporary one beside it."""
        slot = self.slot if fresh else f"{self.slot}_snapshot"
        kind = "" if fresh else "TEMPORARY "
        _, point, exported, *_ = wire.command(
            f"CREATE_REPLICATION_SLOT {slot} {kind}LOGICAL pgoutput (SNAPSHOT 'export')"
        )[0]
        place = self._place
        place = self._place = msgspec.structs.replace(place, lsn=point if fresh else place.lsn)
        with contextlib.closing(Copies(self._url, exported, self._workers)) as copies:
            catalogue = Catalogue(copies.connection, self._decimals)
            at = parse_lsn(point)
            found = [
                copy_of(self.name, self._database, catalogue, catalogue.table(*each), at) for each in tables
            ]
            copies.start(found)
            for copy in found:
                yield from self._copy(copies, copy, at)
        if not fresh:
            wire.command(f"DROP_REPLICATION_SLOT {slot}")
        self.progress = None
        self._place = msgspec.structs.replace(self._place, again=False)
        yield Part([], encode(self._place))

    def _tell(self, what: str, table: Published, text: str) -> None:
        whole = f"{table.relation.schema}.{table.relation.name}"
        self.notices.append(Notice(what, time.time_ns() // 1_000_000, whole, text))

    def _copy(self, copies: Copies, copy: Copy, point: int) -> Iterator[Part]:
        table, relation = copy.table, copy.table.relation
        name = f"{relation.schema}.{relation.name}"
        self._tell("snapshot begun", table, f"about {table.rows} rows")
        known = self._versions.knows(name)
        records: Sequence[Record] = self._versions.record(self.name, relation, copy.there.key, point)
        if self._place.again or known:
            around = Around(copy.topic, copy.source, envelope.stamp(), copy.at_ms)
            yield Part([*records, envelope.truncated(around)], None, (around,))
            records = []
        total = 0
        self.progress = Progress(name, 0, table.rows)
        for rows in copies.rows(copy):
            total += len(rows)
            self.progress = Progress(name, total, table.rows)
            yield Part(records if rows else [], None)
            records = rows or records
        self._tell("snapshot finished", table, f"as of {lsn_text(point)}")
        tables = self._place.tables | {name: lsn_text(point)}
        self._place = msgspec.structs.replace(self._place, tables=tables)
        yield Part(records, encode(self._place))

    def _stream(self, wire: Wire, catalogue: Catalogue) -> Iterator[Part]:
        at = parse_lsn(self._place.lsn)
        since = {name: parse_lsn(lsn) for name, lsn in self._place.tables.items()}
        self._guard = Guard(catalogue, self._versions, since, self._place.stopped)
        changes = Changes(
            self.name,
            self._database,
            self._guard.describe,
            lsn=at,
            since=since,
            versions=self._versions,
            folder=self._folder,
        )
        self._guard.at = lambda: changes.committed_at
        self._chunks = Chunks(self.name, self._database, self._asking, catalogue, changes)
        self._chunks.notices = self.notices
        take = self._chunks.begin(self._place.snapshots)
        options = (
            f"proto_version '2', publication_names '{identifier(self.slot)}', streaming 'on', messages 'true'"
        )
        wire.command(f"START_REPLICATION SLOT {self.slot} LOGICAL {lsn_text(at)} ({options})")
        try:
            yield from self._follow(wire, catalogue, changes, take)
        finally:
            changes.close()

    def _follow(
        self,
        wire: Wire,
        catalogue: Catalogue,
        changes: Changes,
        take: Callable[[bytes], Iterator[None] | None],
    ) -> Iterator[Part]:
        """Messages as they come. A part ends where the socket is empty, or where it is full."""
        chunks = self._chunks
        get = wire.pg.get_copy_data
        wait_s, told, size = QUIET_S, (changes.lsn, chunks.pending), 0
        while True:
            count, data = get(1)
            if count > 0:
                message = bytes(data)
                size += count
                if message[0] != XLOG_DATA:
                    self._note(message, changes)
                    continue
                steps = take(message)
                if steps is not None or len(changes.records) >= PART_RECORDS or size >= PART_BYTES:
                    for _ in steps or (None,):
                        yield from self._parts(changes, 1)
                        self._say_in_time()
                    self._look_in_time(catalogue)
                    size = 0
                continue
            if count < 0:
                wire.finish_copy()
                raise Away(f"capture {self.name}: the server has ended the stream")
            chunks.step()
            if changes.done or (changes.lsn, chunks.pending) != told:
                told, wait_s = (changes.lsn, chunks.pending), QUIET_S
                yield from self._parts(changes, 1 << 62)
            self._look_in_time(catalogue)
            ready, _, _ = select.select([wire.pg.socket], [], [], wait_s)
            if ready:
                wire.pg.consume_input()
                continue
            wait_s = QUIET_S if chunks.waiting else ALIVE_S
            if chunks.waiting:
                self._say(reply=True)
            self._say_in_time()
            yield Part([], None)

    def _parts(self, changes: Changes, most: int) -> Iterator[Part]:
        """What is complete, with its position; and of what is not, as soon as it is much, the part that is there."""
        records, done = changes.records, changes.done
        self._place = msgspec.structs.replace(
            self._place,
            lsn=lsn_text(changes.lsn),
            snapshots=self._chunks.pending,
            stopped=self._guard.stopped,
        )
        if done or not (records or changes.open):
            rest = records[done:]
            changes.records, changes.done = rest, 0
            del records[done:]
            yield Part(records, encode(self._place), truncated=changes.truncated, partial=changes.partial)
            records = rest
        elif not records:  # inside a transaction, of which nothing but rows that are passed over has come
            yield Part([], None)
        if len(records) >= most:
            changes.records = []
            yield Part(records, None, truncated=changes.truncated, partial=changes.partial)
        changes.truncated = changes.truncated and bool(changes.records)
        changes.partial = changes.partial and bool(changes.records)
        changes.restamp()

    def _note(self, message: bytes, changes: Changes) -> None:
        """A keepalive: outside of a transaction, everything before it was sent, whether or not it was about our tables."""
        end = _u64(message, 1)
        if not changes.open and not changes.records and end > changes.lsn:
            changes.lsn = end
        if message[17]:
            self._say()

    def _say_in_time(self) -> None:
        if time.monotonic() - self._said > HEARTBEAT_S:
            self._say(reply=True)

    def _look_in_time(self, catalogue: Catalogue) -> None:
        """Whether the server still sends what happens to the tables: one that was dropped and made again is not published by itself."""
        if time.monotonic() - self._looked < HEARTBEAT_S:
            return
        self._looked = time.monotonic()
        members = catalogue.members(self.slot)
        for each in self._place.tables:
            if members.get(each) != self._place.members.get(each) and catalogue.exists(*each.split(".", 1)):
                raise Away(
                    f"capture {self.name}: table {each} was made again or left out of publication {self.slot}; it begins anew"
                )

    def _say(self, *, reply: bool = False) -> None:
        if self._wire is None:
            return
        self._said = time.monotonic()
        try:
            self._wire.status(self._confirmed, time.time_ns() // 1_000, reply=reply)
        except psycopg.Error:
            return  # not streaming yet, or no longer: the reader will meet it


def _u64(message: bytes, at: int) -> int:
    return int.from_bytes(message[at : at + 8])
