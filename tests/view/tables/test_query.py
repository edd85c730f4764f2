"""Queries on a view's table."""

import json
import random
import sqlite3

import pytest

from headwater.change import Change
from headwater.errors import UsageError
from headwater.position import Position
from headwater.view.tables.query import parse
from headwater.view.tables.reader import EXTENT, ViewTable
from headwater.view.tables.writer import SqliteTable

ROWS = {
    "a": {
        "country": "DE",
        "revenue": 10,
        "ok": True,
        "window": {"start": "2026-01-05T09:00:00.000000Z"},
        "note": None,
        "_version": 4,
    },
    "b": {
        "country": "FR",
        "revenue": 2.5,
        "ok": False,
        "window": {"start": "2026-01-05T09:05:00.000000Z"},
        "note": "x",
    },
    "c": {
        "country": "GB",
        "revenue": 100,
        "ok": True,
        "window": {"start": "2026-01-05T09:05:00.000000Z"},
        "note": "5",
    },
    "d": {
        "country": "5",
        "revenue": 3,
        "ok": True,
        "window": {"start": "2026-01-05T09:10:00.000000Z"},
        "rare": 1,
    },
}


@pytest.fixture
def table(tmp_path):
    writer = SqliteTable(tmp_path / "v.db")
    changes = [Change(key, json.dumps(row), 0, n, n) for n, (key, row) in enumerate(ROWS.items())]
    writer.apply([*changes, Change("gone", None, 0, 4, 4)], Position({"v": {0: 5}}))
    writer.close()
    return ViewTable(tmp_path / "v.db")


def keys(table, *parameters):
    query = parse(tuple(text.split("=", 1)) for text in parameters)
    return [row.key for row in table.rows(query).rows]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], "abcd"),
        (["country=FR"], "b"),
        (["country=5"], "d"),
        (["country.ne=FR"], "acd"),
        (["revenue=10"], "a"),
        (["revenue=2.5"], "b"),
        (["revenue.gte=3"], "acd"),
        (["revenue.gt=3"], "ac"),
        (["revenue.lt=3"], "b"),
        (["revenue.lte=3"], "bd"),
        (["revenue.gt=2", "revenue.lt=50"], "abd"),
        (["ok=true"], "acd"),
        (["ok=false"], "b"),
        (["note=null"], "ad"),
        (["note=5"], "c"),
        (["window.start.gte=2026-01-05T09:05:00Z"], "bcd"),
        (["window.start=2026-01-05T10:05+01:00"], "bc"),
        (["window.start.lt=2026-01-05T09:05"], "a"),
        (["rare=1"], "d"),
        (["order=revenue"], "bdac"),
        (["order=-revenue"], "cadb"),
        (["order=-window.start,country"], "dbca"),
        (["order=-revenue", "limit=2"], "ca"),
        (["country=nowhere"], ""),
        (["country=' OR 1=1 --"], ""),
    ],
)
def test_filters_order_and_limit(table, asked, expected):
    assert "".join(keys(table, *asked)) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("revenu=1", "unknown column 'revenu'; did you mean 'revenue'?"),
        ("order=-contry", "unknown column 'contry'; did you mean 'country'?"),
        ("window.begin=1", "did you mean 'window.start'"),
        ("window=1", "column 'window' has parts; expected window.start"),
        ("_version=4", "unknown column '_version'"),
        ("zzzzzz=1", "columns are: country, revenue"),
        ('a"b=1', "unknown column"),
        ("revenue=much", "column 'revenue' holds numbers; got 'much'"),
        ("limit=0", "limit is wrong; got '0'; expected a number from 1 to 100000"),
        ("limit=-1", "limit is wrong"),
        ("limit=ten", "limit is wrong"),
    ],
)
def test_a_wrong_query_says_what_is_wrong_and_what_is_near(table, asked, message):
    with pytest.raises(UsageError) as error:
        keys(table, asked)

    assert message in str(error.value)


def test_too_many_filters_are_refused():
    with pytest.raises(UsageError, match="too many filters"):
        parse([("revenue.gt", "1")] * 100)


