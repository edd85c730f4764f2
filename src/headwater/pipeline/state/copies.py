"""Copies of shards in LMDB, open to every worker process of a machine, brought up to date from chains."""

import hashlib
import os
import shutil
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import lmdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.state.files import Place, batches
from headwater.result import Chain

__all__ = ["NONE", "Copy", "copies", "opened", "read_only"]

COPY_BYTES_MAX = 1 << 40
"""The maximum size of a copy: address space, not memory."""
OPEN_COPIES_MAX = 64
KEY_BYTES_MAX = 511
"""LMDB accepts no longer keys, and no empty ones."""
NONE = -1
"""The version before the first batch."""

SCRATCH = "SPARK_LOCAL_DIRS"
"""The variable with the folders of an executor, which Spark removes with it."""

_version = struct.Struct(">q")


def copies(place: Place) -> Path:
    """The folder of this process's copies of a place.

    An executor cannot write to folders of others or of the driver.
    """
    path = Path(place.copies)
    if path.is_absolute():
        return path
    return Path(os.environ.get(SCRATCH, "").partition(",")[0] or gettempdir()) / path


class Copy:
    """A shard in LMDB. Any process of the machine may have it open; LMDB lets one write at a time.

    It is not synced: it can be rebuilt from the chain, and after a restart of the machine copies have another
    folder.
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
        """Keys that LMDB does not accept, by their digest: pairs of key and value."""
        self._about = self._environment.open_db(b"about")

    def version(self) -> int:
        with self._environment.begin() as transaction:
            return self._version_in(transaction)

    def advance(self, place: Place, chain: Chain) -> None:
        """Applies the files that it lacks, up to the end of the chain."""
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
                for part in batches(place, file):
                    self._apply(transaction, part)
            transaction.put(b"version", _version.pack(max(wanted, reached)), db=self._about)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._environment.begin(db=self._values) as transaction:
            lengths = set(map(len, keys))
            if not lengths or (min(lengths) > 0 and max(lengths) <= KEY_BYTES_MAX):
                return dict(transaction.cursor().getmulti(keys))
            odd = [key for key in keys if not 0 < len(key) <= KEY_BYTES_MAX]
            odd_values = {key: transaction.get(_digest(key), db=self._odd) for key in odd}
            pairs = {key: _pair.decode(data)[1] for key, data in odd_values.items() if data}
            return dict(transaction.cursor().getmulti([key for key in keys if key not in odd_values])) | pairs

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        lengths = set(map(len, keys))
        if lengths and not 0 < min(lengths) <= max(lengths) <= KEY_BYTES_MAX:
            return list(map(self.get(keys).get, keys))
        with self._environment.begin(db=self._values) as transaction:
            return list(map(transaction.get, keys))

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._environment.begin() as transaction:
            cursor = transaction.cursor(self._values)
            if cursor.set_range(start):
                for entry in cursor.iternext():
                    if entry[0] >= end:
                        return
                    yield entry

    def stretches(self, wanted: Sequence[tuple[bytes, bytes, int]]) -> list[list[tuple[bytes, bytes]]]:
        parts: list[list[tuple[bytes, bytes]]] = []
        with self._environment.begin() as transaction:
            cursor = transaction.cursor(self._values)
            seek, entries = cursor.set_range, cursor.iternext
            for start, end, most in wanted:
                part: list[tuple[bytes, bytes]] = []
                if seek(start):
                    for entry in islice(entries(), most):
                        if entry[0] >= end:
                            break
                        part.append(entry)
                parts.append(part)
        return parts

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        with self._environment.begin() as transaction:
            yield from transaction.cursor(self._values)
            for _, data in transaction.cursor(self._odd):
                yield _pair.decode(data)

    def close(self) -> None:
        self._environment.close()

    def _apply(self, transaction: Any, part: pa.RecordBatch) -> None:
        lengths = pc.binary_length(part.column(0))
        fit = pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, KEY_BYTES_MAX))
        if not pc.all(fit).as_py():
            self._apply_odd(transaction, part.filter(pc.invert(fit)))
            part = part.filter(fit)
        if part.column(1).null_count:
            there = part.column(1).is_valid()
            for key in part.column(0).filter(pc.invert(there)).to_pylist():
                transaction.delete(key)
            part = part.filter(there)
        transaction.cursor().putmulti(
            zip(part.column(0).to_pylist(), part.column(1).to_pylist(), strict=True)
        )

    def _apply_odd(self, transaction: Any, part: pa.RecordBatch) -> None:
        for key, value in zip(part.column(0).to_pylist(), part.column(1).to_pylist(), strict=True):
            if value is None:
                transaction.delete(_digest(key), db=self._odd)
            else:
                transaction.put(_digest(key), msgspec.msgpack.encode((key, value)), db=self._odd)

    def _version_in(self, transaction: Any) -> int:
        version = transaction.get(b"version", db=self._about)
        return int(_version.unpack(version)[0]) if version else NONE


@contextmanager
def read_only(place: Place, chain: Chain) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """All entries of a shard, from a temporary copy that no other process uses."""
    here = copies(place)
    here.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=here) as folder:
        copy = Copy(Path(folder))
        try:
            copy.advance(place, chain)
            yield copy.items()
        finally:
            copy.close()


_pair = msgspec.msgpack.Decoder(tuple[bytes, bytes])


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_open_copies: "OrderedDict[tuple[int, Path], Copy]" = OrderedDict()


def opened(folder: Path) -> Copy:
    """A copy that stays open in this process: LMDB forbids opening it twice."""
    key = (os.getpid(), folder)
    copy = _open_copies.get(key)
    if copy is None or not folder.exists():
        if copy is not None:
            copy.close()
        copy = _open_copies[key] = Copy(folder)
    _open_copies.move_to_end(key)
    while len(_open_copies) > OPEN_COPIES_MAX:
        _open_copies.popitem(last=False)[1].close()
    return copy
