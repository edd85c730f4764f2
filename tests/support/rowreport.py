"""A row of tests reports how far it is: ``pytest --row-report FILE`` keeps a JSON object in a file, which ``suite.py`` reads."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

__all__ = ["RowReport"]


class RowReport:
    """A plugin of pytest. Each test updates ``total``, ``done``, ``failed`` with the names of tests, and ``seconds`` by file.

    The seconds of a file are those of tests that share a Spark session, under ``shared``, and of all others, under ``apart``.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._total = 0
        self._done = 0
        self._failed: list[str] = []
        self._kinds: dict[str, str] = {}
        self._seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)
        for item in session.items:
            shares = item.get_closest_marker("spark") and not item.get_closest_marker("own_spark")
            self._kinds[item.nodeid] = "shared" if shares else "apart"
        self._write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)
        file = report.nodeid.partition("::")[0]
        self._seconds[file][self._kinds[report.nodeid]] += report.duration
        if report.when == "teardown":
            self._done += 1
            self._write()

    def _write(self) -> None:
        """A reader never sees half of it."""
        seconds = {
            file: {kind: round(value, 1) for kind, value in kinds.items()}
            for file, kinds in self._seconds.items()
        }
        said = {"total": self._total, "done": self._done, "failed": self._failed, "seconds": seconds}
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(said))
        part.replace(self._file)
