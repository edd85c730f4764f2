"""All tests, in rows side by side, which take about as long as each other; ``make test`` runs it.

    python tests/suite.py PYTEST [--record]

Tests that share a Spark session are in the first two rows, so that two sessions are started and no more. A file of tests is in one row.
``--record`` writes what each file took into durations.json, by which the files are divided. Every WATCH_S a line says how far the rows are.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DURATIONS", "Row", "divided", "progress"]

TESTS = Path(__file__).parent
DURATIONS = TESTS / "durations.json"
SHARING = ("views-1", "views-2")
"""The rows of tests that share a Spark session."""
NAMES = (*SHARING, "others-1", "others-2")
"""Twice as many as cores: tests wait for servers, kills and syncs about half of their time."""
WATCH_S = 15
UNKNOWN_S = 5.0
"""What a file takes that has no record."""

Seconds = Mapping[str, Mapping[str, float]]


def divided(files: Sequence[str], seconds: Seconds) -> dict[str, list[str]]:
    """The files of each row: the longest first, each to the row that has least to do."""

    def length(file: str) -> float:
        return sum(seconds[file].values()) if file in seconds else UNKNOWN_S

    def shares(file: str) -> bool:
        return "shared" in seconds[file] if file in seconds else file.startswith("tests/pipeline/")

    rows: dict[str, list[str]] = {name: [] for name in NAMES}
    busy = dict.fromkeys(NAMES, 0.0)
    for file in sorted(files, key=lambda file: (not shares(file), -length(file), file)):
        name = min(SHARING if shares(file) else NAMES, key=lambda name: (busy[name], NAMES.index(name)))
        rows[name].append(file)
        busy[name] += length(file)
    return rows


@dataclass
class Row:
    """Tests that run one after the other in a process."""

    name: str
    files: list[str]
    folder: Path

    def start(self, pytest: str) -> None:
        command = [pytest, "-q", "--durations=15", "--row-report", str(self._report), *self.files]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    @property
    def output(self) -> Path:
        return self.folder / f"{self.name}.out"

    @property
    def _report(self) -> Path:
        return self.folder / f"{self.name}.json"

    def report(self) -> dict[str, Any]:
        """How far it is (``rowreport.py``)."""
        nothing: dict[str, Any] = {"total": 0, "done": 0, "failed": [], "seconds": {}}
        return json.loads(self._report.read_text()) if self._report.exists() else nothing


def progress(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """A line about all rows."""
    parts = [f"{name} {100 * each['done'] // max(each['total'], 1)} %" for name, each in reports.items()]
    return "  ".join([*parts, f"{sum(len(each['failed']) for each in reports.values())} failed"])


def watch(rows: Sequence[Row]) -> None:
    """Until all rows have ended."""
    began, reported = time.monotonic(), set[str]()
    while running := [row for row in rows if row.process.poll() is None]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].process.wait(WATCH_S)
        reports = {row.name: row.report() for row in rows}
        for name in (
            name for report in reports.values() for name in report["failed"] if name not in reported
        ):
            reported.add(name)
            _say(f"failed: {name}")
        _say(f"{(time.monotonic() - began) / 60:4.1f} min  {progress(reports)}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  it is for who runs it


def _record(rows: Sequence[Row]) -> None:
    seconds = {file: kinds for row in rows for file, kinds in row.report()["seconds"].items()}
    DURATIONS.write_text(json.dumps(seconds, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="all tests, in rows")
    parser.add_argument("pytest")
    parser.add_argument("--record", action="store_true", help="write what each file took into durations.json")
    arguments = parser.parse_args()
    seconds = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    files = sorted(str(file.relative_to(TESTS.parent)) for file in TESTS.rglob("test_*.py"))
    with tempfile.TemporaryDirectory() as folder:
        rows = [Row(name, chosen, Path(folder)) for name, chosen in divided(files, seconds).items()]
        for row in rows:
            row.start(arguments.pytest)
        try:
            watch(rows)
        except KeyboardInterrupt:  # the rows have heard it too
            for row in rows:
                row.process.wait()
        if arguments.record:
            _record(rows)
        for row in rows:
            _say(f"\n== {row.name}\n{row.output.read_text(errors='replace')}")
        failed = [row for row in rows if row.process.returncode]
        for row in failed:
            _say(f"== failed in {row.name}: {', '.join(row.report()['failed']) or row.process.returncode}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
