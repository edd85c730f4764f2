"""Delta: a table in a lake, in the open format that Spark, DuckDB, Trino and others read.

A commit of a Delta table carries application transactions: a number for each application id. Each
partition has two ids: ``headwater.SINK.N`` has its offset and ``headwater.SINK.N.claim`` its claim. A
batch is one commit with both numbers of each of its partitions. The table refuses the commit if another
one has written one of these ids since we read it. So a batch takes effect once, and not at all if its
process was superseded, without a lock. ``headwater.SINK.format`` is the format of all this; claims write
it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headwater.address import options, shown
from headwater.change import Change
from headwater.errors import UnavailableError, UsageError, one_line
from headwater.formats import DELTA_SINK
from headwater.sink.batch_rows import NewestChange, newest_changes
from headwater.sink.claims import NOTHING, Claims, PartitionState, superseded
from headwater.sink.store import Batch, SinkFeed, Store
from headwater.sink.stores.arrow_rows import ArrowTables
from headwater.sink.stores.optional_library import import_library
from headwater.sink.stores.spark_types import check_columns

__all__ = ["Delta"]

HIDDEN = {"_key": "STRING", "_version": "BIGINT"}
"""Further columns of the table: the record's key, which identifies the row, and the version of a row that
has one."""
MARKS = {"_deleted": "BOOLEAN", "_was_deleted": "BOOLEAN"}
"""Columns of the changes that only the merge uses; the table does not have them."""
APPENDED = {"_partition": "INT", "_offset": "BIGINT"}
"""Further columns of a table in which each record is a row of its own: its place in the log."""
TRIES = 20
"""How often a batch is tried while others commit to the table at the same time."""

T = TypeVar("T")


class Delta:
    """A table in ``PATH/TOPIC``: ``hw.sink.Delta("./lake", partition_by=["country"])``.

    ``options`` are those of its object store. Small files are merged every ``compact_every`` commits (0:
    never). Files that no version needs any more are removed only if ``vacuum_hours`` says after how long.
    """

    kind = "delta"

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: Sequence[str] = (),
        compact_every: int = 100,
        vacuum_hours: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._path = str(path).rstrip("/")
        self.partition_by = tuple(partition_by)
        self.compact_every = compact_every
        self.vacuum_hours = vacuum_hours
        self.options = dict(options or {})

    def __repr__(self) -> str:
        return f"Delta({self.shown!r})"

    @property
    def shown(self) -> str:
        """The path for messages, without secrets."""
        return shown(self._path) if "://" in self._path else self._path

    def place(self, topic: str) -> str:
        return f"{self.shown if '://' in self._path else Path(self._path).resolve()}/{topic}"

    def check(self, feed: SinkFeed) -> None:
        if "://" in self._path:
            options(f"sink {feed.sink}", self._path, hint="options of the object store are options= of Delta")
        check_columns(feed, self.partition_by, "to partition by")

    def open(self, feed: SinkFeed) -> Store:
        self.check(feed)
        return _DeltaStore(self, f"{self._path}/{feed.topic}", feed)


class _DeltaStore:
    """One table and its offsets."""

    def __init__(self, target: Delta, path: str, feed: SinkFeed) -> None:
        self._library = import_library("deltalake", "warehouse")
        self._target = target
        self._feed = feed
        self._where = f"{target.shown}/{feed.topic}"
        hidden = APPENDED if feed.append else HIDDEN
        self._stored = [*feed.columns, *hidden]
        self._arrow = ArrowTables(feed.columns, hidden if feed.append else hidden | MARKS)
        self._claims = Claims(feed.sink)
        self._commits = 0
        self._failed = self._library.exceptions.CommitFailedError
        self._path = path
        self._table = self._translated(self._open)

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Opens the table again: the library cannot update one that was restored from an older copy."""
        numbers = sorted(partitions)
        self._table = self._translated(self._open)

        def take() -> dict[int, PartitionState]:
            states = {number: self._state(number).claimed() for number in numbers}
            count = max(self._partition_count(), *(number + 1 for number in numbers))
            self._commit_alone(states, count)
            return states

        return self._claims.take(self._retry(take))

    def apply(self, batch: Batch) -> None:
        changes = self._claims.new_changes(batch)
        offsets = self._claims.new_offsets(batch)
        if self._feed.append:
            rows = self._arrow.table(changes, _places)
        else:
            by_key = newest_changes(changes)
            rows = self._arrow.table([row.change for row in by_key.values()], partial(_marks, by_key))
        states = {
            number: PartitionState(
                self._claims.claim(number), offsets.get(number, self._claims.offset(number))
            )
            for number in batch.upto
        }
        self._retry(lambda: self._write(rows, states))
        self._claims.advance(offsets)
        self._commits += 1
        if self._target.compact_every and self._commits % self._target.compact_every == 0:
            self._compact()

    def reset(self) -> None:
        def forget() -> None:
            states = {number: self._state(number).reset() for number in range(self._partition_count())}
            nothing = self._arrow.schema.empty_table().select(self._stored)
            self._library.write_deltalake(
                self._table,
                nothing,
                mode="overwrite",
                commit_properties=self._properties(states),
            )

        self._retry(forget)
        self._claims.clear()

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _write(self, rows: Any, states: Mapping[int, PartitionState]) -> None:
        """One commit with the rows, if the claims in the table's newest version are ours.

        An object store may take a commit and report that it failed. The application transactions in the
        table decide: if they have the claim and offset of the commit, its rows are there.
        """
        stored = {number: self._state(number) for number in states}
        for number, state in states.items():
            if stored[number].claim != state.claim:
                raise superseded(self._feed.sink, number)
        if stored == states:
            return  # our own commit was reported as failed, or no offset moves
        for number, state in stored.items():
            self._claims.check_offset(number, state.offset)
        if self._feed.append:
            if rows.num_rows:
                self._library.write_deltalake(
                    self._table, rows, mode="append", commit_properties=self._properties(states)
                )
                return
        elif rows.num_rows and self._merge(rows, states):
            return
        self._commit_alone(states)

    def _merge(self, rows: Any, states: Mapping[int, PartitionState]) -> bool:
        """Merges changes into the table. False if there was nothing to change: then it has not committed."""
        before = self._table.version()
        values = {f"`{name}`": f"s.`{name}`" for name in self._stored}
        newer = "s._was_deleted OR s._version IS NULL OR t._version IS NULL OR s._version >= t._version"
        merge = self._table.merge(
            rows,
            "t._key = s._key",
            source_alias="s",
            target_alias="t",
            commit_properties=self._properties(states),
        )
        (
            merge.when_matched_delete("s._deleted")
            .when_matched_update(values, predicate=newer)
            .when_not_matched_insert(values, predicate="NOT s._deleted")
            .execute()
        )
        return bool(self._table.version() != before)

    def _commit_alone(self, states: Mapping[int, PartitionState], partitions: int = 0) -> None:
        """A commit that moves offsets and claims but no row; ``partitions`` is their number from now on."""
        self._table.create_write_transaction(
            [], "append", self._table.schema(), commit_properties=self._properties(states, partitions)
        )

    def _compact(self) -> None:
        """Merges small files. If another process commits at the same time, the next attempt will do."""
        try:
            self._table.update_incremental()
            self._table.optimize.compact()
            if self._target.vacuum_hours is not None:
                self._table.vacuum(self._target.vacuum_hours, dry_run=False, enforce_retention_duration=False)
        except (self._library.exceptions.DeltaError, OSError):
            self._commits -= 1

    def _open(self) -> Any:
        library, path = self._library, self._path
        options = self._target.options or None
        wanted = library.Schema.from_arrow(self._arrow.schema.empty_table().select(self._stored).schema)
        if not library.DeltaTable.is_deltatable(path, options):
            return library.DeltaTable.create(
                path,
                wanted,
                mode="ignore",
                partition_by=list(self._target.partition_by) or None,
                name=self._feed.sink,
                storage_options=options,
            )
        table = library.DeltaTable(path, storage_options=options)
        owner = table.metadata().name
        if owner != self._feed.sink:
            raise UsageError(
                f"sink {self._feed.sink}: the table in {self._where} belongs to {owner or 'no sink'}",
                hint="give the sink another path",
            )
        DELTA_SINK.check(
            table.transaction_version(self._app_id("format")) or 1, f"the table in {self._where}"
        )
        self._migrate(table, wanted)
        return table

    def _migrate(self, table: Any, wanted: Any) -> None:
        """Adds new columns; a column whose type has changed is a UsageError."""
        existing = {field.name: field for field in table.schema().fields}
        for field in wanted.fields:
            if field.name in existing and existing[field.name].type != field.type:
                raise UsageError(
                    f"sink {self._feed.sink}: column {field.name!r} of the table in {self._where}"
                    " has another type",
                    got=str(field.type),
                    expected=str(existing[field.name].type),
                    hint="give the column another name in the view, or the sink another path",
                )
        if added := [field for field in wanted.fields if field.name not in existing]:
            table.alter.add_columns(added)

    def _state(self, number: int) -> PartitionState:
        claim = self._table.transaction_version(self._app_id(number) + ".claim")
        offset = self._table.transaction_version(self._app_id(number))
        return PartitionState(claim or 0, NOTHING if offset is None else offset)

    def _partition_count(self) -> int:
        """The number of partitions, up to the last one that was ever claimed."""
        return int(self._table.transaction_version(self._app_id("partitions")) or 0)

    def _properties(self, states: Mapping[int, PartitionState], partitions: int = 0) -> Any:
        transaction = self._library.Transaction
        numbers = {"partitions": partitions, "format": DELTA_SINK.newest} if partitions else {}
        transactions = [transaction(self._app_id(name), number) for name, number in numbers.items()]
        for number, state in states.items():
            transactions += [
                transaction(self._app_id(number), state.offset),
                transaction(self._app_id(number) + ".claim", state.claim),
            ]
        return self._library.CommitProperties(app_transactions=transactions)

    def _app_id(self, number: int | str) -> str:
        return f"headwater.{self._feed.sink}.{number}"

    def _retry(self, act: Callable[[], T]) -> T:
        """Acts on the newest version of the table, again after each conflict with another commit."""

        def attempt() -> T:
            for _ in range(TRIES):
                self._table.update_incremental()
                try:
                    return act()
                except self._failed as error:
                    failure = error
            raise UnavailableError(
                f"the table in {self._where} is being changed by others all the time", got=one_line(failure)
            )

        return self._translated(attempt)

    def _translated(self, act: Callable[[], T]) -> T:
        errors = self._library.exceptions
        try:
            return act()
        except errors.SchemaMismatchError as error:
            raise UsageError(f"the table in {self._where} has other columns", got=one_line(error)) from error
        except (errors.DeltaError, OSError) as error:
            raise UnavailableError(
                f"the table in {self._where} cannot be reached", got=one_line(error)
            ) from error


def _places(changes: Sequence[Change]) -> list[list[Any]]:
    """The columns of `APPENDED`."""
    return [[change.partition for change in changes], [change.offset for change in changes]]


def _marks(by_key: Mapping[str, NewestChange], changes: Sequence[Change]) -> list[list[Any]]:
    """The columns of `HIDDEN` and `MARKS`."""
    return [
        [change.key for change in changes],
        [change.version for change in changes],
        [change.value is None for change in changes],
        [by_key[change.key].was_deleted for change in changes],
    ]
