"""Delta: a table in a lake, in the open format that Spark, DuckDB, Trino and others read.

A commit of a Delta table carries application transactions, a number for each application id. Two of them belong to a
partition: ``headwater.SINK.N`` is its offset and ``headwater.SINK.N.claim`` its claim. A batch is one commit with both of
each of its partitions, and the table refuses it when another commit has written one of them since we looked: so a batch
takes effect once, and a holder that was superseded not at all, without a lock. ``headwater.SINK.format`` is the format of all this; claims write it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headwater.address import options, shown
from headwater.change import Change
from headwater.errors import Away, UsageError, one_line
from headwater.formats import DELTA_SINK
from headwater.sink.arrow import Arrow
from headwater.sink.columns import kind
from headwater.sink.driver import driver
from headwater.sink.rows import Newest, check_offset, fresh, moved, newest
from headwater.sink.store import Batch, Feed, Store, Superseded

__all__ = ["Delta"]

HIDDEN = {"_key": "STRING", "_version": "BIGINT"}
"""Columns beside the feed's: the record's key, by which rows are met, and the version of a row that has one."""
MARKS = {"_deleted": "BOOLEAN", "_anew": "BOOLEAN"}
"""What a change says to the merge alone."""
APPENDED = {"_partition": "INT", "_offset": "BIGINT"}
"""Where a record stands that is a row of its own."""
TRIES = 20
"""So often a batch is tried when others commit to the table at the same time."""

T = TypeVar("T")


class Delta:
    """``hw.sink.Delta("./lake", partition_by=["country"])``: the table is in ``PATH/TOPIC``; ``options`` are those of its object store.

    Small files are made into larger ones every ``compact_every`` commits (0: never). Files that no version needs any more are
    removed only when ``vacuum_hours`` says after how long.
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
        """Where it is, for messages."""
        return shown(self._path) if "://" in self._path else self._path

    def place(self, topic: str) -> str:
        return f"{self.shown if '://' in self._path else Path(self._path).resolve()}/{topic}"

    def check(self, feed: Feed) -> None:
        if "://" in self._path:
            options(f"sink {feed.sink}", self._path, hint="options of the store are options= of Delta")
        for notation in feed.columns.values():
            kind(notation)
        if missing := [name for name in self.partition_by if name not in feed.columns]:
            raise UsageError(
                f"sink {feed.sink}: no such column to partition by",
                got=", ".join(missing),
                expected="of " + ", ".join(feed.columns),
            )

    def open(self, feed: Feed) -> Store:
        self.check(feed)
        return _Store(self, f"{self._path}/{feed.topic}", feed)


