"""Folders of an application that earlier commits have left: this code takes them up, and every record counts once."""

import re
import sqlite3
import tarfile
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from formats.life import Life, orders
from headwater.errors import UsageError
from headwater.formats import RESULT
from support.servers import free_port

COUNT = "from pyspark.sql.functions import count as hw_count\n\napp = hw.App"
HERE = Path(__file__).parent / "application"
FOLDERS = sorted(path.name.removesuffix(".tar.gz") for path in HERE.glob("*.tar.gz"))
RENAMED = {
    "hw.correct(": "hw.late.correct(",
    'orders="count(*)"': 'orders=hw_count("*")',
    "app = hw.App": COUNT,
}
"""What the application files of the folders say in the words of a former API."""
BEFORE, LATER = range(90), range(90, 150)
"""The orders that ``make_application.py`` has sent, and those that come now."""


def unpacked(name: str, folder: Path) -> Life:
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    app = folder / "app.py"
    text = app.read_text()
    for former, now in RENAMED.items():
        text = text.replace(former, now)
    app.write_text(text)
    return Life(folder, free_port())


def expected(numbers: range) -> dict[str, dict[str, Any]]:
    """The rows of all views, as plain Python makes them of the same orders."""
    sent = orders(numbers)
    countries = sorted({order["country"] for order in sent})
    by_country = {name: [order for order in sent if order["country"] == name] for name in countries}
    by_minute = Counter(f"{order['at'][:17]}00Z" for order in sent)
    return {
        "totals": {
            name: {"country": name, "orders": len(found), "cents": sum(order["cents"] for order in found)}
            for name, found in by_country.items()
        },
        "counted": {name: {"country": name, "count": len(found)} for name, found in by_country.items()},
        "minutes": {
            time(start): {"window": {"start": time(start), "end": time(start, 60)}, "orders": count}
            for start, count in by_minute.items()
        },
        "visits": {
            f'["{name}","{time(found[0]["at"])}"]': {
                "country": name,
                "window": {"start": time(found[0]["at"]), "end": time(found[-1]["at"], 30)},
                "orders": len(found),
            }
            for name, found in by_country.items()
        },
        "large": {name: {"country": name, "n": len(found)} for name, found in by_country.items()},
    }


def of(life: Life, rows: dict[str, Any]) -> dict[str, Any]:
    """The rows of those views that a folder has."""
    return {view: rows[view] for view in life.shown}


def time(text: str, later_s: int = 0) -> str:
    """A time as rows have it."""
    moment = datetime.fromisoformat(text) + timedelta(seconds=later_s)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.own_spark
@pytest.mark.parametrize("name", FOLDERS)
def test_views_of_an_earlier_commit_continue_with_their_state_and_count_every_record_once(name, tmp_path):
    life = unpacked(name, tmp_path)
    with life.broker():
        assert {view: life.rows(view) for view in life.shown} == of(life, expected(BEFORE))
        runs = {view: life.run_of(view) for view in life.shown}
        life.send(LATER)

        assert life.views() == ""

        assert {view: life.rows(view) for view in life.shown} == of(life, expected(range(150)))
        assert {view: life.run_of(view) for view in life.shown} == runs
        life.tables()
        assert {view: life.table(view) for view in life.shown} == of(life, expected(range(150)))
        assert life.sink() == ""


@pytest.mark.parametrize("name", FOLDERS)
def test_a_capture_of_an_earlier_commit_continues_after_its_position(name, tmp_path):
    life = unpacked(name, tmp_path)
    with life.broker():
        before = life.records("shop.item")
        assert len(before) == 3

        assert life.capture("UPDATE item SET cents = 60 WHERE id = 2", "DELETE FROM item WHERE id = 1") == ""

        assert [record for record in life.records("shop.item") if record in before] == before
        later = [value for _, value in life.records("shop.item") if (_, value) not in before]
        assert sorted(value["op"] for value in later if value) == ["d", "u"]
        assert len(later) == 3, "the update, the deletion and its tombstone"


def test_commands_refuse_what_a_newer_version_has_left_in_a_folder(tmp_path):
    life = unpacked(FOLDERS[-1], tmp_path)
    refused = "headwater: .* was written by a newer Headwater; got format 2; expected at most 1; install that version again, or "
    for file, table in (("shop.db", "_headwater_format"), ("sink.db", "headwater_format")):
        with closing(sqlite3.connect(life.folder / file, isolation_level=None)) as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {table} (format INTEGER PRIMARY KEY)")
            db.execute(f"INSERT INTO {table} VALUES (2)")
    with closing(sqlite3.connect(life.folder / "data" / "views" / "totals.db", isolation_level=None)) as db:
        db.execute("PRAGMA user_version = 2")
    with life.broker():
        assert re.search(refused, life.capture("UPDATE item SET cents = 1"))
        assert re.search(refused, life.sink())
        with pytest.raises(UsageError, match="newer Headwater"):
            life.tables()
        assert life.table("totals") == expected(BEFORE)["totals"]


@pytest.mark.own_spark
def test_a_view_does_not_start_on_results_of_a_newer_version(tmp_path):
    life = unpacked(FOLDERS[-1], tmp_path)
    with life.broker():
        topic = "totals.progress"
        key, last = life.records(topic)[-1]
        life.put(topic, key, last | {"batch": last["batch"] + 1, "format": RESULT.newest + 1})
        life.send(LATER)

        said = life.views()

        assert "newer Headwater" in said
        assert "headwater view reset totals --accept-loss" in said
        assert life.rows("totals") == expected(BEFORE)["totals"]


@pytest.mark.parametrize("name", FOLDERS)
def test_tables_and_sinks_of_an_earlier_commit_are_taken_up_as_they_are(name, tmp_path):
    life = unpacked(name, tmp_path)
    row = {"country": "ES", "orders": 1, "cents": 5}
    with life.broker():
        builds = [life.build(view) for view in life.shown]
        life.put("totals", "ES", row)
        life.tables()
        assert life.sink() == ""

        rows = of(life, expected(BEFORE))
        rows["totals"]["ES"] = row
        assert {view: life.table(view) for view in life.shown} == rows
        assert [life.build(view) for view in life.shown] == builds, "a table was filled again"
