"""SpillFile: records in files of this machine, in order, until they are in the log.

    <folder>/mark.json                     how many records are in the log for sure, and where to look for
                                           others
    <folder>/00000000000000000000.spill    records, from the one with this number on

A frame is its length and the CRC-32C of what follows, then version, topic, key, value and time in
MessagePack, and in version 2 the headers; records without headers have version 1. Reading stops at the first
incomplete frame: a crash has cut it, and no call has returned for it.
To change the form: give it another version, and read files of older versions until their records are sent.
"""

import fcntl
import os
import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from crc32c import crc32c

from headwater.decoders import from_msgpack
from headwater.durable import sync_folder
from headwater.errors import StorageError, UsageError
from headwater.formats import SPILL
from headwater.write.outlet import ProducerRecord

__all__ = ["HEADER", "Ends", "SpillFile", "SpillMark"]

FRAME = struct.Struct(">II")
PLAIN, WITH_HEADERS = 1, SPILL.newest
"""Versions of a record."""
FILES = 8
"""Into how many files the bound is divided; a file is removed when all its records are in the log."""
HEADER = "spill"
"""The name of the header that identifies a record by the writer's id and a number."""
MARK = "mark.json"
ENDING = ".spill"

Ends = dict[str, dict[int, int]]


class Body(msgspec.Struct, frozen=True, array_like=True):
    """A record in a file."""

    version: int
    topic: str
    key: bytes | None
    value: bytes | None
    at_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class SpillMark(msgspec.Struct, frozen=True):
    """All records before number ``sent`` are in the log.

    Any others there are after ``ends``, with ids that begin with ``id``.
    """

    id: str
    sent: int = 0
    ends: Ends = {}
    format: int = 1


