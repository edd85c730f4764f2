"""Parquet: the changes of a topic as plain files, for any program that reads a folder of them.

A Parquet file cannot be changed, so no row is ever replaced: the files hold every change that was read, in
the order of the log. For a keyed view, the newest change of a key (the greatest ``_partition``,
``_offset``) is its row, unless it has ``_deleted``.

    PATH/TOPIC/part-PARTITION-FROM-UPTO.parquet   the changes of a partition from one offset up to another
    PATH/TOPIC/_headwater/SINK.json               claims, and offsets where only markers followed a file
    PATH/TOPIC/_headwater/SINK.lock               locked by the kernel while files are renamed

A file gets its final name when it is complete and synced, and the name has the offset: rows and offset are
one step.
"""

import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headwater.address import check_local
from headwater.change import Change
from headwater.clock import SystemClock
from headwater.durable import replace_file, sync_folder
from headwater.errors import StorageError
from headwater.formats import PARQUET_SINK
from headwater.sink.claims import NOTHING, Claims, PartitionState
from headwater.sink.store import Batch, SinkFeed, Store, Superseded
from headwater.sink.stores.arrow_rows import ArrowTables
from headwater.sink.stores.local_folder import LocalFolder, locked, translated
from headwater.sink.stores.optional_library import import_library
from headwater.sink.stores.spark_types import check_columns

__all__ = ["Parquet"]

NAME = re.compile(r"part-(\d+)-(\d+)-(\d+)\.parquet")
HIDDEN = {
    "_key": "STRING",
    "_deleted": "BOOLEAN",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_version": "BIGINT",
}
LOCK_S = 10.0
LEFTOVER_S = 86_400


class Parquet(LocalFolder):
    """Files in ``PATH/TOPIC``: ``hw.sink.Parquet("./lake")``.

    All writing processes must see the locks of the disk.
    """

    kind = "parquet"

    def __init__(self, path: str | Path, *, compression: str = "zstd") -> None:
        super().__init__(path)
        self._compression = compression

    def check(self, feed: SinkFeed) -> None:
        check_local(f"sink {feed.sink}", self._path, hint="hw.sink.Delta writes to object stores")
        check_columns(feed)

    def open(self, feed: SinkFeed) -> Store:
        self.check(feed)
        return _ParquetStore(self._path / feed.topic, feed, self._compression)


