"""Polling sees the newest value of each row once, continues from any position, and misses what it says it misses."""

import sqlite3

import pytest

from headwater.capture.sqlite import polling
from headwater.capture.sqlite.polling import PollingSource
from headwater.errors import CaptureError, UsageError
from support.capturedb import applied, changes, records


@pytest.fixture
def db(tmp_path):
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("CREATE TABLE t(id TEXT PRIMARY KEY, a, version INTEGER)")
    yield connection
    connection.close()


def read(path, position):
    """Until there is nothing more."""
    source, found = PollingSource("shop", f"sqlite:{path / 'shop.db'}", "t", "version", every_s=0.01), []
    for part in source.read(position):
        if not part.records:
            break
        found.append(part)
    source.close()
    return found


def test_rows_come_by_their_version_and_again_when_it_grows(db, tmp_path, monkeypatch):
    monkeypatch.setattr(polling, "ROWS_MAX", 3)
    db.executemany("INSERT INTO t VALUES (?, 0, ?)", [(f"é{n}", n // 4) for n in range(10)])
    first = read(tmp_path, None)
    assert [after["id"] for _, _, after in changes(first)] == [f"é{n}" for n in range(10)]
    seen = 0
    for part in first:
        seen += len(part.records)
        rest = [after["id"] for _, _, after in changes(read(tmp_path, part.position))]
        assert rest == [f"é{n}" for n in range(seen, 10)]

    db.execute("UPDATE t SET a = 1, version = 7 WHERE id = 'é0'")
    assert changes(read(tmp_path, first[-1].position)) == [("r", None, {"id": "é0", "a": 1, "version": 7})]


def test_deletes_and_values_between_are_not_seen(db, tmp_path):
    db.execute("INSERT INTO t VALUES ('a', 1, 1), ('b', 1, 2)")
    first = read(tmp_path, None)
    db.execute("DELETE FROM t WHERE id = 'a'")
    db.execute("UPDATE t SET a = 2, version = 3")
    db.execute("UPDATE t SET a = 3, version = 4")
    second = read(tmp_path, first[-1].position)

    assert [after["a"] for _, _, after in changes(second)] == [3]
    assert len(applied(records(first + second))["shop.t"]) == 2


def test_what_cannot_be_polled_is_refused(db, tmp_path):
    db.execute("CREATE TABLE bare(version)")
    with pytest.raises(UsageError, match="sqlite:PATH"):
        PollingSource("shop", "postgresql://h", "t", "version")
    with pytest.raises(CaptureError, match="no primary key"):
        next(PollingSource("shop", f"sqlite:{tmp_path / 'shop.db'}", "bare", "version").read(None))
    with pytest.raises(CaptureError, match="no column when"):
        next(PollingSource("shop", f"sqlite:{tmp_path / 'shop.db'}", "t", "when").read(None))
