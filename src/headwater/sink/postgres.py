"""PostgreSQL as the store of a sink: rows, offsets and claims in one transaction.

A batch goes by COPY into a temporary table with the columns of the feed (``postgres_copy.py``), and from there by one statement into the rows
(``postgres_sql.py``). Only then are the lines of the partitions locked, so that a process that is suspended holds them for the blink of two
statements; should it happen there, the server ends its transaction after ``SUSPENDED_S``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from headwater.address import check_postgres, postgres_database, shown
from headwater.change import Change
from headwater.clock import Clock, SystemClock
from headwater.errors import Away, UsageError, one_line
from headwater.sink.layout import LENIENT, Layout, check_history, check_table, layout, reader
from headwater.sink.origin import known_ms
from headwater.sink.postgres_copy import lines
from headwater.sink.postgres_sql import GONE, NULL_KEY, ROW, Statements, staged, statements
from headwater.sink.rows import check_offset, newest
from headwater.sink.store import Batch, Feed, Poison, Superseded

try:
    import psycopg
except ImportError as error:  # pragma: no cover  the driver is there in tests
    raise UsageError(
        "hw.sink.Postgres needs the driver psycopg", hint="pip install headwater[postgres]"
    ) from error

__all__ = ["Postgres", "PostgresStore"]

CONNECT_S = 5
LOCK_S = 5
SUSPENDED_S = 10
STATEMENT_S = 120
SESSION = (
    f"-c TimeZone=UTC -c lock_timeout={LOCK_S}s -c statement_timeout={STATEMENT_S}s "
    f"-c idle_in_transaction_session_timeout={SUSPENDED_S}s -c client_min_messages=warning "
    "-c standard_conforming_strings=on -c DateStyle=ISO"
)
NETWORK: dict[str, Any] = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""A cut in the network is noticed after some seconds, not after hours."""
RECORD_FAULTS = ("21", "22", "23", "54")
"""Classes of errors that a record is to blame for: cardinality, data, integrity, size of an index entry."""
USAGE_FAULTS = ("28", "3D", "3F", "42", "0A")
WIRE = LENIENT | {"BINARY": str}
"""What rows are copied of; a value of another type, like a number where text should be, is left to PostgreSQL's casts."""
COPY_ROWS = 1_000
"""How many rows are made at a time, while the server takes in those before them."""
NOT_ADMITTED = ("does not exist", "authentication failed", "pg_hba.conf", "not permitted to log in")
"""What is said of a connection that is refused; the driver gives no code for it."""

Staged = tuple[int, Change, str]
"""What a line of the temporary table is (`ROW`, `GONE`, `NULL_KEY`), whose it is, and its JSON."""


