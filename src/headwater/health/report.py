"""Report: the parts of an application with their conditions, put together from the boards of its processes.

``headwater status``, ``/health``, ``/ready``, the page and the lines of ``headwater up`` all show this.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headwater.clock import Clock, SystemClock
from headwater.health.board import STALE_MS, UP, Board, boards
from headwater.health.condition import PartStatus, State

__all__ = ["Report", "news", "read"]

KINDS = ("log", "capture", "view", "sink", "worker", "console")
"""In the order of a report, which is that of the data."""
SILENT = f"its process has said nothing for more than {STALE_MS // 1000} s: it hangs, or its disk is full"
NUMBER = re.compile("[0-9]+")


class Report(msgspec.Struct, frozen=True):
    """All parts at one moment."""

    status: str
    """The worst: ``ok``, ``starting``, ``failing``; ``down`` if nothing runs."""
    parts: tuple[PartStatus, ...]

    @classmethod
    def of(cls, parts: tuple[PartStatus, ...]) -> "Report":
        states = {part.state for part in parts}
        if parts and states <= {State.DOWN}:
            return cls("down", parts)
        if any(state.is_bad for state in states):
            return cls("failing", parts)
        return cls("starting" if State.STARTING in states else "ok", parts)

    @property
    def is_healthy(self) -> bool:
        """Nothing fails; parts may be starting."""
        return self.status in {"ok", "starting"}

    @property
    def is_ready(self) -> bool:
        """Everything runs, or was paused by a command."""
        return self.status == "ok"

    def part(self, name: str) -> "Report | None":
        """The report on one part, by its name or its kind and name (``view revenue``).

        ``log`` and ``console`` are the log and the console, also if a view has such a name.
        """
        matching = tuple(part for part in self.parts if name == part.kind == part.name) or tuple(
            part for part in self.parts if name in {part.name, f"{part.kind} {part.name}"}
        )
        return Report.of(matching) if matching else None


def read(folder: Path, clock: Clock | None = None, *, own: Board | None = None) -> Report:
    """The report on the processes whose data folder this is.

    ``own``: what ``headwater up`` itself says, whose file may be old on a disk without room.
    """
    now_ms = (clock or SystemClock()).now_ms()
    by_name = boards(folder)
    up = own or by_name.get(UP)
    if up is not None and up.is_fresh(now_ms):
        parts = list(_supervised(up, by_name, now_ms))
    else:
        single = [board for name, board in by_name.items() if name != UP and board.is_fresh(now_ms)]
        parts = [part for board in single for part in board.parts]
        parts += _left_down(up, {(part.kind, part.name) for part in parts}, now_ms)
    if not parts:
        return Report("down", ())
    return Report.of(tuple(sorted(parts, key=_place)))


def _place(part: PartStatus) -> tuple[int, str, str]:
    """Its place in a report; kinds of a newer version come last."""
    return KINDS.index(part.kind) if part.kind in KINDS else len(KINDS), part.kind, part.name


def _supervised(up: Board, by_name: Mapping[str, Board], now_ms: int) -> Iterator[PartStatus]:
    """The parts of an application under ``headwater up``."""
    for process in up.parts:
        members = up.members.get(process.name)
        if members is None:
            if process.kind in KINDS:
                yield process
            continue
        board = by_name.get(process.name)
        parts_by_key = {(part.kind, part.name): part for part in board.parts} if board else {}
        keys = members
        if board is not None and process.state is State.RUNNING and board.is_fresh(now_ms):
            # It may have been started again with another version of the application.
            keys = list(parts_by_key)
        for kind, name in keys:
            yield _member(process, board, parts_by_key.get((kind, name)), (kind, name), now_ms)


def _member(
    process: PartStatus, board: Board | None, member: PartStatus | None, key: tuple[str, str], now_ms: int
) -> PartStatus:
    """One part of a process: as it says itself, if the process works and has said something."""
    kind, name = key
    started = PartStatus(kind, name, State.STARTING, process.since_ms)
    if member is not None:
        lags = {"lag_records": member.lag_records, "lag_ms": member.lag_ms, "work": member.work}
        started = msgspec.structs.replace(started, **lags)
    if process.state is not State.RUNNING:
        if member is not None and member.state is State.STOPPED:
            return member
        lags = {"lag_records": started.lag_records, "lag_ms": started.lag_ms}
        return msgspec.structs.replace(process, kind=kind, name=name, **lags)
    if board is not None and member is not None and board.is_fresh(now_ms):
        return _with_ends(member, process)
    said_ms = board.written_ms if board is not None and board.is_alive else process.since_ms
    if abs(now_ms - said_ms) <= STALE_MS:
        return started
    said_ms = min(said_ms, now_ms)
    return msgspec.structs.replace(
        started, state=State.FAILING, since_ms=said_ms, error=SILENT, error_ms=said_ms + STALE_MS
    )


def _with_ends(member: PartStatus, process: PartStatus) -> PartStatus:
    """A part that works, with what its process has been through, of which the new process knows nothing."""
    restarts = member.restarts + process.restarts
    if member.error or not process.error:
        return msgspec.structs.replace(member, restarts=restarts)
    return msgspec.structs.replace(member, restarts=restarts, error=process.error, error_ms=process.error_ms)


def _left_down(up: Board | None, running: set[tuple[str, str]], now_ms: int) -> Iterator[PartStatus]:
    """The parts that the last ``headwater up`` had, and that nothing runs now."""
    if up is None:
        return
    keys = [
        key
        for process in up.parts
        for key in up.members.get(process.name, [(process.kind, process.name)])
        if key[0] in KINDS
    ]
    said_ms = min(up.written_ms, now_ms)
    state, error = State.DOWN, "headwater up does not run"
    if up.is_alive:
        state, error = (
            State.FAILING,
            f"headwater up, process {up.pid}, says nothing: it hangs, or its disk is full",
        )
    for kind, name in keys:
        if (kind, name) not in running:
            yield PartStatus(kind, name, state, said_ms, error=error)


def news(before: Report, after: Report) -> Iterator[str]:
    """A line for each part that has ended, was restarted, or has recovered between two reports."""
    before_by_key = {(part.kind, part.name): part for part in before.parts}
    for part in after.parts:
        was = before_by_key.get((part.kind, part.name))
        line = _line(was, part)
        if line:
            title = part.name if part.kind == part.name else f"{part.kind} {part.name}"
            yield f"{title} {line}"


def _line(was: PartStatus | None, part: PartStatus) -> str:
    is_news = was is None or was.state is not part.state
    if part.state.is_bad:
        if is_news or (was is not None and _words(was.error) != _words(part.error)):
            return f"{'has stopped' if part.state is State.STOPPED else f'is {part.state}'}: {part.error}"
    elif is_news and was is not None and part.state is State.PAUSED:
        return "is paused"
    elif is_news and was is not None and was.state is State.PAUSED:
        return "is resumed"
    elif is_news and was is not None and was.state.is_bad and part.state is State.RUNNING:
        return f"has recovered, after {max(part.since_ms - was.since_ms, 0) / 1000:.1f} s"
    if was is not None and part.restarts > was.restarts:
        return f"was started again{'' if part.restarts == 1 else f' ({part.restarts} times so far)'}"
    return ""


def _words(error: str) -> str:
    """An error without its numbers, which may be others in each look."""
    return NUMBER.sub("", error)
