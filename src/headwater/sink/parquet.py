"""Parquet: the changes of a topic as plain files, for whatever reads a folder of them.

A Parquet file cannot be changed, so nothing is replaced here: the files hold every change that was read, in the order of the log, and
for a keyed view the newest of a key (the greatest ``_partition``, ``_offset``) is its row, unless it says ``_deleted``.

    PATH/TOPIC/part-PARTITION-FROM-UPTO.parquet     the changes of a partition from an offset up to another
    PATH/TOPIC/_headwater/SINK.json                 claims, and offsets behind which only markers were passed
    PATH/TOPIC/_headwater/SINK.lock                 locked by the kernel while files get their names

A file gets its name when it is complete and synced, and its name is the offset: so rows and offset are one step.
"""

import fcntl
import os
import re
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headwater.address import check_local
from headwater.change import Change
from headwater.clock import SystemClock
from headwater.errors import Away, StorageError
from headwater.formats import PARQUET_SINK
from headwater.sink.arrow import Arrow
from headwater.sink.columns import kind
from headwater.sink.driver import driver
from headwater.sink.folder import sync
from headwater.sink.rows import check_offset, fresh, moved
from headwater.sink.store import Batch, Feed, Store, Superseded

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
RETRY_S = 0.02
LEFTOVER_S = 86_400


class Parquet:
    """``hw.sink.Parquet("./lake")``: files in ``PATH/TOPIC``, on a disk whose locks all writing processes see."""

    kind = "parquet"

    def __init__(self, path: str | Path, *, compression: str = "zstd") -> None:
        self._path = Path(path)
        self._compression = compression

    def __repr__(self) -> str:
        return f"Parquet({str(self._path)!r})"

    def place(self, topic: str) -> str:
        return str((self._path / topic).resolve())

    def check(self, feed: Feed) -> None:
        check_local(f"sink {feed.sink}", self._path, hint="hw.sink.Delta writes to stores of objects")
        for notation in feed.columns.values():
            kind(notation)

    def open(self, feed: Feed) -> Store:
        self.check(feed)
        return _Store(self._path / feed.topic, feed, self._compression)