def test_a_cut_result_says_that_there_is_more(table):
    assert table.rows(parse([("limit", "3")])).more
    assert not table.rows(parse([("limit", "4")])).more
    assert len(table.rows().rows) == 4


def test_columns_that_are_ours_are_not_shown(table):
    row = table.rows(parse([("country", "DE")])).rows[0]

    assert row.columns() == {name: value for name, value in ROWS["a"].items() if name != "_version"}


def test_rows_and_position_come_from_one_moment(table):
    snapshot = table.newest(2)

    assert [row.key for row in snapshot.rows] == ["d", "c"]
    assert snapshot.more
    assert snapshot.position == table.position() == table.extent().position
    assert table.extent().rows == 4
    assert table.extent().changed_at_ms == 3


def test_what_changed_since_a_position_is_answered_or_refused(table):
    here = table.position()

    def since(offset, limit=10):
        found = table.since(Position({"v": {0: offset}}, here.build), limit)
        return None if found is None else [(row.key, row.value is None) for row in found.rows]

    assert since(3) == [("d", False), ("gone", True)]
    assert since(5) == []
    assert since(6) is None  # a position that this table has not reached
    assert since(0, limit=3) is None  # too much: a snapshot is cheaper
    assert table.since(Position({"v": {0: 3}}, here.build - 1), 10) is None


def test_a_table_that_is_not_there_yet_is_empty(tmp_path):
    table = ViewTable(tmp_path / "later.db")

    assert table.rows().rows == ()
    assert table.extent().rows == 0
    assert table.since(Position(), 1) is None
    assert not table.path.exists()


def test_the_rows_that_held_at_a_time(tmp_path):
    at = "2026-01-0{}T00:00:00.000000Z".format
    rows = {
        "a1": {"item": "a", "rate": 1, "valid_from": at(1), "valid_to": at(5)},
        "a2": {"item": "a", "rate": 2, "valid_from": at(5), "valid_to": None},
        "b1": {"item": "b", "rate": 3, "valid_from": at(3), "valid_to": at(6)},
    }
    writer = SqliteTable(tmp_path / "v.db")
    writer.apply(
        [Change(key, json.dumps(row), 0, n, n) for n, (key, row) in enumerate(rows.items())],
        Position({"v": {0: 3}}),
    )
    writer.close()
    table = ViewTable(tmp_path / "v.db")
    assert keys(table, "as_of=2025-12-31T23:59:59.999999Z") == []
    assert keys(table, "as_of=2026-01-01T00:00:00Z") == ["a1"]
    assert keys(table, "as_of=2026-01-05T01:00:00+01:00") == ["a2", "b1"]
    assert keys(table, "as_of=2026-01-05T00:00:00Z", "item=a") == ["a2"]
    assert keys(table, "as_of=2026-01-06T00:00Z") == ["a2"]


def test_a_view_without_validity_says_so_and_a_wrong_time_is_refused(table):
    with pytest.raises(UsageError, match="no time from which they are valid"):
        keys(table, "as_of=2026-01-05T00:00:00Z")
    with pytest.raises(UsageError, match="as_of is not a time; got 'yesterday'"):
        keys(table, "as_of=yesterday")


MONEY = {
    "de": "9.50",
    "fr": "100.00",
    "us": "1000.25",
    "it": "-3.00",
    "es": "-20.00",
    "gb": "99999999999999999999999999999.999999998",
    "ie": "99999999999999999999999999999.999999999",
    "jp": "0.00",
    "no": None,
}


@pytest.fixture
def money(tmp_path):
    writer = SqliteTable(tmp_path / "v.db")
    rows = {key: {"revenue": text, "sums": {"net": text}, "release": text} for key, text in MONEY.items()}
    changes = [Change(key, json.dumps(row), 0, n, n) for n, (key, row) in enumerate(rows.items())]
    writer.apply(changes, Position({"v": {0: len(changes)}}))
    writer.close()
    kinds = {"revenue": "DECIMAL(38,9)", "sums": "STRUCT<`net`: DECIMAL(38,9)>", "release": "STRING"}
    return ViewTable(tmp_path / "v.db", columns=lambda: kinds)