class _FileState(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is stored next to the files, by partition.

    Format 1 is left out of the file: its first readers refuse unknown fields.
    """

    claims: dict[int, int] = {}
    offsets: dict[int, int] = {}
    resetting: bool = False
    format: int = 1


class _ParquetStore:
    """The files of one topic.

    A batch's partitions are committed one after the other, each with its offset.
    """

    def __init__(self, folder: Path, feed: SinkFeed, compression: str) -> None:
        self._library = import_library("pyarrow.parquet", "warehouse")
        self._folder = folder
        self._what = f"the files in {folder}"
        self._own = folder / "_headwater"
        self._sink = feed.sink
        self._compression = compression
        self._arrow = ArrowTables(feed.columns, HIDDEN)
        self._clock = SystemClock()
        self._claims = Claims(feed.sink)
        self._last: dict[int, Path] = {}
        """For partitions whose offset is in a file's name: that file."""
        with translated(self._what):
            self._own.mkdir(parents=True, exist_ok=True)

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        numbers = sorted(partitions)
        with translated(self._what), self._locked():
            state = self._state()
            if state.resetting:
                self._remove_files(state)
            self._remove_leftovers()
            for number in numbers:
                state.claims[number] = state.claims.get(number, 0) + 1
            self._save(state)
            offsets, files = self._reached(state)
        for number in numbers:
            self._last.pop(number, None)
            if number in files:
                self._last[number] = files[number]
        return self._claims.take(
            {number: PartitionState(state.claims[number], offsets.get(number, NOTHING)) for number in numbers}
        )

    def apply(self, batch: Batch) -> None:
        changes = self._claims.new_changes(batch)
        offsets = self._claims.new_offsets(batch)
        tables = {
            number: self._arrow.table([c for c in changes if c.partition == number], _hidden)
            for number in sorted({change.partition for change in changes})
        }
        with translated(self._what):
            written = {number: self._write(number, table) for number, table in tables.items()}
            with self._locked():
                state = self._state()
                try:
                    self._check(batch.upto, state)
                except Superseded:
                    for path in written.values():
                        path.unlink(missing_ok=True)
                    raise
                for number, path in written.items():
                    name = _name(number, max(self._claims.offset(number), 0), offsets[number])
                    self._last[number] = path.rename(self._folder / name)
                sync_folder(self._folder)
                passed = {number: offset for number, offset in offsets.items() if number not in written}
                if passed:
                    state.offsets |= passed
                    self._save(state)
                for number in passed:
                    self._last.pop(number, None)
        self._claims.advance(offsets)

    def reset(self) -> None:
        with translated(self._what), self._locked():
            state = self._state()
            claims = {number: claim + 1 for number, claim in state.claims.items()}
            state = _FileState(claims, {}, resetting=True, format=PARQUET_SINK.newest)
            self._save(state)
            self._remove_files(state)
            self._save(state)
        self._claims.clear()
        self._last.clear()

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _write(self, number: int, table: Any) -> Path:
        """A complete file under a random name: processes in containers may share a number.

        A file that a crash leaves under such a name is never read.
        """
        path = self._own / f"{self._sink}.{number}.{secrets.token_hex(8)}.tmp"
        self._library.write_table(table, path, compression=self._compression)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        return path

    def _reached(self, state: _FileState) -> tuple[dict[int, int], dict[int, Path]]:
        """The offset of each partition, and the file that has it in its name, if one does.

        The state has the offset if only markers followed the last file.
        """
        offsets, files = dict(state.offsets), dict[int, Path]()
        for path in self._folder.iterdir():
            if match := NAME.fullmatch(path.name):
                number, upto = int(match[1]), int(match[3])
                if upto > offsets.get(number, NOTHING):
                    offsets[number], files[number] = upto, path
        return offsets, files

    def _check(self, numbers: Collection[int], state: _FileState) -> None:
        """Superseded unless every partition is ours, and as we left it.

        Only the one file that proves it is looked for: a folder may have many.
        """
        for number in numbers:
            last, left = self._last.get(number), self._claims.offset(number)
            if last is None:
                stored = state.offsets.get(number, NOTHING)
            else:
                stored = left if last.exists() else NOTHING
            self._claims.check(number, PartitionState(state.claims.get(number, 0), stored))

    def _remove_files(self, state: _FileState) -> None:
        for path in self._folder.iterdir():
            if NAME.fullmatch(path.name):
                path.unlink()
        sync_folder(self._folder)
        state.resetting = False

    def _remove_leftovers(self) -> None:
        """Removes files of crashed processes: no running process writes one file for that long."""
        oldest = self._clock.now_ms() / 1000 - LEFTOVER_S
        for path in self._own.glob(f"{self._sink}.*.tmp"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _state(self) -> _FileState:
        path = self._own / f"{self._sink}.json"
        try:
            return PARQUET_SINK.decode(path.read_bytes(), _FileState, f"file {path}")
        except FileNotFoundError:
            return _FileState({}, {}, format=PARQUET_SINK.newest)
        except msgspec.MsgspecError as error:
            raise StorageError(f"{path} cannot be read", got=str(error)) from error

    def _save(self, state: _FileState) -> None:
        replace_file(self._own / f"{self._sink}.json", msgspec.json.encode(state))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(self._own / f"{self._sink}.lock", self._what, LOCK_S):
            yield


def _name(number: int, begin: int, upto: int) -> str:
    return f"part-{number:05}-{begin:020}-{upto:020}.parquet"


def _hidden(changes: Sequence[Change]) -> list[list[Any]]:
    """The columns of `HIDDEN`."""
    return [
        [change.key for change in changes],
        [change.value is None for change in changes],
        [change.partition for change in changes],
        [change.offset for change in changes],
        [change.timestamp_ms * 1000 for change in changes],
        [change.version for change in changes],
    ]
