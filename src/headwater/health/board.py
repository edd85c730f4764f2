"""Boards: what each process of an application says of its parts, in a small file that others read.

    run/up.parts.json        of ``headwater up``: its processes, and which parts run in which
    run/pipeline.parts.json  of the pipeline: each view
    run/sinks.parts.json     of the sinks: each sink
    run/workers.parts.json   of the workers: each worker
    run/capture-NAME.parts.json

A file says something only while its process writes it again and again: a process that was killed, or hangs,
cannot claim to work.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from headwater.clock import Clock, SystemClock
from headwater.decoders import from_json
from headwater.health.condition import PartStatus
from headwater.health.process_life import own_life, runs

__all__ = ["STALE_MS", "UP", "Board", "BoardFile", "boards"]

UP = "up"
"""The process that starts all others."""
BEAT_MS = 2_000
"""How often a board without news is written again."""
STALE_MS = 30_000
"""A process that has written nothing for so long hangs. Planning a view again takes the pipeline seconds."""
SUFFIX = ".parts.json"


class Board(msgspec.Struct, frozen=True):
    """What one process has said, and when."""

    process: str
    pid: int
    written_ms: int
    parts: tuple[PartStatus, ...]
    members: dict[str, list[tuple[str, str]]] = {}
    """Of ``headwater up``: by process, the kind and the name of each part in it."""
    life: str = ""
    """Tells its process from others that have had the same id (``process_life.py``)."""

    def is_fresh(self, now_ms: int) -> bool:
        """Whether it was written a moment ago, by a process that runs; not after its clock was set back.

        Of a process in another container only the time is known.
        """
        return abs(now_ms - self.written_ms) <= STALE_MS and runs(self.pid, self.life) is not False

    @property
    def is_alive(self) -> bool:
        """Whether its process is seen to run."""
        return runs(self.pid, self.life) is True


class BoardFile:
    """The board of this process. One thread writes it; a disk without room only makes it old."""

    def __init__(self, folder: Path, process: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._process = process
        self._path = folder / "run" / f"{process}{SUFFIX}"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.said: Board | None = None
        """What was said last, also if the disk has no room for it."""
        self._written: tuple[PartStatus, ...] | None = None
        self._written_ms = 0

    def write(
        self,
        parts: Iterable[PartStatus],
        members: Mapping[str, list[tuple[str, str]]] | None = None,
    ) -> None:
        """Says how the parts are; often called, it writes news, and a sign of life now and then."""
        now_ms, parts = self._clock.now_ms(), tuple(map(_writable, parts))
        if parts == self._written and 0 <= now_ms - self._written_ms < BEAT_MS:
            return
        board = self.said = Board(
            self._process, os.getpid(), now_ms, parts, dict(members or {}), life=own_life()
        )
        new = self._path.with_name(f".{self._path.name}.new")
        with contextlib.suppress(OSError):
            new.write_bytes(msgspec.json.encode(board))
            new.replace(self._path)
        self._written, self._written_ms = parts, now_ms

    def remove(self) -> None:
        """The process ends, and says nothing more."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def boards(folder: Path) -> dict[str, Board]:
    """All boards in a data folder, by process, also those of processes that have ended."""
    read = {}
    for path in sorted((folder / "run").glob(f"*{SUFFIX}")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            board = from_json(path.read_bytes(), Board)
            read[board.process] = board
    return read


def _writable(part: PartStatus) -> PartStatus:
    """Without halves of surrogate pairs, which an error may quote, and a file cannot hold."""
    if part.error.isascii():
        return part
    error = part.error.encode(errors="replace").decode()
    return part if error == part.error else msgspec.structs.replace(part, error=error)
