"""PostgreSQL as the store of a sink: rows, offsets and claims in one transaction.

A batch is copied into a temporary table with the columns of the feed (``postgres_copy.py``), and written
from there into the rows by one statement (``postgres_sql.py``). Only then are the lines of the partitions
locked, so that a process that is suspended holds them only if it happens between two statements; the
server then ends its transaction after ``SUSPENDED_S``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from headwater.address import check_postgres, postgres_database, shown
from headwater.change import Change
from headwater.clock import Clock, SystemClock
from headwater.errors import UnavailableError, UsageError, one_line
from headwater.sink.batch_rows import newest_changes
from headwater.sink.claims import NOTHING, Claims, PartitionState, complete_ms
from headwater.sink.store import Batch, Poison, SinkFeed
from headwater.sink.stores.postgres_copy import lines
from headwater.sink.stores.postgres_sql import GONE, NULL_KEY, ROW, Statements, staged, statements
from headwater.sink.stores.sql_table import (
    LENIENT,
    TableLayout,
    check_history,
    check_table,
    row_reader,
    table_layout,
)

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
"""With these a cut in the network is noticed after seconds, not after hours."""
RECORD_FAULTS = ("21", "22", "23", "54")
"""Classes of errors that a record causes: cardinality, data, integrity, size of an index entry."""
USAGE_FAULTS = ("28", "3D", "3F", "42", "0A")
WIRE = LENIENT | {"BINARY": str}
"""The types that rows are copied from. PostgreSQL casts values of other types, like a number for a text."""
COPY_ROWS = 1_000
"""The rows that are built at a time, while the server reads the ones before."""
NOT_ADMITTED = ("does not exist", "authentication failed", "pg_hba.conf", "not permitted to log in")
"""Texts of refused connections; the driver gives no code for them."""

Staged = tuple[int, Change, str]
"""A line of the temporary table: its state (`ROW`, `GONE` or `NULL_KEY`), its change, and its JSON."""


class Postgres:
    """A table in PostgreSQL:

    ``hw.sink.Postgres("postgresql://shop@db/shop")``; its name is the source's unless given.

    With ``history`` every version of a row stays, with ``valid_from`` and ``valid_to`` (null in the
    current one). ``columns`` are those of a real-time view, which has no result that names them:
    ``{"country": "STRING", "total": "DOUBLE"}``.
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

    def check(self, feed: SinkFeed) -> None:
        check_postgres(f"sink {feed.sink!r}", self.url)
        table_layout(feed)
        check_table(feed, self.table or feed.topic)
        if self.history:
            check_history(feed)

    def open(self, feed: SinkFeed) -> "PostgresStore":
        self.check(feed)
        layout = table_layout(feed)
        sql = statements(layout, self.schema, self.table or feed.topic, history=self.history)
        return PostgresStore(self.url, layout, sql)