class State(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What stands beside the files. By partition, as text: JSON has no other keys. Format 1 is not written: the first readers of it refuse unknown fields."""

    claims: dict[int, int] = {}
    offsets: dict[int, int] = {}
    resetting: bool = False
    format: int = 1


class _Store:
    """The files of one topic. Those of a batch's partitions get their names one after the other, each with its offset."""

    def __init__(self, folder: Path, feed: Feed, compression: str) -> None:
        self._library = driver("pyarrow.parquet", "warehouse")
        self._folder = folder
        self._own = folder / "_headwater"
        self._feed = feed
        self._compression = compression
        self._arrow = Arrow(feed.columns, HIDDEN)
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._claims: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._last: dict[int, Path] = {}
        """Of partitions whose offset is a file's name, that file."""
        with self._translated():
            self._own.mkdir(parents=True, exist_ok=True)

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        with self._translated(), self._locked():
            state = self._state()
            if state.resetting:
                self._remove_files(state)
            self._remove_leftovers()
            for number in partitions:
                state.claims[number] = self._claims[number] = state.claims.get(number, 0) + 1
            self._save(state)
            there, files = self._reached(state)
        for number in partitions:
            self._offsets.pop(number, None)
            self._last.pop(number, None)
        found = {number: there[number] for number in sorted(partitions) if number in there}
        self._offsets |= found
        self._last |= {number: files[number] for number in found if number in files}
        return found

    def apply(self, batch: Batch) -> None:
        changes = fresh(batch, self._offsets)
        upto = moved(batch, self._offsets)
        tables = {
            number: self._arrow.table([each for each in changes if each.partition == number], _hidden)
            for number in sorted({each.partition for each in changes})
        }
        with self._translated():
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
                    name = _name(number, self._offsets.get(number, 0), upto[number])
                    self._last[number] = path.rename(self._folder / name)
                sync(self._folder)
                passed = {number: offset for number, offset in upto.items() if number not in written}
                if passed:
                    state.offsets |= passed
                    self._save(state)
                for number in passed:
                    self._last.pop(number, None)
        self._offsets |= upto

    def reset(self) -> None:
        with self._translated(), self._locked():
            state = self._state()
            claims = {number: claim + 1 for number, claim in state.claims.items()}
            state = State(claims, {}, resetting=True, format=PARQUET_SINK.newest)
            self._save(state)
            self._remove_files(state)
            self._save(state)
        self._claims.clear()
        self._offsets.clear()
        self._last.clear()

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _write(self, number: int, table: Any) -> Path:
        """A complete file under a name of its own, by chance: processes in containers may have one number. One that is left by a crash is never read."""
        path = self._own / f"{self._feed.sink}.{number}.{secrets.token_hex(8)}.tmp"
        self._library.write_table(table, path, compression=self._compression)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        return path

    def _reached(self, state: State) -> tuple[dict[int, int], dict[int, Path]]:
        """The offset of each partition: that of its last file, or one behind it where only markers followed; and those files."""
        found, files = dict(state.offsets), dict[int, Path]()
        for path in self._folder.iterdir():
            if match := NAME.fullmatch(path.name):
                number, upto = int(match[1]), int(match[3])
                if upto > found.get(number, -1):
                    found[number], files[number] = upto, path
        return found, files

    def _check(self, numbers: Collection[int], state: State) -> None:
        """Superseded when a partition is not ours, or does not stand where it was left. The one file is looked for that says it: there may be many."""
        for number in numbers:
            if state.claims.get(number) != self._claims.get(number, -1):
                raise Superseded(
                    f"sink {self._feed.sink}: partition {number} was taken over by another process"
                )
            last, left = self._last.get(number), self._offsets.get(number)
            there = state.offsets.get(number) if last is None else left if last.exists() else None
            check_offset(self._feed.sink, number, there, left)

    def _remove_files(self, state: State) -> None:
        for path in self._folder.iterdir():
            if NAME.fullmatch(path.name):
                path.unlink()
        sync(self._folder)
        state.resetting = False

    def _remove_leftovers(self) -> None:
        """Removes what crashed processes have left; one that has written for so long is none of those that go on."""
        old = self._clock.now_ms() / 1000 - LEFTOVER_S
        for path in self._own.glob(f"{self._feed.sink}.*.tmp"):
            if path.stat().st_mtime < old:
                path.unlink(missing_ok=True)

    def _state(self) -> State:
        path = self._own / f"{self._feed.sink}.json"
        try:
            return PARQUET_SINK.decode(path.read_bytes(), State, f"file {path}")
        except FileNotFoundError:
            return State({}, {}, format=PARQUET_SINK.newest)
        except msgspec.MsgspecError as error:
            raise StorageError(f"{path} cannot be read", got=str(error)) from error

    def _save(self, state: State) -> None:
        path = self._own / f"{self._feed.sink}.json"
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        sync(self._own)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        limit = self._clock.monotonic() + LOCK_S
        with (self._own / f"{self._feed.sink}.lock").open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if self._clock.monotonic() > limit:
                        raise Away(
                            f"the files in {self._folder} are being named by another process",
                            hint="if it hangs, end it",
                        ) from error
                    self._pause.wait(RETRY_S)
            yield

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Away(
                f"the files in {self._folder} cannot be written", got=error.strerror or str(error)
            ) from error


def _name(number: int, begin: int, upto: int) -> str:
    return f"part-{number:05}-{begin:020}-{upto:020}.parquet"


def _hidden(changes: Sequence[Change]) -> list[list[Any]]:
    """The columns of `HIDDEN`."""
    return [
        [each.key for each in changes],
        [each.value is None for each in changes],
        [each.partition for each in changes],
        [each.offset for each in changes],
        [each.timestamp_ms * 1000 for each in changes],
        [each.version for each in changes],
    ]
