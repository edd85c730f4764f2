"""Copies: the rows of PostgreSQL's tables as of one exported snapshot, read over several connections at once.

Tables are returned one after the other, since a table's snapshot is one transaction of the log. A large table
is divided into ranges of its blocks, which all connections read; the next tables are read ahead as far as
there is room.
"""

import contextlib
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.capture import envelope
from headwater.capture.postgres.catalogue import Catalogue, PublishedTable, identifier, string
from headwater.capture.postgres.changes import TableDescription, sequence, source_block
from headwater.capture.postgres.connection import Wire, psycopg
from headwater.capture.postgres.copy_rows import ReadLine, line_reader
from headwater.capture.postgres.messages import Shape
from headwater.capture.source import Columns, Record

__all__ = ["WORKERS", "Copies", "Copy", "copy_of"]

WORKERS = 2
RANGE_BLOCKS = 4_096
"""A larger table is read in ranges of this size: 32 MiB with blocks of the usual size."""
PART_RECORDS = 5_000
PART_BYTES = 2 << 20
HELD_PARTS = 2
"""How many parts of a table wait for publication. With one part in each connection, this bounds the
memory."""
POLL_S = 0.2
ALIVE_S = 1.0
STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Copy:
    """The rows of one table to read, and what their records have in common."""

    table: PublishedTable
    description: TableDescription
    topic: str
    source: str
    at_ms: int
    select: str
    ranges: Sequence[str]
    """Conditions that divide the table; each row is in one range."""
    reader: Callable[[], ReadLine]
    """Creates the function that reads a line; each part has its own, since it contains the time."""
    parts: "queue.Queue[Columns | BaseException | None]" = field(
        default_factory=lambda: queue.Queue(HELD_PARTS)
    )
    """Rows; None at the end of each range."""


def copy_of(name: str, database: str, catalogue: Catalogue, table: PublishedTable, point: int) -> Copy:
    """The copy of a table of the capture ``name``, for a snapshot as of an LSN."""
    relation, now_us = table.relation, time.time_ns() // 1_000
    description = catalogue.describe(relation)
    shape = Shape(relation, description.key, description.types)
    block = source_block(name, database, relation.schema, relation.name, "true")
    at = {"ms": now_us // 1_000, "us": now_us, "ns": now_us * 1_000}
    source = block(**at, sequence=sequence(None, point), xid="null", lsn=point)
    bind = line_reader(shape.names, shape.kinds, shape.key_columns)
    rest = f',"source":{source},"transaction":null,"op":"r"'
    only = "" if table.partitioned else "ONLY "
    columns = ", ".join(map(identifier, shape.names))
    full_name = f"{identifier(relation.schema)}.{identifier(relation.name)}"
    return Copy(
        table,
        description,
        f"{name}.{relation.schema}.{relation.name}",
        source,
        now_us // 1_000,
        f"SELECT {columns} FROM {only}{full_name}",  # noqa: S608  quoted
        [""] if table.partitioned else ranges(catalogue.blocks(relation.oid)),
        lambda: bind('{"before":null,"after":', f"{rest},{envelope.stamp()}}}"),
    )


def ranges(blocks: int) -> list[str]:
    """Conditions on the physical place of a row.

    Rows of a snapshot do not move, and the last range has no end.
    """
    starts = range(0, max(blocks, 1), RANGE_BLOCKS)
    if len(starts) == 1:
        return [""]
    ends = [f" AND ctid < '({start},0)'::tid" for start in starts[1:]]
    return [f" WHERE ctid >= '({start},0)'::tid{end}" for start, end in zip(starts, [*ends, ""], strict=True)]


class Copies:
    """The connections, with one thread each; the thread that created it calls `rows` and `close`.

    The snapshot is valid until the connection that exported it runs another command.
    """

    def __init__(self, url: str, snapshot: str, workers: int = WORKERS) -> None:
        self._url = url
        self._snapshot = snapshot
        self._workers = workers
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._wires: list[Wire] = []
        self._work: queue.SimpleQueue[tuple[Copy, str]] = queue.SimpleQueue()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> Any:
        """A connection for queries as of the snapshot, before `start`."""
        return self._wires[0].connection

    def start(self, copies: Sequence[Copy]) -> None:
        """Starts reading all copies, in order."""
        ranges_to_read = [(copy, where) for copy in copies for where in copy.ranges]
        for copy_range in ranges_to_read:
            self._work.put(copy_range)
        while len(self._wires) < min(self._workers, len(ranges_to_read)):
            self._open()
        for wire in self._wires:
            thread = threading.Thread(target=self._run, args=(wire,), name="copy", daemon=True)
            self._threads.append(thread)
            thread.start()

    def rows(self, copy: Copy) -> Iterator[Sequence[Record]]:
        """The rows of one table, its ranges mixed; an empty sequence is a sign of life."""
        left = len(copy.ranges)
        while left:
            try:
                part = copy.parts.get(timeout=ALIVE_S)
            except queue.Empty:
                yield []
                continue
            if isinstance(part, BaseException):
                raise part
            if part is None:
                left -= 1
            else:
                yield part

    def close(self) -> None:
        """Ends the threads, those that wait for the server too, and the connections."""
        self._over.set()
        for thread, wire in zip(self._threads, self._wires, strict=False):
            thread.join(STOP_S)
            if thread.is_alive():
                wire.connection.cancel()
                thread.join(STOP_S)
        for wire in self._wires:
            wire.close()

    def _open(self) -> None:
        wire = Wire(self._url, replication=False)
        self._wires.append(wire)
        wire.command("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        wire.command(f"SET TRANSACTION SNAPSHOT {string(self._snapshot)}")

    def _run(self, wire: Wire) -> None:
        while not self._over.is_set():
            try:
                copy, where = self._work.get_nowait()
            except queue.Empty:
                with contextlib.suppress(psycopg.Error):  # it only releases locks
                    wire.command("COMMIT")
                return
            try:
                self._read(wire, copy, where)
                self._put(copy, None)
            except BaseException as error:  # noqa: BLE001  `rows` raises it
                self._put(copy, error)
                return

    def _read(self, wire: Wire, copy: Copy, where: str) -> None:
        wire.command(f"COPY ({copy.select}{where}) TO STDOUT")
        get, read, size = wire.pg.get_copy_data, copy.reader(), 0
        rows = Columns(copy.topic, [], [], copy.at_ms)
        while True:
            count, line = get(1)
            if count > 0:
                key, value = read(line)
                rows.keys.append(key)
                rows.values.append(value)
                size += count
                if len(rows.keys) >= PART_RECORDS or size >= PART_BYTES:
                    self._put(copy, rows)
                    rows, read, size = Columns(copy.topic, [], [], copy.at_ms), copy.reader(), 0
            elif count < 0:
                break
            elif self._over.is_set():
                return
            elif select.select([wire.pg.socket], [], [], POLL_S)[0]:
                wire.pg.consume_input()
        wire.finish_copy()
        if rows:
            self._put(copy, rows)

    def _put(self, copy: Copy, part: Columns | BaseException | None) -> None:
        while not self._over.is_set():
            try:
                copy.parts.put(part, timeout=POLL_S)
            except queue.Full:
                continue
            return
