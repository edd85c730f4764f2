"""The embedded search index: the promises of every store, and rows found by words, numbers and times."""

import json
import os
import signal
import subprocess
import sys

import pytest

from headwater.change import Change
from headwater.errors import UnavailableError, UsageError
from headwater.sink import Tantivy
from headwater.sink.store import Batch, Poison, SinkFeed
from headwater.sink.stores import tantivy as module
from headwater.sink.stores.tantivy import search
from sink.contract import COLUMNS, Contract, batch, brought_back, change, copied, feed
from sink.killed import Killed

ARTICLES = {
    "id": "BIGINT",
    "title": "STRING",
    "tags": "ARRAY<STRING>",
    "price": "DECIMAL(38,9)",
    "at": "TIMESTAMP",
    "sold": "BOOLEAN",
    "maker": "STRUCT<`name`: STRING, `since`: INT>",
    "photo": "BINARY",
}


class TantivyPlace:
    def __init__(self, folder):
        self.folder = folder
        self.target = Tantivy(folder)
        self.expression = f"hw.sink.Tantivy({str(folder)!r})"

    def save(self):
        return copied(self.folder)

    def restore(self, saved):
        brought_back(self.folder, saved)

    def write_format(self, of, number):
        current = self.folder / of.topic / "current"
        about = json.loads(current.read_text())
        del about["format"]
        current.write_text(json.dumps(about if number is None else about | {"format": number}))

    def rows(self, feed):
        return {row["id"]: row for row in search(self.folder / feed.topic, "*", 10_000)}


@pytest.fixture
def place(tmp_path):
    return TantivyPlace(tmp_path / "search")


class TestTantivy(Contract, Killed):
    longest_s = 0.1


def articles(**more):
    return SinkFeed("articles.search", "articles", ("id",), ARTICLES | more)


def article(number, title, offset, **more):
    row = {
        "id": number,
        "title": title,
        "tags": ["new"],
        "price": "9.90",
        "at": "2026-01-31T10:00:00.000001Z",
    }
    return Change(str(number), json.dumps(row | more), 0, offset, 0)


@pytest.fixture
def shelf(tmp_path):
    target = Tantivy(tmp_path, text=["title"])
    store = target.open(articles())
    store.claim([0])
    store.apply(
        batch(
            article(1, "Red running shoes", 0, price="20.00", sold=True),
            article(2, "Blue walking shoes", 1, maker={"name": "Acme", "since": 1949}),
            article(3, "Red hat", 2, at="2027-06-01T00:00:00.000000Z", tags=["old", "wool"]),
        )
    )
    return tmp_path / "articles", store, target


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("shoes", {1, 2}),
        ("RED AND shoes", {1}),
        ('"running shoes"', {1}),
        ("title:red -hat", {1}),
        ("price:[15 TO 25]", {1}),
        ("tags:wool", {3}),
        ("sold:true", {1}),
        ("maker.name:Acme", {2}),
        ("at:[2027-01-01T00:00:00Z TO 2028-01-01T00:00:00Z]", {3}),
        ("id:2", {2}),
        ("*", {1, 2, 3}),
        ("* -shoes", {3}),
    ],
)
def test_rows_are_found_by_words_numbers_and_times(shelf, query, found):
    assert {row["id"] for row in search(shelf[0], query)} == found


VALUES = {
    "BOOLEAN": True,
    "TINYINT": 1,
    "BIGINT": 1 << 40,
    "FLOAT": "NaN",
    "DOUBLE": 2,
    "DECIMAL(9,2)": "1.25",
    "STRING": "a word",
    "BINARY": "AAE=",
    "DATE": "2026-01-31",
    "TIMESTAMP": "2026-01-31T10:00:00.000001Z",
    "TIMESTAMP_NTZ": "2026-01-31T10:00:00.000001",
    "STRUCT<`name`: STRING>": {"name": "Acme"},
    "MAP<STRING,INT>": {"one": 1},
    "ARRAY<INT>": [1, 2],
}


@pytest.mark.parametrize("around", ["{}", "ARRAY<{}>"], ids=["alone", "in an array"])
@pytest.mark.parametrize("column", VALUES)
def test_a_column_of_any_type_is_taken(tmp_path, column, around):
    """Those that cannot be looked for are in the row all the same."""
    value = [VALUES[column], None] if "<" in around else VALUES[column]
    store = Tantivy(tmp_path).open(
        SinkFeed("s", "any", ("id",), {"id": "BIGINT", "it": around.format(column)})
    )
    store.claim([0])
    store.apply(batch(Change("1", json.dumps({"id": 1, "it": value}), 0, 0, 0)))
    assert search(tmp_path / "any", "*") == [{"id": 1, "it": value}]


def test_a_row_comes_back_as_it_is_in_the_log(shelf):
    (row,) = search(shelf[0], "hat", 1)
    assert row == {
        "id": 3,
        "title": "Red hat",
        "tags": ["old", "wool"],
        "price": "9.90",
        "at": "2027-06-01T00:00:00.000000Z",
    }
    with pytest.raises(UsageError, match="cannot be read"):
        search(shelf[0], "nosuchcolumn:1")
    with pytest.raises(UsageError, match="holds no index"):
        search(shelf[0].parent, "x")