class _Store:
    """One table and its offsets."""

    def __init__(self, target: Delta, path: str, feed: Feed) -> None:
        self._library = driver("deltalake", "warehouse")
        self._target = target
        self._feed = feed
        self._where = f"{target.shown}/{feed.topic}"
        hidden = APPENDED if feed.append else HIDDEN
        self._stored = [*feed.columns, *hidden]
        self._arrow = Arrow(feed.columns, hidden if feed.append else hidden | MARKS)
        self._claims: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._commits = 0
        self._failed = self._library.exceptions.CommitFailedError
        self._path = path
        self._table = self._asked(lambda: self._opened(path))

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Opens the table anew: one that was restored from an older copy cannot be brought up to date, the library says."""
        numbers = sorted(partitions)
        self._table = self._asked(lambda: self._opened(self._path))

        def take() -> dict[int, tuple[int, int]]:
            held = {number: self._state(number) for number in numbers}
            states = {number: (claim + 1, offset) for number, (claim, offset) in held.items()}
            self._commit_alone(states, max(self._known(), *(number + 1 for number in numbers)))
            return held

        for number, (claim, offset) in self._again(take).items():
            self._claims[number] = claim + 1
            self._offsets.pop(number, None)
            if offset >= 0:
                self._offsets[number] = offset
        return {number: self._offsets[number] for number in numbers if number in self._offsets}

    def apply(self, batch: Batch) -> None:
        changes = fresh(batch, self._offsets)
        upto = moved(batch, self._offsets)
        if self._feed.append:
            rows = self._arrow.table(changes, _places)
        else:
            wanted = newest(changes)
            rows = self._arrow.table([row.change for row in wanted.values()], partial(_marks, wanted))
        states = {
            number: (self._claims.get(number, 0), upto.get(number, self._offsets.get(number, -1)))
            for number in batch.upto
        }
        self._again(lambda: self._write(rows, states))
        self._offsets |= upto
        self._commits += 1
        if self._target.compact_every and self._commits % self._target.compact_every == 0:
            self._compact()

    def reset(self) -> None:
        def forget() -> None:
            states = {number: (self._state(number)[0] + 1, -1) for number in range(self._known())}
            nothing = self._arrow.schema.empty_table().select(self._stored)
            self._library.write_deltalake(
                self._table,
                nothing,
                mode="overwrite",
                commit_properties=self._properties(states),
            )

        self._again(forget)
        self._claims.clear()
        self._offsets.clear()

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _write(self, rows: Any, states: Mapping[int, tuple[int, int]]) -> None:
        """One commit with the rows; the claims are those of the version that it builds on.

        A store of objects may take a commit and report that it failed. The application transactions in the table say what is true: claim and
        offset are those that the commit carried, and so the rows are there.
        """
        seen = {number: self._state(number) for number in states}
        for number, (claim, _) in states.items():
            if seen[number][0] != claim:
                raise Superseded(
                    f"sink {self._feed.sink}: partition {number} was taken over by another process"
                )
        if seen == states:
            return  # a commit of ours that was reported as failed, or nothing has moved
        for number, (_, offset) in seen.items():
            check_offset(self._feed.sink, number, offset, self._offsets.get(number))
        if self._feed.append:
            if rows.num_rows:
                self._library.write_deltalake(
                    self._table, rows, mode="append", commit_properties=self._properties(states)
                )
                return
        elif rows.num_rows and self._merge(rows, states):
            return
        self._commit_alone(states)

    def _merge(self, rows: Any, states: Mapping[int, tuple[int, int]]) -> bool:
        """Whether the merge has found anything to change: without that it commits nothing."""
        before = self._table.version()
        values = {f"`{name}`": f"s.`{name}`" for name in self._stored}
        newer = "s._anew OR s._version IS NULL OR t._version IS NULL OR s._version >= t._version"
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

    def _commit_alone(self, states: Mapping[int, tuple[int, int]], known: int = 0) -> None:
        """A commit that moves offsets and claims and no row; ``known`` partitions are there from now on."""
        self._table.create_write_transaction(
            [], "append", self._table.schema(), commit_properties=self._properties(states, known)
        )

    def _compact(self) -> None:
        """Makes small files into larger ones; when another commits meanwhile, the next time will do."""
        try:
            self._table.update_incremental()
            self._table.optimize.compact()
            if self._target.vacuum_hours is not None:
                self._table.vacuum(self._target.vacuum_hours, dry_run=False, enforce_retention_duration=False)
        except (self._library.exceptions.DeltaError, OSError):
            self._commits -= 1

    def _opened(self, path: str) -> Any:
        library = self._library
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
        if table.metadata().name != self._feed.sink:
            raise UsageError(
                f"sink {self._feed.sink}: the table in {self._where} is kept by {table.metadata().name or 'somebody else'}",
                hint="give it another path",
            )
        DELTA_SINK.check(
            table.transaction_version(self._app_id("format")) or 1, f"the table in {self._where}"
        )
        self._migrate(table, wanted)
        return table

    def _migrate(self, table: Any, wanted: Any) -> None:
        """Adds columns that are new; one whose type has changed cannot be kept."""
        there = {field.name: field for field in table.schema().fields}
        for field in wanted.fields:
            if field.name in there and there[field.name].type != field.type:
                raise UsageError(
                    f"sink {self._feed.sink}: column {field.name!r} of the table in {self._where} has another type",
                    got=str(field.type),
                    expected=str(there[field.name].type),
                    hint="give the view another name for it, or the sink another path",
                )
        if added := [field for field in wanted.fields if field.name not in there]:
            table.alter.add_columns(added)

    def _state(self, number: int) -> tuple[int, int]:
        """Claim and offset of a partition; an offset of -1 says that there is none."""
        claim = self._table.transaction_version(self._app_id(number) + ".claim")
        offset = self._table.transaction_version(self._app_id(number))
        return claim or 0, -1 if offset is None else offset

    def _known(self) -> int:
        """The number of partitions, as far as one was ever claimed."""
        return int(self._table.transaction_version(self._app_id("partitions")) or 0)

    def _properties(self, states: Mapping[int, tuple[int, int]], known: int = 0) -> Any:
        transaction = self._library.Transaction
        about = {"partitions": known, "format": DELTA_SINK.newest} if known else {}
        found = [transaction(self._app_id(name), number) for name, number in about.items()]
        for number, (claim, offset) in states.items():
            found += [
                transaction(self._app_id(number), offset),
                transaction(self._app_id(number) + ".claim", claim),
            ]
        return self._library.CommitProperties(app_transactions=found)

    def _app_id(self, number: int | str) -> str:
        return f"headwater.{self._feed.sink}.{number}"

    def _again(self, act: Callable[[], T]) -> T:
        """Acts on the newest version of the table, and again when another has committed to it meanwhile."""

        def attempt() -> T:
            for _ in range(TRIES):
                self._table.update_incremental()
                try:
                    return act()
                except self._failed as error:
                    failure = error
            raise Away(f"the table in {self._where} is changed by others all the time", got=one_line(failure))

        return self._asked(attempt)

    def _asked(self, act: Callable[[], T]) -> T:
        errors = self._library.exceptions
        try:
            return act()
        except errors.SchemaMismatchError as error:
            raise UsageError(f"the table in {self._where} has other columns", got=one_line(error)) from error
        except (errors.DeltaError, OSError) as error:
            raise Away(f"the table in {self._where} cannot be reached", got=one_line(error)) from error


def _places(changes: Sequence[Change]) -> list[list[Any]]:
    """The columns of `APPENDED`."""
    return [[each.partition for each in changes], [each.offset for each in changes]]


def _marks(wanted: Mapping[str, Newest], changes: Sequence[Change]) -> list[list[Any]]:
    """The columns of `HIDDEN` and `MARKS`."""
    return [
        [each.key for each in changes],
        [each.version for each in changes],
        [each.value is None for each in changes],
        [wanted[each.key].anew for each in changes],
    ]
