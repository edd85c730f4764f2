"""State: one shard's values by key, one version for each batch. DESIGN.md beside it says why it is built so.

The truth is in files that are written once and never changed: a delta for each batch, now and then merged. A **chain**
is the list of files that make a version; a result of the batch protocol names it, and a file that no result
names was never there. So that a task finds its keys without reading the chain, each machine keeps a **copy** of the shard in
LMDB, memory-mapped and open to every worker process, and brings it up to the version it needs with the deltas that are missing.
"""

import hashlib
import os
import shutil
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple, Self, cast

import lmdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from pyarrow import fs, ipc

from headwater.errors import StorageError
from headwater.pipeline.points import passes
from headwater.result import Chain, Chains, File

__all__ = [
    "Place",
    "Shard",
    "Size",
    "Writing",
    "alone",
    "check_size",
    "contents",
    "found_in",
    "names",
    "read_only",
    "remove",
    "size_of",
    "whole_file",
]

ROWS_PER_BATCH = 50_000
READ_BYTES = 16 << 20
"""Files that are larger are checked and read in pieces."""
CHAIN_FILES_MAX = 16
"""Beyond so many files, those that are outweighed by what came after them are merged."""
COPY_BYTES_MAX = 1 << 40
"""How far a copy may grow: address space, not memory."""
OPEN_COPIES_MAX = 64
KEY_BYTES_MAX = 511
"""LMDB takes no longer keys, and no empty one."""
NONE = -1
"""The version before the first batch."""

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
OPTIONS = ipc.IpcWriteOptions(compression="lz4")

_version = struct.Struct(">q")


class Place(msgspec.Struct, frozen=True):
    """Where the state of one operator of one run is: its files (a path or a URL of ``pyarrow.fs``), and this machine's copies."""

    files: str
    copies: str
    remedy: str = "headwater view reset NAME"
    """The command that makes the view anew from the log, when a file turns out to be damaged."""


class Size(NamedTuple):
    """Of one shard: its entries, and the length of their keys and values."""

    entries: int = 0
    state_bytes: int = 0


def size_of(chain: Chain) -> Size:
    """The size of a shard after the last file of its chain."""
    return Size(chain[-1].entries, chain[-1].state_bytes) if chain else Size()


def check_size(view: str, before: Chains, after: Chains, limit: int) -> None:
    """Raises StorageError when a batch lets a shard grow beyond the limit; one that is beyond it already may shrink."""
    for name, chains in after.items():
        for shard, (old, new) in enumerate(zip(before[name], chains, strict=True)):
            size = size_of(new)
            if size.state_bytes > max(limit, size_of(old).state_bytes):
                raise StorageError(
                    f"view {view!r}: state of {name}, shard {shard} of {len(chains)}, grows beyond its limit",
                    got=f"{size.state_bytes:,} bytes in {size.entries:,} entries",
                    expected=f"at most {limit:,} (setting state_bytes_max)",
                    hint=f"let keys go with forget=, divide them with headwater view scale {view} --shards N, or raise the limit",
                )