def test_a_column_more_keeps_rows_and_offsets(shelf):
    folder, store, target = shelf
    store.close()
    wider = target.open(articles(rating="INT"))

    assert dict(wider.claim([0])) == {0: 3}
    wider.apply(batch(article(4, "Green shoes", 3, rating=5)))
    assert {row["id"] for row in search(folder, "shoes")} == {1, 2, 4}
    assert [row["id"] for row in search(folder, "rating:5")] == [4]


def test_a_value_that_does_not_fit_is_named_and_nothing_is_written(shelf):
    folder, store, _ = shelf
    with pytest.raises(Poison, match="does not fit") as caught:
        store.apply(batch(article(5, "Fine", 3), article(6, 17, 4)))

    assert (caught.value.partition, caught.value.offset) == (0, 4)
    assert search(folder, "fine") == []


def test_records_that_are_rows_of_their_own_are_all_kept(tmp_path):
    store = Tantivy(tmp_path).open(SinkFeed("clicks.search", "clicks", (), COLUMNS, append=True))
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change("a", 2, 1)))

    assert sorted(row["total"] for row in search(tmp_path / "clicks", "*")) == [1, 2]


def test_a_row_whose_version_is_smaller_is_passed_over_and_of_equal_ones_the_later_counts(tmp_path):
    store = Tantivy(tmp_path).open(feed())
    store.claim([0])

    def put(*rows):
        made = [Change("a", json.dumps({"id": "a", "total": t}), 0, o, 0, v) for t, o, v in rows]
        store.apply(Batch(made, {0: made[-1].offset + 1}))
        (row,) = search(tmp_path / "orders", "*")
        return row["total"]

    assert put((31, 0, 31)) == 31
    assert put(*((n, n, n) for n in range(1, 32))) == 31
    assert put((32, 40, 32)) == 32
    assert put((33, 41, 32)) == 33


def test_a_folder_that_another_process_holds_is_reported_with_that_process(place, monkeypatch):
    monkeypatch.setattr(module, "LOCK_S", 0.2)
    store = place.target.open(feed())
    store.claim([0])
    code = (
        "import fcntl,sys,os,time; f=open(sys.argv[1],'a+'); fcntl.flock(f,2); f.truncate(0); "
        "f.write(str(os.getpid())); f.flush(); print(1,flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(place.folder / "orders" / "lock")], stdout=subprocess.PIPE
    )
    holder.stdout.readline()
    try:
        with pytest.raises(UnavailableError, match=f"process {holder.pid}"):
            store.apply(batch(change("a", 1, 0)))
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    store.apply(batch(change("a", 1, 0)))
    assert place.rows(feed())["a"]["total"] == 1


def test_a_wrong_declaration_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match="no such column to cut into words; got subject"):
        Tantivy(tmp_path, text=["subject"]).check(articles())
    with pytest.raises(UsageError, match="is not text"):
        Tantivy(tmp_path, text=["price"]).check(articles())
    with pytest.raises(UsageError, match="no type for a column; got INTERVAL DAY"):
        Tantivy(tmp_path).check(articles(pause="INTERVAL DAY"))
    Tantivy(tmp_path).open(feed()).close()
    with pytest.raises(UsageError, match=r"belongs to sink orders\.store"):
        Tantivy(tmp_path).open(feed("another"))


@pytest.mark.parametrize("version", [None, 7], ids=["plain", "versioned"])
def test_a_row_with_a_key_longer_than_a_term_is_replaced_and_deleted_like_any_other(tmp_path, version):
    target = Tantivy(tmp_path, text=["title"])
    store, key = target.open(articles()), "é" * 40_000
    other = key[:-1] + "x"

    def put(offset, key, title, step=0):
        row = None if title is None else json.dumps({"id": 1, "title": title, "_version": version})
        later = None if version is None else version + step
        store.apply(Batch([Change(key, row, 0, offset, 0, later)], {0: offset + 1}))

    def titles():
        return sorted(row["title"] for row in search(tmp_path / "articles", "*"))

    store.claim([0])
    put(0, key, "first")
    put(1, other, "other")
    put(2, key, "second", 1)
    assert titles() == ["other", "second"]
    target.open(articles(more="STRING")).claim([0])
    store = target.open(articles(more="STRING"))
    store.claim([0])
    put(3, key, "third", 2)
    assert titles() == ["other", "third"], "also after the index was made again with another column"
    put(4, key, None, 3)
    assert titles() == ["other"]


def test_days_beyond_what_an_index_can_hold_are_found_at_its_ends(tmp_path):
    store = Tantivy(tmp_path).open(
        SinkFeed("s", "t", ("id",), {"id": "STRING", "until": "TIMESTAMP", "day": "DATE"})
    )
    days = {"a": "9999-12-31", "b": "0001-01-01", "c": "2020-01-01", "d": "2262-04-12", "e": "1677-09-20"}
    rows = [{"id": key, "until": f"{day}T00:00:00.000000Z", "day": day} for key, day in days.items()]
    store.claim([0])
    store.apply(Batch([Change(row["id"], json.dumps(row), 0, n, 0) for n, row in enumerate(rows)], {0: 5}))

    def found(query):
        return sorted(row["id"] for row in search(tmp_path / "t", query))

    assert sorted(search(tmp_path / "t", "*"), key=lambda row: row["id"]) == rows
    for column in ("until", "day"):
        assert found(f"{column}:{{2030-01-01T00:00:00Z TO *]") == ["a", "d"]
        assert found(f"{column}:[* TO 1900-01-01T00:00:00Z}}") == ["b", "e"]