class Postgres:
    """A table in PostgreSQL: ``hw.sink.Postgres("postgresql://shop@db/shop")``; its name is the source's unless given.

    With ``history`` every version of a row stays, with ``valid_from`` and ``valid_to`` (empty in the one that holds now). ``columns`` are those
    of a real-time view, which does not say them: ``{"country": "STRING", "total": "DOUBLE"}``.
    """

    kind = "postgres"

    def __init__(
        self,
        url: str,
        table: str = "",
        schema: str = "public",
        history: bool = False,
        *,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.table = table
        self.schema = schema
        self.history = history
        self.columns = columns

    def __repr__(self) -> str:
        return f"Postgres({shown(self.url)!r})"

    def place(self, topic: str) -> str:
        return f"{postgres_database(self.url)}, table {self.schema}.{self.table or topic}"

    def check(self, feed: Feed) -> None:
        check_postgres(f"sink {feed.sink!r}", self.url)
        layout(feed)
        check_table(feed, self.table or feed.topic)
        if self.history:
            check_history(feed)

    def open(self, feed: Feed) -> "PostgresStore":
        self.check(feed)
        shape = layout(feed)
        sql = statements(shape, self.schema, self.table or feed.topic, history=self.history)
        return PostgresStore(self.url, shape, sql)


class PostgresStore:
    """One sink's rows in a table. One thread calls it; a connection that was lost is made anew by the next call."""

    def __init__(self, url: str, shape: Layout, sql: Statements, clock: Clock | None = None) -> None:
        self._url = url
        self._layout = shape
        self._sql = sql
        self._name = {"sink": shape.feed.sink, "topic": shape.feed.topic}
        self._read = reader(staged(shape), WIRE)
        self._clock = clock or SystemClock()
        self._claims: dict[int, int] = {}
        self._offsets: dict[int, int | None] = {}
        self._begun: dict[int, int] = {}
        self._connection: psycopg.Connection[Any] | None = None
        with self._transaction():
            pass

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        now_ms = self._clock.now_ms()
        with self._transaction() as cursor:
            self._sql.check_format(cursor)  # another process may have migrated the tables meanwhile
            cursor.execute(self._sql.claim, self._name | {"partitions": sorted(partitions)})
            found = cursor.fetchall()
        self._claims |= {partition: claim for partition, _, claim in found}
        self._offsets |= {partition: offset for partition, offset, _ in found}
        self._begun |= {partition: now_ms if offset is None else 0 for partition, offset, _ in found}
        return {partition: offset for partition, offset, _ in found if offset is not None}

    def apply(self, batch: Batch) -> None:
        try:
            self._apply(batch)
        except psycopg.Error as error:
            self._find(batch.changes, error)

    def reset(self) -> None:
        with self._transaction() as cursor:
            for statement in self._sql.reset:
                cursor.execute(statement, self._name)

    def origin(self) -> str:
        with self._transaction() as cursor:
            found = cursor.execute(self._sql.origin, self._name).fetchone()
        return str(found[0]) if found else ""

    def adopt(self, origin: str) -> None:
        with self._transaction() as cursor:
            cursor.execute(self._sql.adopt, self._name | {"origin": origin})

    def at_ms(self) -> Mapping[int, int]:
        with self._transaction() as cursor:
            return dict(cursor.execute(self._sql.at_ms, self._name).fetchall())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _apply(self, batch: Batch) -> None:
        with self._transaction() as cursor:
            # What was applied before is looked for without a lock: our own claim is the only one that may have moved it.
            held = self._held(cursor, batch, self._sql.held)
            fresh = [c for c in batch.changes if c.offset >= (held[c.partition] or 0)]
            staged = self._stage(cursor, fresh)
            self._held(cursor, batch, self._sql.locked)
            for statement in staged:
                cursor.execute(statement)
            times = known_ms(batch, fresh, self._begun, self._clock.now_ms())
            reached = {p: max(upto, held[p] or 0) for p, upto in batch.upto.items()}
            moved = {
                "partitions": list(reached),
                "offsets": list(reached.values()),
                "times": [times[p] for p in reached],
            }
            cursor.execute(self._sql.move, self._name | moved)
        self._offsets |= reached

    def _held(self, cursor: Any, batch: Batch, query: str) -> dict[int, int | None]:
        """The offsets of the batch's partitions; Superseded when one of them is no longer ours, or not as it was left."""
        cursor.execute(query, self._name | {"partitions": list(batch.upto)})
        found = {partition: (offset, claim) for partition, offset, claim in cursor}
        for partition in batch.upto:
            if partition not in found or found[partition][1] != self._claims.get(partition):
                raise Superseded(
                    f"{self._sql.table}: partition {partition} of {self._name['topic']} was taken over"
                )
            check_offset(self._name["sink"], partition, found[partition][0], self._offsets[partition])
        return {partition: offset for partition, (offset, _) in found.items()}

    def _stage(self, cursor: Any, changes: Sequence[Change]) -> list[str]:
        """Copies the changes into the temporary table; the statements that take them from there."""
        staged, chosen = self._staged(changes)
        odd: list[tuple[Any, ...]] = []
        if staged:
            with cursor.copy(self._sql.copy) as copy:
                for first in range(0, len(staged), COPY_ROWS):
                    copy.write(lines(self._rows(staged[first : first + COPY_ROWS], odd)))
        if odd:
            arrays = map(list, zip(*odd, strict=True))
            cursor.execute(self._sql.cast, dict(zip((*self._sql.lead, "value"), arrays, strict=True)))
        return chosen

    def _rows(self, staged: Sequence[Staged], odd: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """What is staged as rows of the temporary table; ``odd`` gets what is left to PostgreSQL's casts."""
        rows: list[tuple[Any, ...]] = []
        read, width = self._read, len(self._sql.lead)
        for state, change, value in staged:
            lead = (state, change.partition, change.offset, change.timestamp_ms)[:width]
            try:
                rows.append((*lead, *read(value)))
            except msgspec.MsgspecError:
                odd.append((*lead, value))
        return rows

    def _staged(self, changes: Sequence[Change]) -> tuple[list[Staged], list[str]]:
        """What is staged of changes, each with its state and a JSON object, and the statements for it."""
        shape, sql = self._layout, self._sql
        if shape.feed.append:
            return [(ROW, c, c.value) for c in changes if c.value is not None], [sql.upsert]
        if sql.close:
            versions = [(GONE, c, self._key(c)) if c.value is None else (ROW, c, c.value) for c in changes]
            return versions, [sql.close, sql.upsert]
        rows, gone, null = [], [], []
        for row in newest(changes).values():
            change = row.change
            if change.value is None or (row.anew and shape.feed.versioned):
                gone.append((GONE, change, self._key(change)))
            if change.value is not None:
                rows.append((ROW, change, change.value))
            if shape.has_null_key(change):
                null.append((NULL_KEY, change, self._key(change)))
        chosen = [sql.delete] * bool(gone) + [sql.delete_null] * bool(null) + [sql.upsert] * bool(rows)
        return [*rows, *gone, *null], chosen

    def _key(self, change: Change) -> str:
        """A row of nothing but its key."""
        shape = self._layout
        windows = set(shape.starts.values())
        values = zip(shape.feed.key, shape.key_values(change), strict=True)
        row = {name: {"start": value} if name in windows else value for name, value in values}
        return msgspec.json.encode(row).decode()

    def _find(self, changes: Sequence[Change], error: psycopg.Error) -> None:
        """Halves a batch that was refused until one record is left that is refused alone: Poison."""
        if (error.sqlstate or "")[:2] not in RECORD_FAULTS:
            raise self._translated(error) from error
        suspects = list(changes)
        while len(suspects) > 1:
            half = len(suspects) // 2
            if self._refused(suspects[:half]) is not None:
                suspects = suspects[:half]
            elif self._refused(suspects[half:]) is not None:
                suspects = suspects[half:]
            else:
                what = f"records of {self._name['topic']} have different keys and are the same row"
                raise UsageError(what, hint="write them with the text of their key columns as key") from error
        found = self._refused(suspects) if suspects else None
        if found is None:  # it was something else, and has gone
            raise Away(f"PostgreSQL table {self._sql.table}", got=one_line(error)) from error
        raise Poison(suspects[0].partition, suspects[0].offset, f"PostgreSQL: {one_line(found)}") from found

    def _refused(self, changes: Sequence[Change]) -> psycopg.Error | None:
        """Writes the changes and takes them back."""
        try:
            with self._transaction() as cursor:
                for statement in self._stage(cursor, changes):
                    cursor.execute(statement)
                raise _Enough
        except _Enough:
            return None
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in RECORD_FAULTS:
                raise self._translated(error) from error
            return error

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """What a record is to blame for comes out as it is; all else is translated."""
        try:
            connection = self._connect()
            with connection.transaction(), connection.cursor() as cursor:
                yield cursor
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] in RECORD_FAULTS:
                raise
            raise self._translated(error) from error

    def _connect(self) -> "psycopg.Connection[Any]":
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            self._connection.close()
            self._connection = None
        if self._connection is None:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                application_name=f"headwater sink {self._name['sink']}",
                options=SESSION,
                **NETWORK,
            )
            try:
                with connection.transaction():
                    self._sql.prepare(connection)
                connection.execute(self._sql.stage)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _translated(self, error: psycopg.Error) -> Away | UsageError:
        state = error.sqlstate or ""
        refused = not state and any(words in str(error) for words in NOT_ADMITTED)
        if state[:2] in USAGE_FAULTS or refused or isinstance(error, psycopg.ProgrammingError):
            return UsageError(f"PostgreSQL table {self._sql.table}: {one_line(error)}")
        return Away(f"PostgreSQL table {self._sql.table}", got=one_line(error))


class _Enough(Exception):  # noqa: N818  no error: the end of a try
    pass