class SpillFile:
    """A bounded queue of records on disk, for one process at a time.

    Any thread of it may call. Records that were appended before a `sync` survive a crash, also of the
    machine. `pass_over` forgets records from the front.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder = folder
        self._bytes_max = bytes_max
        self._file_bytes_max = max(1, bytes_max // FILES)
        self._lock = threading.Lock()
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self._held = _hold(folder)
        try:
            self.mark = self._read_mark()
            self._sizes: dict[int, int] = {}
            """The size of each file, by the number of its first record."""
            self.end = self.mark.sent
            """The number of the next record."""
            self._tail = -1
            """The file that is written to, as a descriptor."""
            self._place = (self.mark.sent, 0)
            """Where the next unsent record is: the first number of its file, and its byte."""
            self._ahead = (0, self._place)
            """How many records `first` has returned last, and where the next one is."""
            self._recover()
        except BaseException:
            os.close(self._held)
            raise

    @property
    def waiting(self) -> int:
        """The number of records that may not be in the log yet."""
        return self.end - self.mark.sent

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def append(self, record: ProducerRecord, at_ms: int) -> bool:
        """Adds a record at the end; returns False if there is no room for it."""
        key = record.key.encode() if isinstance(record.key, str) else record.key
        plain = (PLAIN, record.topic, key, record.value, at_ms)
        body = msgspec.msgpack.encode((WITH_HEADERS, *plain[1:], record.headers) if record.headers else plain)
        frame = FRAME.pack(len(body), crc32c(body)) + body
        with self._lock:
            if self._sizes and self.size_bytes + len(frame) > self._bytes_max:
                return False
            if not self._sizes or self._sizes[max(self._sizes)] >= self._file_bytes_max:
                self._next_file()
            self._write(frame)
            self.end += 1
        return True

    def sync(self) -> None:
        """Returns when all records so far are on the disk."""
        with self._lock:
            if self._tail >= 0:
                os.fdatasync(self._tail)

    def first(self, count: int) -> list[ProducerRecord]:
        """The next records, in order, at most ``count``. Their headers identify them."""
        with self._lock:
            records: list[ProducerRecord] = []
            base, byte = self._place
            while base in self._sizes and len(records) < count:
                bodies, byte = _bodies(self._path(base), byte, self._sizes[base], count - len(records))
                for each in bodies:
                    headers = ((HEADER, self.name(self.mark.sent + len(records))), *each.headers)
                    records.append(ProducerRecord(each.topic, each.key, each.value, 0, each.at_ms, headers))
                following = min((other for other in self._sizes if other > base), default=None)
                if byte < self._sizes[base] or following is None:
                    break
                base, byte = following, 0
            self._ahead = (len(records), (base, byte))
            return records

    def begin(self, ends: Ends) -> None:
        """Before the first record is sent: stores where the topics end."""
        with self._lock:
            self._write_mark(msgspec.structs.replace(self.mark, ends=ends))

    def pass_over(self, ends: Ends) -> None:
        """The records that `first` returned last are in the log; later ones will be after ``ends``."""
        with self._lock:
            count, place = self._ahead
            self._write_mark(msgspec.structs.replace(self.mark, sent=self.mark.sent + count, ends=ends))
            self._place, self._ahead = place, (0, place)
            self._forget()

    def name(self, number: int) -> str:
        """The identity of a record in its header, however often it is sent."""
        return f"{self.mark.id}-{number}"

    def close(self) -> None:
        """Unlocks the folder; its records stay for the next writer of the name."""
        with self._lock:
            if self._tail >= 0:
                os.close(self._tail)
                self._tail = -1
            os.close(self._held)

    # ---- files -----------------------------------------------------------------------------------------

    def _path(self, base: int) -> Path:
        return self.folder / f"{base:020}{ENDING}"

    def _recover(self) -> None:
        """Finds the files, cuts an incomplete frame at the end, and continues after the mark."""
        bases = sorted(int(path.stem) for path in self.folder.glob(f"*{ENDING}"))
        for base in bases:
            path = self._path(base)
            size = path.stat().st_size
            sent, start = _bodies(path, 0, size, self.mark.sent - base)
            left, end = _bodies(path, start, size, size)
            if not left:
                path.unlink()
                continue
            os.truncate(path, end)
            if base <= self.mark.sent:
                self._place = (base, start)
            self._sizes[base] = end
            self.end = base + len(sent) + len(left)
        if self._sizes:
            self._tail = os.open(self._path(max(self._sizes)), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _next_file(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with _written(self.folder):
            if self._tail >= 0:
                os.fdatasync(self._tail)
            # A full disk fails here, while nothing has changed.
            descriptor = os.open(self._path(self.end), flags, 0o600)
            if self._tail >= 0:
                os.close(self._tail)
            self._tail = descriptor
            sync_folder(self.folder)
        self._sizes[self.end] = 0
        if self.end == self.mark.sent:
            self._place = (self.end, 0)

    def _write(self, frame: bytes) -> None:
        base = max(self._sizes)
        with _written(self.folder):
            try:
                written = os.write(self._tail, frame)
                if written < len(frame):
                    raise OSError(f"{written} of {len(frame)} bytes were written")
            except OSError:
                os.ftruncate(self._tail, self._sizes[base])
                raise
        self._sizes[base] += len(frame)

    def _forget(self) -> None:
        """Removes the files whose records are all in the log."""
        if not self.waiting:
            os.close(self._tail)
            self._tail = -1
            bases = list(self._sizes)
        else:
            bases = [base for base in self._sizes if base < self._place[0]]
        for base in bases:
            self._path(base).unlink()
            del self._sizes[base]

    def _read_mark(self) -> SpillMark:
        try:
            return SPILL.decode(
                (self.folder / MARK).read_bytes(), SpillMark, f"spill file {self.folder / MARK}"
            )
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError as error:
            raise StorageError(f"{self.folder / MARK} cannot be read", got=str(error)) from error
        mark = SpillMark(uuid.uuid4().hex[:16], format=SPILL.newest)
        self._write_mark(mark)
        return mark

    def _write_mark(self, mark: SpillMark) -> None:
        temporary = self.folder / f"{MARK}.new"
        with _written(self.folder):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(mark))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.folder / MARK)
            sync_folder(self.folder)
        self.mark = mark


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the spill file in {folder} cannot be written", got=str(error), hint="free disk space there"
        ) from error


def _bodies(path: Path, start: int, end: int, count: int) -> tuple[list[Body], int]:
    """Complete records of a file between two bytes, at most ``count``, and the byte after them."""
    bodies: list[Body] = []
    with path.open("rb") as file:
        file.seek(start)
        while len(bodies) < count and start + FRAME.size <= end:
            length, checksum = FRAME.unpack(file.read(FRAME.size))
            body = file.read(length)
            if len(body) < length or crc32c(body) != checksum:
                break
            bodies.append(_body(body, path))
            start += FRAME.size + length
    return bodies, start


_decode = msgspec.msgpack.Decoder(Body).decode


def _body(data: bytes, path: Path) -> Body:
    try:
        body: Body = _decode(data)
    except msgspec.ValidationError:
        version = from_msgpack(data, list[Any])[0]
        SPILL.check(version if isinstance(version, int) else 1, f"spill file {path}")
        raise
    SPILL.check(body.version, f"spill file {path}")
    return body


def _hold(folder: Path) -> int:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(
            f"the spill folder {folder} belongs to another writer that is open",
            hint="give each writer a name of its own, or close the other one first",
        ) from error
    return descriptor