class Shard:
    """A shard at one version, read by one task. Nothing of the batch under way is ever written into the copy.

    Raises StorageError, naming the file, when one of the chain is missing or damaged.
    """

    def __init__(self, place: Place, number: int, chain: Chain) -> None:
        self.place = place
        self.number = number
        self.chain = chain
        self.version = chain[-1].version if chain else NONE
        self._asked: set[bytes] = set()
        self._found: dict[bytes, bytes] = {}
        """The values of those that were asked for and are there."""
        self._copy = _copy(Path(place.copies) / str(number))
        self._copy.advance(place, chain)
        if self._copy.version() != self.version:  # the copy of a later batch: an older one is being repeated
            self._copy = _Copy(Path(place.copies) / f"{number}.at-{self.version}.{os.getpid()}", fresh=True)
            self._copy.advance(place, chain)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that have one; fastest for sorted keys."""
        found = self._copy.get(keys)
        self._asked.update(keys)
        self._found |= found
        return found

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from one key up to, not with, another, in order; for keys of at most 511 bytes."""
        for key, value in self._copy.between(start, end):
            self._asked.add(key)
            self._found[key] = value
            yield key, value

    def stretches(self, wanted: Sequence[tuple[bytes, bytes, int]]) -> list[list[tuple[bytes, bytes]]]:
        return self._copy.stretches(wanted)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything, in the order of the keys."""
        return self._copy.items()

    def extended(self, batch: int, attempt: str, changes: Mapping[bytes, bytes | None]) -> Chain:
        """The chain with this batch's changes, written and synced. None removes a key."""
        chain = self._merged(attempt) if len(self.chain) >= CHAIN_FILES_MAX else self.chain
        if not changes:
            return chain
        name = f"{self.number}-{batch}-{attempt}.delta"
        size = self._size_with(changes)
        return (*chain, _write(self.place, name, batch, [_columns(changes)], whole=not chain, size=size))

    def _size_with(self, changes: Mapping[bytes, bytes | None]) -> Size:
        """The size after the changes. Logics have asked for nearly all that they change, so this hardly reads."""
        if not changes.keys() <= self._asked:
            self.get([key for key in changes if key not in self._asked])
        before = size_of(self.chain)
        values = list(changes.values())
        added = sum(map(len, changes)) + sum(map(len, filter(None, values)))
        removed = values.count(None)
        if removed:
            added -= sum(len(key) for key, value in changes.items() if value is None)
        replaced = self._found.keys() & changes.keys()
        gone = sum(map(len, replaced)) + sum(map(len, map(self._found.__getitem__, replaced)))
        return Size(
            before.entries + len(changes) - removed - len(replaced), before.state_bytes + added - gone
        )

    def _merged(self, attempt: str) -> Chain:
        """The same state in fewer files: those from the first on that is lighter than all behind it become one."""
        sizes = [file.size_bytes for file in self.chain]
        behind = [sum(sizes[at + 1 :]) for at in range(len(sizes))]
        outweighed = [at for at, size in enumerate(sizes) if size <= behind[at]]
        at = min([*outweighed, len(sizes) - CHAIN_FILES_MAX // 2])
        name = f"{self.number}-{self.version}-{attempt}.merged"
        kept, merged = self.chain[:at], self.chain[at:]
        size = size_of(self.chain)
        if not kept:
            file = whole_file(self.place, name, self.version, self.items(), size)
        else:
            together: dict[bytes, bytes | None] = {}
            for each in merged:
                together.update(contents(self.place, each))
            ordered = {key: together[key] for key in sorted(together)}
            file = _write(self.place, name, self.version, [_columns(ordered)], whole=False, size=size)
        passes("state files are merged")
        return (*kept, file)


# ---- the files -----------------------------------------------------------------------------------------


def contents(place: Place, file: File) -> Iterator[tuple[bytes, bytes | None]]:
    """The changes in a file; checked before the first one is given out."""
    for batch in _batches(place, file):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def found_in(place: Place, file: File, key: bytes) -> tuple[bytes | None] | None:
    """What a file says of a key: its value, or None for one that it removes; nothing if the file does not speak of it."""
    for batch in _batches(place, file):
        at = pc.index(batch.column(0), pa.scalar(key, pa.binary())).as_py()
        if at >= 0:
            return (batch.column(1)[at].as_py(),)
    return None


def _batches(place: Place, file: File) -> Iterator[pa.RecordBatch]:
    system, folder = fs.FileSystem.from_uri(place.files)
    path = f"{folder}/{file.name}"
    try:
        stream = system.open_input_file(path)
    except FileNotFoundError as error:
        raise StorageError(f"state file {path} is missing", hint=_anew(place)) from error
    with stream:
        size = stream.size()
        data = stream.read() if size <= READ_BYTES else None
        checksum = crc32c(data) if data is not None else _checksum(stream)
        if size != file.size_bytes or checksum != file.checksum:
            got = f"{size} bytes with checksum {checksum:08x}"
            expected = f"{file.size_bytes} bytes with {file.checksum:08x}"
            raise StorageError(f"state file {path} is damaged", got=got, expected=expected, hint=_anew(place))
        reader = ipc.open_file(stream if data is None else pa.BufferReader(data))
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _checksum(stream: Any) -> int:
    checksum = 0
    while data := stream.read(READ_BYTES):
        checksum = crc32c(data, checksum)
    stream.seek(0)
    return checksum


def alone(
    place: Place, number: int, batch: int, attempt: str, changes: Mapping[bytes, bytes | None]
) -> Chain:
    """What a step without state has made of a batch: a file that needs none before it."""
    name = f"{number}-{batch}-{attempt}.delta"
    size = Size(len(changes), sum(len(key) + len(value or b"") for key, value in changes.items()))
    return (_write(place, name, batch, [_columns(changes)], whole=True, size=size),) if changes else ()


def whole_file(
    place: Place, name: str, version: int, items: Iterable[tuple[bytes, bytes]], size: Size
) -> File:
    """Writes the whole state of a shard at a version, synced."""
    return _write(place, name, version, map(_table, _chunks(items)), whole=True, size=size)


def names(place: Place) -> list[str]:
    """The names of all files that are there."""
    system, folder = fs.FileSystem.from_uri(place.files)
    return [info.base_name for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True))]