@pytest.mark.parametrize("column", ["revenue", "sums.net"])
def test_decimals_are_ordered_and_compared_as_numbers_to_the_last_digit(money, column):
    ordered = ["no", "es", "it", "jp", "de", "fr", "us", "gb", "ie"]

    assert keys(money, f"order={column}") == ordered
    assert keys(money, f"order=-{column}", "limit=3") == ["ie", "gb", "us"]
    assert keys(money, f"{column}.gt=50", f"order={column}") == ["fr", "us", "gb", "ie"]
    assert keys(money, f"{column}.lt=-3.000") == ["es"]
    assert keys(money, f"{column}.lte=-3", f"order={column}") == ["es", "it"]
    assert (
        keys(money, f"{column}=100")
        == keys(money, f"{column}=1e2")
        == keys(money, f"{column}=+100.0")
        == ["fr"]
    )
    assert keys(money, f"{column}=-0") == ["jp"]
    assert keys(money, f"{column}.gte=99999999999999999999999999999.999999999") == ["ie"]
    assert keys(money, f"{column}=null") == ["no"]
    assert sorted(keys(money, f"{column}.ne=100")) == sorted({*MONEY} - {"fr"})


def test_a_text_that_looks_like_a_decimal_is_a_text(money):
    assert keys(money, "release=100") == []
    assert keys(money, "release=100.00") == ["fr"]
    assert keys(money, "order=-release", "limit=2") == ["ie", "gb"]
    assert keys(money, "release.lt=1") == ["es", "it", "jp"]


def test_decimals_are_known_by_their_form_where_nothing_says_the_types(money):
    unsaid = ViewTable(money.path)
    assert keys(unsaid, "order=-revenue", "limit=3") == ["ie", "gb", "us"]
    assert keys(unsaid, "revenue=100") == ["fr"]


@pytest.mark.parametrize("text", ["much", "NaN", "1e9999", ""])
def test_what_no_decimal_can_be_is_refused(money, text):
    with pytest.raises(UsageError, match="holds numbers"):
        keys(money, f"revenue.gt={text}")


def test_the_number_of_rows_is_right_after_any_history(tmp_path):
    chance, rows = random.Random(7), dict[str, str | None]()
    writer = SqliteTable(tmp_path / "v.db")
    for at in range(0, 2000, 20):
        changes = []
        for offset in range(at, at + 20):
            key = f"k{chance.randrange(60)}"
            rows[key] = None if chance.random() < 0.4 else f'{{"n":{offset}}}'
            changes.append(Change(key, rows[key], 0, offset, offset))
        writer.apply(changes, Position({"v": {0: at + 20}}))
        assert ViewTable(tmp_path / "v.db").extent().rows == sum(row is not None for row in rows.values())
    writer.reset("")
    assert ViewTable(tmp_path / "v.db").extent().rows == 0
    writer.close()


def test_the_number_of_rows_is_known_without_counting_them(tmp_path):
    writer = SqliteTable(tmp_path / "v.db")
    writer.apply([Change(f"k{n}", "{}", 0, n, n) for n in range(5000)], Position({"v": {0: 5000}}))
    writer.close()
    steps = []
    with sqlite3.connect(tmp_path / "v.db") as connection:
        connection.set_progress_handler(lambda: steps.append(1), 1)
        assert connection.execute(EXTENT).fetchone() == (5000, 4999)
    assert len(steps) < 500


def test_a_table_of_an_earlier_version_learns_the_number_of_its_rows(table):
    with sqlite3.connect(table.path) as connection:
        for name in ("row_added", "row_changed", "row_removed"):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP TABLE size")
    assert table.extent().rows == 4, "also for a reader that comes before the writer"
    writer = SqliteTable(table.path)
    writer.apply([Change("e", "{}", 0, 9, 9), Change("a", None, 0, 10, 10)], Position({"v": {0: 11}}))
    writer.close()
    assert table.extent().rows == 4
