"""Copies: the rows of PostgreSQL's tables as of one exported snapshot, read over several connections at once.

Tables are handed over one behind the other, since a table's snapshot is whole in the log or not there at all. A large one is cut into
ranges of its blocks, so that it is read by all connections; behind it the next tables are read ahead, as far as there is room.
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
from headwater.capture.pgcatalog import Catalogue, Published, identifier, string
from headwater.capture.pgchanges import Described, sequence, source_block
from headwater.capture.pgconnect import Wire, psycopg
from headwater.capture.pgcopy import Copied, copied
from headwater.capture.pgoutput import Shape
from headwater.capture.source import Columns, Record

__all__ = ["WORKERS", "Copies", "Copy", "copy_of"]

WORKERS = 2
RANGE_BLOCKS = 4_096
"""A table with more is read in ranges of so many: 32 MiB each, at the usual size of a block."""
PART_RECORDS = 5_000
PART_BYTES = 2 << 20
HELD_PARTS = 2
"""So many of a table wait for who publishes. With one in the hands of each connection, that bounds the memory."""
LOOK_S = 0.2
ALIVE_S = 1.0
STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Copy:
    """What is to be read of one table, and what its records have in common."""

    table: Published
    there: Described
    topic: str
    source: str
    at_ms: int
    select: str
    ranges: Sequence[str]
    """Conditions that cut it into pieces which have each row once."""
    reader: Callable[[], Copied]
    """A function that makes key and value of a line; one for each part, since it has the time in it."""
    parts: "queue.Queue[Columns | BaseException | None]" = field(
        default_factory=lambda: queue.Queue(HELD_PARTS)
    )
    """Rows; None at the end of each range."""


def copy_of(name: str, database: str, catalogue: Catalogue, table: Published, point: int) -> Copy:
    """A table of the capture ``name``, as a snapshot has it that stands for a point of the log."""
    relation, now_us = table.relation, time.time_ns() // 1_000
    there = catalogue.describe(relation)
    shape = Shape(relation, there.key, there.types)
    block = source_block(name, database, relation.schema, relation.name, "true")
    at = {"ms": now_us // 1_000, "us": now_us, "ns": now_us * 1_000}
    source = block(**at, sequence=sequence(None, point), xid="null", lsn=point)
    bind = copied(shape.names, shape.kinds, shape.key_columns)
    rest = f',"source":{source},"transaction":null,"op":"r"'
    only = "" if table.partitioned else "ONLY "
    columns = ", ".join(map(identifier, shape.names))
    whole = f"{identifier(relation.schema)}.{identifier(relation.name)}"
    return Copy(
        table,
        there,
        f"{name}.{relation.schema}.{relation.name}",
        source,
        now_us // 1_000,
        f"SELECT {columns} FROM {only}{whole}",  # noqa: S608  quoted
        [""] if table.partitioned else ranges(catalogue.blocks(relation.oid)),
        lambda: bind('{"before":null,"after":', f"{rest},{envelope.stamp()}}}"),
    )


def ranges(blocks: int) -> list[str]:
    """Conditions on the place of a row. A row that a snapshot shows stays where it is; the last range has no end, so none is left out."""
    starts = range(0, max(blocks, 1), RANGE_BLOCKS)
    if len(starts) == 1:
        return [""]
    ends = [f" AND ctid < '({start},0)'::tid" for start in starts[1:]]
    return [f" WHERE ctid >= '({start},0)'::tid{end}" for start, end in zip(starts, [*ends, ""], strict=True)]


class Copies:
    """The connections, one thread for each; `rows` and `close` are for the thread that made it.

    The snapshot lives as long as the connection that has exported it does nothing else.
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
        """One that may be asked as of the snapshot, before `start`."""
        return self._wires[0].connection

    def start(self, copies: Sequence[Copy]) -> None:
        """Begins to read all of them, in their order."""
        pieces = [(copy, where) for copy in copies for where in copy.ranges]
        for piece in pieces:
            self._work.put(piece)
        while len(self._wires) < min(self._workers, len(pieces)):
            self._open()
        for wire in self._wires:
            thread = threading.Thread(target=self._run, args=(wire,), name="copy", daemon=True)
            self._threads.append(thread)
            thread.start()

    def rows(self, copy: Copy) -> Iterator[Sequence[Record]]:
        """The rows of one table, the ranges of which are mixed; none at all are a sign of life."""
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
        """Ends the threads, also those that wait for the server, and the connections."""
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
                with contextlib.suppress(psycopg.Error):  # nothing is lost: it gives back its locks
                    wire.command("COMMIT")
                return
            try:
                self._read(wire, copy, where)
                self._hand_over(copy, None)
            except BaseException as error:  # noqa: BLE001  it is raised where the rows are taken
                self._hand_over(copy, error)
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
                    self._hand_over(copy, rows)
                    rows, read, size = Columns(copy.topic, [], [], copy.at_ms), copy.reader(), 0
            elif count < 0:
                break
            elif self._over.is_set():
                return
            elif select.select([wire.pg.socket], [], [], LOOK_S)[0]:
                wire.pg.consume_input()
        wire.finish_copy()
        if rows:
            self._hand_over(copy, rows)

    def _hand_over(self, copy: Copy, part: Columns | BaseException | None) -> None:
        while not self._over.is_set():
            try:
                copy.parts.put(part, timeout=LOOK_S)
            except queue.Full:
                continue
            return