def remove(place: Place, name: str) -> None:
    """Removes a file that nobody needs."""
    system, folder = fs.FileSystem.from_uri(place.files)
    system.delete_file(f"{folder}/{name}")


def _anew(place: Place) -> str:
    return f"make the view anew from the log: {place.remedy}"


def _write(
    place: Place,
    name: str,
    version: int,
    parts: Iterable[pa.Table],
    *,
    whole: bool,
    size: Size,
) -> File:
    with Writing(place, name) as out:
        for part in parts:
            out.write(part)
    return out.file(version, whole=whole, size=size)


def _columns(changes: Mapping[bytes, bytes | None]) -> pa.Table:
    columns = [pa.array(changes.keys(), pa.binary()), pa.array(changes.values(), pa.binary())]
    return pa.table(columns, schema=SCHEMA)


def _table(items: Sequence[tuple[bytes, bytes | None]]) -> pa.Table:
    keys, values = zip(*items, strict=True)
    return pa.table([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=SCHEMA)


class Writing:
    """A state file that is being written; once it is left it is safe on the disk."""

    def __init__(self, place: Place, name: str) -> None:
        self.name = name
        self.rows = 0
        system, folder = fs.FileSystem.from_uri(place.files)
        self._out = _Checked(system, folder, f"{folder}/{name}")
        self._writer = ipc.new_file(pa.PythonFile(self._out, "w"), SCHEMA, options=OPTIONS)

    def add(self, part: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.write(_table(part))

    def write(self, part: pa.Table) -> None:
        self._writer.write_table(part, ROWS_PER_BATCH)
        self.rows += part.num_rows

    def file(self, version: int, *, whole: bool, size: Size) -> File:
        """How a result names it."""
        return File(self.name, version, whole, self.rows, self._out.size_bytes, self._out.checksum, *size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self._writer.close()
            passes("state delta is written")
        finally:
            self._out.__exit__(*failure)
        passes("state delta is synced")


def _chunks(items: Iterable[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    part: list[tuple[bytes, bytes | None]] = []
    for item in items:
        part.append(item)
        if len(part) == ROWS_PER_BATCH:
            yield part
            part = []
    if part:
        yield part


class _Checked:
    """A file that knows its size and checksum, and is safe on the disk once it is left."""

    closed = False

    def __init__(self, system: fs.FileSystem, folder: str, path: str) -> None:
        self.size_bytes = self.checksum = 0
        self._folder = folder if isinstance(system, fs.LocalFileSystem) else None
        system.create_dir(folder)
        # A store that is no local disk keeps an object once it is closed.
        out = Path(path).open("wb") if self._folder else system.open_output_stream(path)  # noqa: SIM115
        self._out = cast("BinaryIO", out)

    def write(self, data: Any) -> int:
        data = memoryview(data)
        self._out.write(data)
        self.size_bytes += len(data)
        self.checksum = crc32c(data, self.checksum)
        return len(data)

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        """Arrow is done; the file is closed when it is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._folder and failure[0] is None:
            self._out.flush()
            os.fsync(self._out.fileno())
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._out.close()


# ---- the copies ----------------------------------------------------------------------------------------


class _Copy:
    """A shard in LMDB. Any process of the machine may have it open; LMDB lets one write at a time.

    It is not synced: it can be made anew from the chain, and a restart of the machine gives copies another folder.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._environment = lmdb.open(
            str(folder), map_size=COPY_BYTES_MAX, max_dbs=3, sync=False, metasync=False, readahead=False
        )
        self._values = self._environment.open_db(b"values")
        self._odd = self._environment.open_db(b"odd")
        """Keys that LMDB does not take, by their digest: pairs of key and value."""
        self._about = self._environment.open_db(b"about")

    def version(self) -> int:
        with self._environment.begin() as transaction:
            return self._version_in(transaction)

    def advance(self, place: Place, chain: Chain) -> None:
        """Applies what is missing up to the end of the chain."""
        wanted = chain[-1].version if chain else NONE
        if self.version() == wanted:
            return
        with self._environment.begin(write=True, db=self._values) as transaction:
            reached = self._version_in(transaction)
            missing = [file for file in chain if file.version > reached]
            if missing and missing[0].whole:
                transaction.drop(self._values, delete=False)
                transaction.drop(self._odd, delete=False)
            for file in missing:
                for part in _batches(place, file):
                    self._apply(transaction, part)
            transaction.put(b"version", _version.pack(max(wanted, reached)), db=self._about)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._environment.begin(db=self._values) as transaction:
            lengths = set(map(len, keys))
            if not lengths or (min(lengths) > 0 and max(lengths) <= KEY_BYTES_MAX):
                return dict(transaction.cursor().getmulti(keys))
            odd = [key for key in keys if not 0 < len(key) <= KEY_BYTES_MAX]
            found = {key: transaction.get(_digest(key), db=self._odd) for key in odd}
            pairs = {key: _pair.decode(data)[1] for key, data in found.items() if data}
            return dict(transaction.cursor().getmulti([key for key in keys if key not in found])) | pairs

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._environment.begin() as transaction:
            cursor = transaction.cursor(self._values)
            if cursor.set_range(start):
                for entry in cursor.iternext():
                    if entry[0] >= end:
                        return
                    yield entry

    def stretches(self, wanted: Sequence[tuple[bytes, bytes, int]]) -> list[list[tuple[bytes, bytes]]]:
        found: list[list[tuple[bytes, bytes]]] = []
        with self._environment.begin() as transaction:
            cursor = transaction.cursor(self._values)
            for start, end, most in wanted:
                part: list[tuple[bytes, bytes]] = []
                if cursor.set_range(start):
                    for entry in cursor.iternext():
                        if entry[0] >= end or len(part) == most:
                            break
                        part.append(entry)
                found.append(part)
        return found

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        with self._environment.begin() as transaction:
            yield from transaction.cursor(self._values)
            for _, data in transaction.cursor(self._odd):
                yield _pair.decode(data)

    def close(self) -> None:
        self._environment.close()

    def _apply(self, transaction: Any, part: pa.RecordBatch) -> None:
        changes = list(zip(part.column(0).to_pylist(), part.column(1).to_pylist(), strict=True))
        fit = [each for each in changes if 0 < len(each[0]) <= KEY_BYTES_MAX]
        transaction.cursor().putmulti([each for each in fit if each[1] is not None])
        for key in (each[0] for each in fit if each[1] is None):
            transaction.delete(key)
        for key, value in changes if len(fit) < len(changes) else ():
            if not 0 < len(key) <= KEY_BYTES_MAX:
                if value is None:
                    transaction.delete(_digest(key), db=self._odd)
                else:
                    transaction.put(_digest(key), msgspec.msgpack.encode((key, value)), db=self._odd)

    def _version_in(self, transaction: Any) -> int:
        found = transaction.get(b"version", db=self._about)
        return int(_version.unpack(found)[0]) if found else NONE


@contextmanager
def read_only(place: Place, chain: Chain) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """Everything in a shard, from a copy that nobody else knows and that is gone afterwards."""
    Path(place.copies).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place.copies) as folder:
        copy = _Copy(Path(folder))
        try:
            copy.advance(place, chain)
            yield copy.items()
        finally:
            copy.close()


_pair = msgspec.msgpack.Decoder(tuple[bytes, bytes])


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_open_copies: "OrderedDict[tuple[int, Path], _Copy]" = OrderedDict()


def _copy(folder: Path) -> _Copy:
    """A copy is opened once in a process, and stays open: LMDB forbids a second time."""
    key = (os.getpid(), folder)
    found = _open_copies.get(key)
    if found is None or not folder.exists():
        if found is not None:
            found.close()
        found = _open_copies[key] = _Copy(folder)
    _open_copies.move_to_end(key)
    while len(_open_copies) > OPEN_COPIES_MAX:
        _open_copies.popitem(last=False)[1].close()
    return found
