"""State files: the changes of a batch, or a whole shard, written once, synced, and checked when read."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from pyarrow import fs, ipc

from headwater.durable import sync_folder
from headwater.errors import StorageError
from headwater.formats import STATE_FILE
from headwater.pipeline.kill_points import passes
from headwater.result import File

__all__ = [
    "Place",
    "Size",
    "Writing",
    "batches",
    "columns",
    "contents",
    "found_in",
    "names",
    "remove",
    "whole_file",
    "write",
]

ROWS_PER_BATCH = 50_000
READ_BYTES = 16 << 20
"""Larger files are checked and read in pieces."""

FORMAT = b"headwater.format"
"""In the metadata of the schema; a file without it has format 1."""
SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary())], metadata={FORMAT: b"%d" % STATE_FILE.newest}
)
OPTIONS = ipc.IpcWriteOptions(compression="lz4")


class Place(msgspec.Struct, frozen=True):
    """Where the state of one operator of one run is: its files (a path or URL of ``pyarrow.fs``), its copies.

    A relative path of copies is in the scratch folder of the process that makes them: on a cluster, the
    executor's.
    """

    files: str
    copies: str
    remedy: str = "headwater view reset NAME"
    """The command that builds the view again from the log if a file is damaged."""


class Size(NamedTuple):
    """The number of entries of a shard, and the length of their keys and values."""

    entries: int = 0
    state_bytes: int = 0


def contents(place: Place, file: File) -> Iterator[tuple[bytes, bytes | None]]:
    """The changes in a file, which is checked before the first one."""
    for batch in batches(place, file):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def found_in(place: Place, file: File, key: bytes) -> tuple[bytes | None] | None:
    """A file's change of a key, in a tuple: its value, or None if it removes the key.

    None if it does not change it.
    """
    for batch in batches(place, file):
        at = pc.index(batch.column(0), pa.scalar(key, pa.binary())).as_py()
        if at >= 0:
            return (batch.column(1)[at].as_py(),)
    return None


def batches(place: Place, file: File) -> Iterator[pa.RecordBatch]:
    """A file in pieces, checked before the first one.

    Raises StorageError, naming the file, if it is missing or damaged.
    """
    system, folder = fs.FileSystem.from_uri(place.files)
    path = f"{folder}/{file.name}"
    try:
        stream = system.open_input_file(path)
    except FileNotFoundError as error:
        raise StorageError(f"state file {path} is missing", hint=_remedy(place)) from error
    with stream:
        size = stream.size()
        data = stream.read() if size <= READ_BYTES else None
        checksum = crc32c(data) if data is not None else _checksum(stream)
        if size != file.size_bytes or checksum != file.checksum:
            got = f"{size} bytes with checksum {checksum:08x}"
            expected = f"{file.size_bytes} bytes with {file.checksum:08x}"
            raise StorageError(
                f"state file {path} is damaged", got=got, expected=expected, hint=_remedy(place)
            )
        reader = ipc.open_file(stream if data is None else pa.BufferReader(data))
        number = (reader.schema.metadata or {}).get(FORMAT, b"1")
        STATE_FILE.check(int(number), f"state file {path}", _remedy(place))
        for at in range(reader.num_record_batches):
            yield reader.get_batch(at)


def _checksum(stream: Any) -> int:
    checksum = 0
    while data := stream.read(READ_BYTES):
        checksum = crc32c(data, checksum)
    stream.seek(0)
    return checksum


def whole_file(
    place: Place, name: str, version: int, items: Iterable[tuple[bytes, bytes]], size: Size
) -> File:
    """Writes the whole state of a shard at a version, synced."""
    return write(place, name, version, map(_table, _chunks(items)), whole=True, size=size)


def names(place: Place) -> list[str]:
    """The names of all files of a place."""
    system, folder = fs.FileSystem.from_uri(place.files)
    return [info.base_name for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True))]


def remove(place: Place, name: str) -> None:
    """Removes a file; another driver may have removed it already."""
    system, folder = fs.FileSystem.from_uri(place.files)
    with contextlib.suppress(FileNotFoundError):
        system.delete_file(f"{folder}/{name}")


def _remedy(place: Place) -> str:
    return f"build the view again from the log: {place.remedy}"


def write(
    place: Place,
    name: str,
    version: int,
    parts: Iterable[pa.Table],
    *,
    whole: bool,
    size: Size,
) -> File:
    """Writes a file, synced. ``whole``: it needs no file before it."""
    with Writing(place, name) as out:
        for part in parts:
            out.write(part)
    return out.file(version, whole=whole, size=size)


def columns(changes: Mapping[bytes, bytes | None]) -> pa.Table:
    """Changes in the form of a file."""
    arrays = [pa.array(changes.keys(), pa.binary()), pa.array(changes.values(), pa.binary())]
    return pa.table(arrays, schema=SCHEMA)


def _table(items: Sequence[tuple[bytes, bytes | None]]) -> pa.Table:
    keys, values = zip(*items, strict=True)
    return pa.table([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=SCHEMA)


class Writing:
    """A state file that is being written; on exit it is safe on the disk."""

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
        """The file as a result names it."""
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
    """A file that counts its size and checksum, and is safe on the disk on exit."""

    closed = False

    def __init__(self, system: fs.FileSystem, folder: str, path: str) -> None:
        self.size_bytes = self.checksum = 0
        self._folder = folder if isinstance(system, fs.LocalFileSystem) else None
        system.create_dir(folder)
        # An object store keeps an object once it is closed.
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
        """Called by Arrow; the file is closed on exit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._folder and failure[0] is None:
            self._out.flush()
            os.fsync(self._out.fileno())
            sync_folder(self._folder)
        self._out.close()