class PostgresStore:
    """One sink's rows in a table.

    One thread calls it; after a lost connection the next call connects again.
    """

    def __init__(self, url: str, layout: TableLayout, sql: Statements, clock: Clock | None = None) -> None:
        self._url = url
        self._layout = layout
        self._sql = sql
        self._name = {"sink": layout.feed.sink, "topic": layout.feed.topic}
        self._read = row_reader(staged(layout), WIRE)
        self._clock = clock or SystemClock()
        self._claims = Claims(layout.feed.sink)
        self._begun_ms: dict[int, int] = {}
        self._connection: psycopg.Connection[Any] | None = None
        with self._transaction():
            pass

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        now_ms = self._clock.now_ms()
        with self._transaction() as cursor:
            self._sql.check_format(cursor)  # another process may have migrated the tables since
            cursor.execute(self._sql.claim, self._name | {"partitions": sorted(partitions)})
            rows = cursor.fetchall()
        self._begun_ms |= {partition: now_ms if offset is None else 0 for partition, offset, _ in rows}
        return self._claims.take({partition: _state(offset, claim) for partition, offset, claim in rows})

    def apply(self, batch: Batch) -> None:
        try:
            self._apply(batch)
        except psycopg.Error as error:
            self._blame(batch.changes, error)

    def reset(self) -> None:
        with self._transaction() as cursor:
            for statement in self._sql.reset:
                cursor.execute(statement, self._name)

    def origin(self) -> str:
        with self._transaction() as cursor:
            row = cursor.execute(self._sql.origin, self._name).fetchone()
        return str(row[0]) if row else ""

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
            # Read without a lock first: only our own claim may have moved the offsets.
            self._check(cursor, batch, self._sql.held)
            changes = self._claims.new_changes(batch)
            chosen = self._stage(cursor, changes)
            self._check(cursor, batch, self._sql.locked)
            for statement in chosen:
                cursor.execute(statement)
            times = complete_ms(batch, changes, self._begun_ms, self._clock.now_ms())
            offsets = {p: max(upto, self._claims.offset(p)) for p, upto in batch.upto.items()}
            parameters = {
                "partitions": list(offsets),
                "offsets": list(offsets.values()),
                "times": [times[partition] for partition in offsets],
            }
            cursor.execute(self._sql.move, self._name | parameters)
        self._claims.advance(offsets)

    def _check(self, cursor: Any, batch: Batch, query: str) -> None:
        """Superseded unless the batch's partitions are ours, and as we left them."""
        cursor.execute(query, self._name | {"partitions": list(batch.upto)})
        stored = {partition: _state(offset, claim) for partition, offset, claim in cursor}
        for partition in batch.upto:
            self._claims.check(partition, stored.get(partition, PartitionState()))

    def _stage(self, cursor: Any, changes: Sequence[Change]) -> list[str]:
        """Copies changes into the temporary table. Returns the statements that write them from there."""
        staged_lines, chosen = self._staged(changes)
        uncast: list[tuple[Any, ...]] = []
        if staged_lines:
            with cursor.copy(self._sql.copy) as copy:
                for first in range(0, len(staged_lines), COPY_ROWS):
                    copy.write(lines(self._rows(staged_lines[first : first + COPY_ROWS], uncast)))
        if uncast:
            arrays = map(list, zip(*uncast, strict=True))
            cursor.execute(self._sql.cast, dict(zip((*self._sql.lead, "value"), arrays, strict=True)))
        return chosen

    def _rows(self, staged_lines: Sequence[Staged], uncast: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Lines as rows of the temporary table; ``uncast`` gets those that PostgreSQL has to cast."""
        rows: list[tuple[Any, ...]] = []
        read, width = self._read, len(self._sql.lead)
        for state, change, value in staged_lines:
            lead = (state, change.partition, change.offset, change.timestamp_ms)[:width]
            try:
                rows.append((*lead, *read(value)))
            except msgspec.MsgspecError:
                uncast.append((*lead, value))
        return rows

    def _staged(self, changes: Sequence[Change]) -> tuple[list[Staged], list[str]]:
        """The lines to stage for changes, and the statements that write them."""
        layout, sql = self._layout, self._sql
        if layout.feed.append:
            return [(ROW, c, c.value) for c in changes if c.value is not None], [sql.upsert]
        if sql.close:
            versions = [(GONE, c, self._key(c)) if c.value is None else (ROW, c, c.value) for c in changes]
            return versions, [sql.close, sql.upsert]
        rows, gone, null = [], [], []
        for row in newest_changes(changes).values():
            change = row.change
            if change.value is None or (row.was_deleted and layout.feed.versioned):
                gone.append((GONE, change, self._key(change)))
            if change.value is not None:
                rows.append((ROW, change, change.value))
            if layout.has_null_key(change):
                null.append((NULL_KEY, change, self._key(change)))
        chosen = [sql.delete] * bool(gone) + [sql.delete_null] * bool(null) + [sql.upsert] * bool(rows)
        return [*rows, *gone, *null], chosen

    def _key(self, change: Change) -> str:
        """A row of only its key, as JSON."""
        layout = self._layout
        windows = set(layout.starts.values())
        values = zip(layout.feed.key, layout.key_values(change), strict=True)
        row = {name: {"start": value} if name in windows else value for name, value in values}
        return msgspec.json.encode(row).decode()

    def _blame(self, changes: Sequence[Change], error: psycopg.Error) -> None:
        """Halves a refused batch until one record is left that is refused alone: Poison."""
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
        refusal = self._refused(suspects) if suspects else None
        if refusal is None:  # the cause was another one, and has passed
            raise UnavailableError(f"PostgreSQL table {self._sql.table}", got=one_line(error)) from error
        first = suspects[0]
        raise Poison(first.partition, first.offset, f"PostgreSQL: {one_line(refusal)}") from refusal

    def _refused(self, changes: Sequence[Change]) -> psycopg.Error | None:
        """Writes changes and rolls back. Returns the error if PostgreSQL refuses them."""
        try:
            with self._transaction() as cursor:
                for statement in self._stage(cursor, changes):
                    cursor.execute(statement)
                raise _RollbackError
        except _RollbackError:
            return None
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in RECORD_FAULTS:
                raise self._translated(error) from error
            return error

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Faults of a record are raised unchanged; all others are translated."""
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

    def _translated(self, error: psycopg.Error) -> UnavailableError | UsageError:
        state = error.sqlstate or ""
        refused = not state and any(words in str(error) for words in NOT_ADMITTED)
        if state[:2] in USAGE_FAULTS or refused or isinstance(error, psycopg.ProgrammingError):
            return UsageError(f"PostgreSQL table {self._sql.table}: {one_line(error)}")
        return UnavailableError(f"PostgreSQL table {self._sql.table}", got=one_line(error))


class _RollbackError(Exception):
    """Ends a transaction that only tries something."""


def _state(offset: int | None, claim: int) -> PartitionState:
    return PartitionState(claim, NOTHING if offset is None else offset)
