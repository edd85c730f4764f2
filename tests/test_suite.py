"""The rows of ``make test``: every file is in one of them, two of them start Spark, and they say how far they are."""

import json
from pathlib import Path

import pytest

from suite import DURATIONS, NAMES, SHARING, TESTS, divided, progress

pytest_plugins = ["pytester"]


def test_every_file_is_in_one_row_and_sessions_are_shared_by_two():
    seconds = {f"tests/pipeline/test_{n}.py": {"shared": 10.0 * n, "apart": 1.0} for n in range(1, 8)}
    seconds |= {f"tests/log/test_{n}.py": {"apart": 10.0 * n} for n in range(1, 8)}
    files = [*seconds, "tests/pipeline/test_new.py", "tests/log/test_new.py"]
    rows = divided(files, seconds)
    assert sorted(file for chosen in rows.values() for file in chosen) == sorted(files)
    sharing = {file for name in SHARING for file in rows[name]}
    assert {file for file in files if "pipeline" in file} <= sharing
    busy = [sum(sum(seconds.get(file, {}).values()) for file in chosen) for chosen in rows.values()]
    assert max(busy) - min(busy) < 40
    assert list(rows) == list(NAMES)


def test_the_record_is_of_files_that_are_there():
    """A file that was renamed would have no record, and rows would end one after the other."""
    recorded = json.loads(DURATIONS.read_text())
    assert [file for file in recorded if not (TESTS.parent / file).exists()] == []


def test_a_line_says_how_far_all_rows_are():
    reports = {
        "views-1": {"done": 43, "total": 100, "failed": []},
        "others": {"done": 0, "total": 0, "failed": ["a", "b"]},
    }
    assert progress(reports) == "views-1 43 %  others 0 %  2 failed"


def test_a_row_reports_what_is_done_what_has_failed_and_what_it_took(pytester: pytest.Pytester):
    pytester.makeconftest(
        f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from support.rowreport import RowReport

        def pytest_configure(config):
            config.addinivalue_line("markers", "spark: shares a session")
            config.pluginmanager.register(RowReport(Path("report.json")))
        """
    )
    pytester.makepyfile(
        """
        import time
        import pytest

        @pytest.mark.spark
        def test_right():
            time.sleep(0.2)

        def test_wrong():
            assert False
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider")
    report = json.loads((pytester.path / "report.json").read_text())
    assert (report["total"], report["done"]) == (2, 2)
    (wrong,) = report["failed"]
    assert wrong.endswith("::test_wrong")
    (seconds,) = report["seconds"].values()
    assert seconds["shared"] >= 0.2
    assert "apart" in seconds
