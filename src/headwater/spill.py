"""Spill: records in files of this machine, in order, until they are in the log.

    <folder>/mark.json                     up to which record all are in the log, and what to look for if that is in doubt
    <folder>/00000000000000000000.spill    records, from the one with this number on

A frame is its length and the CRC-32C of what follows, then version, topic, key, value and time in MessagePack. Reading stops at the
first frame that is not whole: a crash has cut it, and nobody was told that it is kept. A new form gets another version; files
of the old one are read by what it meant until they are sent.
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
from headwater.errors import StorageError, UsageError
from headwater.formats import SPILL
from headwater.outgoing import Record

__all__ = ["HEADER", "Ends", "Mark", "Spill"]

FRAME = struct.Struct(">II")
VERSION = SPILL.newest
FILES = 8
"""Files that the bound is divided among; one goes when all its records are in the log."""
HEADER = "spill"
"""The header that names a record: the writer's id and a number."""
MARK = "mark.json"
ENDING = ".spill"

Body = tuple[int, str, bytes | None, bytes | None, int]
Ends = dict[str, dict[int, int]]


class Mark(msgspec.Struct, frozen=True):
    """All records before number ``sent`` are in the log. Whichever others are there stand behind ``ends``, under ids with ``id``."""

    id: str
    sent: int = 0
    ends: Ends = {}
    format: int = 1


class Spill:
    """A bounded queue of records on disk, for one process at a time. Any of its threads may call.

    What `sync` has returned for survives a crash, of the machine too. `pass_over` forgets records from the front.
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
            """Bytes by the number that a file begins with."""
            self.end = self.mark.sent
            """The number that the next record gets."""
            self._tail = -1
            """The file that is written, as a descriptor."""
            self._place = (self.mark.sent, 0)
            """Where the next unsent record is: the first number of its file, and the byte."""
            self._ahead = (0, self._place)
            """How many records were given out by `first`, and where those behind them are."""
            self._recover()
        except BaseException:
            os.close(self._held)
            raise

    @property
    def waiting(self) -> int:
        """Records that are not known to be in the log."""
        return self.end - self.mark.sent

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def append(self, record: Record, at_ms: int) -> bool:
        """Takes a record in at the end; False when there is no room for it."""
        key = record.key.encode() if isinstance(record.key, str) else record.key
        body = msgspec.msgpack.encode((VERSION, record.topic, key, record.value, at_ms))
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
        """Returns when all that was taken in is on the disk."""
        with self._lock:
            if self._tail >= 0:
                os.fdatasync(self._tail)

    def first(self, count: int) -> list[Record]:
        """The records that come next, in order; at most so many. Their headers name them."""
        with self._lock:
            found: list[Record] = []
            base, byte = self._place
            while base in self._sizes and len(found) < count:
                bodies, byte = _bodies(self._path(base), byte, self._sizes[base], count - len(found))
                for _, topic, key, value, at_ms in bodies:
                    name = self.name(self.mark.sent + len(found))
                    found.append(Record(topic, key, value, 0, at_ms, [(HEADER, name)]))
                following = min((other for other in self._sizes if other > base), default=None)
                if byte < self._sizes[base] or following is None:
                    break
                base, byte = following, 0
            self._ahead = (len(found), (base, byte))
            return found

    def begin(self, ends: Ends) -> None:
        """Before the first record is sent: where the topics end."""
        with self._lock:
            self._write_mark(msgspec.structs.replace(self.mark, ends=ends))

    def pass_over(self, ends: Ends) -> None:
        """What `first` gave last is in the log; what comes behind it will stand behind ``ends``."""
        with self._lock:
            count, place = self._ahead
            self._write_mark(msgspec.structs.replace(self.mark, sent=self.mark.sent + count, ends=ends))
            self._place, self._ahead = place, (0, place)
            self._forget()

    def name(self, number: int) -> str:
        """What a record is called in its header, wherever it is sent from."""
        return f"{self.mark.id}-{number}"

    def close(self) -> None:
        """Gives the folder back; what is in it stays for the next writer of the name."""
        with self._lock:
            if self._tail >= 0:
                os.close(self._tail)
                self._tail = -1
            os.close(self._held)

    # ---- files -----------------------------------------------------------------------------------------

    def _path(self, base: int) -> Path:
        return self.folder / f"{base:020}{ENDING}"

    def _recover(self) -> None:
        """Finds the files, cuts what a crash has left half written, and goes on behind the mark."""
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
            fresh = os.open(
                self._path(self.end), flags, 0o600
            )  # a full disk refuses here, while nothing has changed
            if self._tail >= 0:
                os.close(self._tail)
            self._tail = fresh
            _sync_folder(self.folder)
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
        """Removes the files all of whose records are in the log."""
        if not self.waiting:
            os.close(self._tail)
            self._tail = -1
            gone = list(self._sizes)
        else:
            gone = [base for base in self._sizes if base < self._place[0]]
        for base in gone:
            self._path(base).unlink()
            del self._sizes[base]

    def _read_mark(self) -> Mark:
        try:
            return SPILL.decode((self.folder / MARK).read_bytes(), Mark, f"spill file {self.folder / MARK}")
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError as error:
            raise StorageError(f"{self.folder / MARK} cannot be read", got=str(error)) from error
        made = Mark(uuid.uuid4().hex[:16], format=SPILL.newest)
        self._write_mark(made)
        return made

    def _write_mark(self, mark: Mark) -> None:
        fresh = self.folder / f"{MARK}.new"
        with _written(self.folder):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(mark))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.folder / MARK)
            _sync_folder(self.folder)
        self.mark = mark


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the spill file in {folder} cannot be written", got=str(error), hint="make room there"
        ) from error


def _bodies(path: Path, start: int, end: int, count: int) -> tuple[list[Body], int]:
    """Whole records of a file between two bytes, at most ``count``, and the byte behind them."""
    found: list[Body] = []
    with path.open("rb") as file:
        file.seek(start)
        while len(found) < count and start + FRAME.size <= end:
            length, checksum = FRAME.unpack(file.read(FRAME.size))
            body = file.read(length)
            if len(body) < length or crc32c(body) != checksum:
                break
            found.append(_body(body, path))
            start += FRAME.size + length
    return found, start


_decode = msgspec.msgpack.Decoder(Body).decode


def _body(data: bytes, path: Path) -> Body:
    try:
        found: Body = _decode(data)
    except msgspec.ValidationError:
        version = from_msgpack(data, list[Any])[0]
        SPILL.check(version if isinstance(version, int) else 1, f"spill file {path}")
        raise
    SPILL.check(found[0], f"spill file {path}")
    return found


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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
