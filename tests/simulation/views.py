"""What the readers of a view must see: its rows at each result, from the records that the results say it has read.

The model reads input topics, results, the view's topic and its late records as a committed reader does, and keeps what it has read, so that compaction
takes nothing from it. It works out each run of the view record by record; late is what a result's watermark says, and nothing that was written
in time may be.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from headwater.declare.spec import View
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.time.watermark import NEVER
from headwater.position import Position
from headwater.record import Record
from headwater.result import TICKS, Result, files_of
from simulation.computed import WINDOW_US, parsed, rows_of
from simulation.model import Wrong

__all__ = ["Inputs", "Run", "Shown", "reached"]

REVISION = b',"_revision":'

Place = tuple[str, int]


@dataclass
class Input:
    """One record of an input topic."""

    event: tuple[str, int] | None
    """Key and time; None for an invalid one."""
    honest: bool
    """Whether it was written in time."""


@dataclass
class Inputs:
    """The input topics, as far as they were read."""

    records: dict[Place, dict[int, Input]] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)

    def take(self, place: Place, rows: list[Record]) -> None:
        known = self.records.setdefault(place, {})
        for row in rows:
            honest = not row.headers
            known[row.offset] = Input(parsed(row.value), honest)


@dataclass
class Run:
    """One run of a view, worked out from its results."""

    view: View
    run: str
    last: Result | None = None
    windows: Counter[tuple[str, int]] = field(default_factory=Counter)
    newest: dict[str, int] = field(default_factory=dict)
    appended: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    late: set[str] = field(default_factory=set)
    """Keys of the records that it has left out."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """By topic: how many were processed, late and invalid."""

    def take(self, result: Result, inputs: Inputs) -> None:
        """The next result of the run."""
        where = f"{self.view.name}, run {self.run[:8]}, batch {result.batch}"
        before, self.last = self.last, result
        if before is not None and result.batch == before.batch:
            if result.inputs != before.inputs:
                raise Wrong(f"{where}: it is there twice, up to {result.inputs} and {before.inputs}")
            if (result.watermark, result.failed) != (before.watermark, before.failed):
                raise Wrong(f"{where}: it is there twice, and would be repeated as another batch")
            self._check_time(where, before, result)
            return
        if result.batch != (before.batch + 1 if before else 0):
            raise Wrong(f"{where}: the result before it is of batch {before.batch if before else None}")
        if before is not None and (result.watermark or NEVER) < reached(before):
            raise Wrong(f"{where}: the watermark goes back from {reached(before)} to {result.watermark}")
        self._check_time(where, before, result)
        begun = result.begun if before is None else before.inputs
        for topic, parts in result.inputs.items():
            for number, end in parts.items() if topic != TICKS else ():
                start = begun.get(topic, {}).get(number, 0)
                if end < start:
                    raise Wrong(f"{where}: {topic}-{number} goes back from {start} to {end}")
                self._read(result, inputs, (topic, number), (start, end))
        self._check_counts(where, result)

    def _check_time(self, where: str, before: Result | None, result: Result) -> None:
        """What is complete stays so: later records are judged by a watermark that has passed it."""
        complete = result.complete or NEVER
        if complete > reached(result):
            raise Wrong(f"{where}: complete up to {complete}, and the watermark is {reached(result)}")
        if before is not None and complete < (before.complete or NEVER):
            raise Wrong(f"{where}: complete up to {complete}, after {before.complete}")

    def _check_counts(self, where: str, result: Result) -> None:
        if result.watermark is not None and result.late != len(self.late):
            raise Wrong(f"{where}: {result.late} late records, expected {len(self.late)}")
        for topic, taken in result.taken.items():
            found = self.counts.get(topic, Counter())
            said = {"processed": taken.processed, "late": taken.late, "invalid": taken.invalid}
            if said != {name: found[name] for name in said}:
                raise Wrong(f"{where}: it says of {topic} {said}, expected {dict(found)}")

    def _read(self, result: Result, inputs: Inputs, place: Place, stretch: tuple[int, int]) -> None:
        topic, number = place
        known = inputs.records.get(place, {})
        counts = self.counts.setdefault(topic, Counter())
        for offset in range(*stretch):
            found = known.get(offset)
            if found is None:
                raise Wrong(
                    f"{self.view.name}: it has read {topic}-{number} up to {stretch[1]}, which no other reader has"
                )
            if found.event is None:
                counts["invalid"] += 1
                continue
            key, time_us = found.event
            bound = NEVER if result.watermark is None else result.watermark - self.view.late.horizon_us
            if time_us < bound:
                counts["late"] += 1
                self.late.add(f"{topic}-{number}-{offset}")
                if found.honest:
                    raise Wrong(
                        f"{self.view.name}: {topic}-{number} at {offset} was written in time, and is late by "
                        f"{(bound - time_us) / 1e6:.1f} s in batch {result.batch}"
                    )
                continue
            counts["processed"] += 1
            self.windows[key, time_us // WINDOW_US * WINDOW_US] += 1
            self.newest[key] = time_us
            self.appended[rows_of("all", key, number, offset)] += 1

    def rows(self) -> dict[bytes, bytes]:
        """The view's rows by key, without revisions."""
        match self.view.name:
            case "counts" | "ready":
                return dict(rows_of("counts", key, start, n) for (key, start), n in self.windows.items())
            case "totals":
                totals: Counter[str] = Counter()
                for (key, _), n in self.windows.items():
                    totals[key] += n
                return dict(rows_of("totals", key, n) for key, n in totals.items())
        return dict(rows_of("newest", key, at) for key, at in self.newest.items())


@dataclass
class Shown:
    """What readers of one view see."""

    view: View
    folder: Path
    """Of its checkpoints."""
    runs: dict[str, Run] = field(default_factory=dict)
    results: dict[int, Result] = field(default_factory=dict)
    """By the offset in their topic."""
    seen: Result | None = None
    records: dict[int, list[Record]] = field(default_factory=dict)
    """By partition of the view's topic."""
    table: dict[bytes, bytes] = field(default_factory=dict)
    upto: dict[int, int] = field(default_factory=dict)
    """How far the table is, by the place in ``records``."""
    appended: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    revisions: dict[bytes, int] = field(default_factory=dict)
    swaps: int = 0

    def take(self, offset: int, result: Result, inputs: Inputs) -> None:
        """The next result in its topic."""
        run = self.runs.setdefault(result.run, Run(self.view, result.run))
        if result.replaces and not result.shadow:
            raise Wrong(f"{self.view.name}: a result that readers see replaces {result.replaces}")
        run.take(result, inputs)
        self.results[offset] = result
        if result.shadow:
            return
        before = self.seen
        if before is not None and before.run != result.run:
            self.swaps += 1
            if lacks := _lacks(result, before):
                raise Wrong(
                    f"{self.view.name}: run {result.run[:8]} takes the place of one that had read {lacks}"
                )
        if before is not None and any(result.outputs.get(n, 0) < end for n, end in before.outputs.items()):
            raise Wrong(f"{self.view.name}: outputs go back from {before.outputs} to {result.outputs}")
        self.seen = result
        self._advance(result.outputs)
        self._check(result, run)

    def _advance(self, outputs: dict[int, int]) -> None:
        """Reads the view's topic as far as a result says."""
        for number, end in outputs.items():
            rows = self.records.get(number, [])
            at = self.upto.get(number, 0)
            while at < len(rows) and rows[at].offset < end:
                self._apply(rows[at])
                at += 1
            self.upto[number] = at

    def _apply(self, row: Record) -> None:
        key, value = row.key or b"", row.value
        if self.view.append:
            self.appended[key, value or b""] += 1
            return
        if value is None:
            if self.table.pop(key, None) is None:
                raise Wrong(f"{self.view.name}: {key!r} is deleted, and was not there")
            self.revisions.pop(key, None)
            return
        bare, _, revision = value[:-1].rpartition(REVISION)
        if int(revision) != self.revisions.get(key, 0) + 1:
            raise Wrong(
                f"{self.view.name}: {key!r} has revision {int(revision)} after {self.revisions.get(key)}"
            )
        if self.table.get(key) == bare + b"}":
            raise Wrong(f"{self.view.name}: {key!r} is published again as it was")
        self.revisions[key] = int(revision)
        self.table[key] = bare + b"}"

    def _check(self, result: Result, run: Run) -> None:
        """At a result: a reader up to its outputs has the rows of its inputs, and no others."""
        where = f"{self.view.name}, run {result.run[:8]}, batch {result.batch}"
        if self.view.append:
            if self.appended != run.appended:
                more, less = self.appended - run.appended, run.appended - self.appended
                raise Wrong(f"{where}: {dict(more)} too many, {dict(less)} too few")
            return
        expected = run.rows()
        if self.view.name == "ready":
            reached = result.complete if result.complete is not None else NEVER
            must = {key for key in expected if _end(key) <= reached}
            missing = must - self.table.keys()
            if missing:
                raise Wrong(f"{where}: complete up to {reached}, without {sorted(missing)[:3]}")
            early = [key for key in self.table if _end(key) > (result.watermark or NEVER)]
            if early:
                raise Wrong(f"{where}: {sorted(early)[:3]} before they were complete")
            expected = {key: row for key, row in expected.items() if key in self.table}
        if self.table != expected:
            wrong = {
                key: (self.table.get(key), expected.get(key))
                for key in self.table.keys() | expected.keys()
                if self.table.get(key) != expected.get(key)
            }
            key = min(wrong)
            raise Wrong(
                f"{where}: {key!r} shows {wrong[key][0]!r}, expected {wrong[key][1]!r}; {len(wrong)} rows differ"
            )

    def check_late(self, found: list[LateRecord]) -> None:
        """The records in ``<view>.late``: each that a run which readers have seen has left out, once."""
        shown = {r.run for r in self.results.values() if not r.shadow}
        counted = Counter((each.run, each.key) for each in found if each.run in shown)
        twice = [key for key, n in counted.items() if n > 1]
        if twice:
            raise Wrong(f"{self.view.name}: {twice[0]} is among the late records twice")
        expected = {(run, key) for run in shown for key in self.runs[run].late}
        if self.view.late.policy == "drop":
            expected = set()
        if expected != counted.keys():
            raise Wrong(
                f"{self.view.name}: late records without {sorted(expected - counted.keys())[:3]}, "
                f"and with {sorted(counted.keys() - expected)[:3]}"
            )

    def check_files(self) -> None:
        """Every state file is there that a start may need: those of the last result of the shown run, and of the one before it."""
        if self.seen is None:
            return
        mine = [
            r
            for r in self.results.values()
            if r.run == self.seen.run and r.generation == self.seen.generation
        ]
        for result in mine[-2:]:
            place = Checkpoint(self.folder / result.run).folder / "shards"
            for operator, name in files_of(result.state):
                if not (place / operator / name).exists():
                    raise Wrong(
                        f"{self.view.name}: state file {operator}/{name} of batch {result.batch} is gone"
                    )

    def check_wait(self, position: Position, answer: Position) -> None:
        """The answer to who has waited: the outputs of a result that has read so far."""
        found = [
            result
            for result in self.results.values()
            if not result.shadow and Position(result.inputs).covers(position)
        ]
        if not any(answer.of(self.view.name) == result.outputs for result in found):
            raise Wrong(
                f"{self.view.name}: who waits for {position} reads up to {answer}, which no result says"
            )

    def complete_rows(self) -> bool:
        """Whether all rows that there are were published, and are said to be complete."""
        if self.seen is None or self.runs[self.seen.run].rows() != self.table:
            return False
        return all(_end(key) <= (self.seen.complete or NEVER) for key in self.table)


def reached(result: Result) -> int:
    """How far the watermark was at a result."""
    return max(at for at in (result.watermark, result.reached, NEVER) if at is not None)


def _end(key: bytes) -> int:
    return int(key.rpartition(b"@")[2]) + WINDOW_US


def _lacks(result: Result, before: Result) -> str:
    return ", ".join(
        f"{topic}-{number} up to {end}"
        for topic, parts in before.inputs.items()
        for number, end in parts.items()
        if topic != TICKS and result.inputs.get(topic, {}).get(number, 0) < end
    )
