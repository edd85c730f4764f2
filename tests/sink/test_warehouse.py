"""Delta tables and Parquet files: what every store promises, types, columns that are added, small files."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from headwater.change import Change
from headwater.errors import UsageError
from headwater.sink import Delta, Parquet
from headwater.sink.store import Poison, SinkFeed, Superseded
from sink.contract import COLUMNS, Contract, batch, brought_back, change, copied, feed
from sink.killed import Killed

EVERYTHING = {
    "id": "STRING",
    "whole": "BIGINT",
    "small": "TINYINT",
    "price": "DECIMAL(38,9)",
    "day": "DATE",
    "at": "TIMESTAMP",
    "photo": "BINARY",
    "sold": "BOOLEAN",
    "real": "DOUBLE",
    "maker": "STRUCT<`name`: STRING, `since`: ARRAY<INT>>",
    "counts": "MAP<STRING, BIGINT>",
}
ROW = {
    "id": "a",
    "whole": 2**40,
    "small": 7,
    "price": "12.500000000",
    "day": "2026-01-31",
    "at": "2026-01-31T10:00:00.000001Z",
    "photo": "AQI=",
    "sold": True,
    "real": "NaN",
    "maker": {"name": "Acme", "since": [1, 2]},
    "counts": {"x": 1},
    "_revision": 3,
}


def value(row, offset=0, **more):
    return Change(row["id"], json.dumps(row | more), 0, offset, 1_769_853_600_000)


class DeltaPlace:
    def __init__(self, folder):
        self.folder = folder
        self.target = Delta(folder, compact_every=5)
        self.expression = f"hw.sink.Delta({str(folder)!r}, compact_every=5)"

    def save(self):
        return copied(self.folder)

    def restore(self, saved):
        brought_back(self.folder, saved)

    def write_format(self, of, number):
        """In a log of the table: the last commit with a format gets another, or none."""
        name = f"headwater.{of.sink}.format"
        for path in sorted((self.folder / of.topic / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            for action in actions:
                if action.get("txn", {}).get("appId") == name:
                    action["txn"]["version"] = number
            kept = [action for action in actions if action.get("txn", {}).get("version", 0) is not None]
            path.write_text("\n".join(map(json.dumps, kept)) + "\n")

    def rows(self, feed):
        found = DeltaTable(self.folder / feed.topic).to_pyarrow_table().to_pylist()
        assert len({row["_key"] for row in found}) == len(found)
        return {row["_key"]: row for row in found}


class TestDelta(Contract, Killed):
    longest_s = 0.15

    @pytest.fixture
    def place(self, tmp_path):
        return DeltaPlace(tmp_path / "lake")

    def test_two_holders_of_other_partitions_commit_at_the_same_table(self, place, store):
        other = place.target.open(feed())
        store.claim([0])
        other.claim([1])
        for n in range(6):
            store.apply(batch(change(f"a{n}", n, n)))
            other.apply(batch(change(f"b{n}", n, n, partition=1)))

        assert len(self.totals(place)) == 12

    def test_a_claim_between_a_look_and_its_commit_is_noticed_by_the_table(self, place, store):
        store.claim([0])
        look = store._state

        def claimed_meanwhile(number):
            seen = look(number)
            if store._state is not look:
                store._state = look
                successor.claim([0])
            return seen

        successor = place.target.open(feed())
        store._state = claimed_meanwhile
        with pytest.raises(Exception, match="taken over"):
            store.apply(batch(change("a", 1, 0)))
        assert self.totals(place) == {}


def rows_of(folder: Path):
    """What a reader of the files makes of a keyed view, as docs/stores.md says."""
    newest, seen = {}, set()
    for path in folder.glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            place = row["_partition"], row["_offset"]
            assert place not in seen, "a change is there twice"
            seen.add(place)
            other = newest.get(row["_key"])
            if other is None or place > (other["_partition"], other["_offset"]):
                newest[row["_key"]] = row
    return {key: row for key, row in newest.items() if not row["_deleted"]}


class ParquetPlace:
    def __init__(self, folder):
        self.folder = folder
        self.target = Parquet(folder)
        self.expression = f"hw.sink.Parquet({str(folder)!r})"

    def save(self):
        return copied(self.folder)

    def restore(self, saved):
        brought_back(self.folder, saved)

    def write_format(self, of, number):
        path = self.folder / of.topic / "_headwater" / f"{of.sink}.json"
        state = json.loads(path.read_text())
        state.pop("format", None)
        path.write_text(json.dumps(state if number is None else state | {"format": number}))

    def rows(self, feed):
        return rows_of(self.folder / feed.topic)


class TestParquet(Contract, Killed):
    versions = False  # files hold all changes; their readers choose

    @pytest.fixture
    def place(self, tmp_path):
        return ParquetPlace(tmp_path / "lake")

    def compare(self, place, story):
        super().compare(place, story)
        tables = [pq.read_table(path) for path in sorted((place.folder / "orders").glob("*.parquet"))]
        offsets = [(row["_partition"], row["_offset"]) for table in tables for row in table.to_pylist()]
        assert sorted(offsets) == [(p, o) for p in (0, 1) for o in range(story.records)]

    def test_processes_of_one_number_write_files_of_their_own(self, place, store, monkeypatch):
        """The previous holder, in another container, writes while its successor renames a file."""
        monkeypatch.setattr("os.getpid", lambda: 1)
        successor = place.target.open(feed())
        store.claim([0])
        successor.claim([0])
        naming = successor._locked

        def late():
            successor._locked = naming
            with pytest.raises(Superseded):
                store.apply(batch(change("a", 1, 0)))
            return naming()

        successor._locked = late
        successor.apply(batch(change("a", 2, 0)))
        assert self.totals(place) == {"a": 2}

    def test_files_are_named_by_partition_and_offsets(self, place, store):
        store.claim([0, 3])
        store.apply(batch(change("a", 1, 4), change("b", 1, 9, partition=3), p0=7))

        assert sorted(path.name for path in (place.folder / "orders").glob("*.parquet")) == [
            "part-00000-00000000000000000000-00000000000000000007.parquet",
            "part-00003-00000000000000000000-00000000000000000010.parquet",
        ]

    def test_a_reset_that_was_interrupted_is_finished_by_the_next_claim(self, place, store):
        store.claim([0])
        store.apply(batch(change("a", 1, 0)))
        store._remove_files = None  # the process ends here
        with pytest.raises(TypeError):
            store.reset()
        again = place.target.open(feed())

        assert dict(again.claim([0])) == {}
        assert self.totals(place) == {}


@pytest.mark.parametrize("target", [Delta, Parquet])
def test_types_are_those_of_the_view(tmp_path, target):
    store = target(tmp_path).open(SinkFeed("s", "all", ("id",), EVERYTHING))
    store.claim([0])
    store.apply(batch(value(ROW)))

    if target is Delta:
        (row,) = DeltaTable(tmp_path / "all").to_pyarrow_table().to_pylist()
    else:
        (row,) = rows_of(tmp_path / "all").values()
    real = row.pop("real")
    assert real != real  # noqa: PLR0124  that is what NaN is
    assert {name: row[name] for name in EVERYTHING if name != "real"} == {
        "id": "a",
        "whole": 2**40,
        "small": 7,
        "price": Decimal("12.500000000"),
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 10, 0, 0, 1, UTC),
        "photo": b"\x01\x02",
        "sold": True,
        "maker": {"name": "Acme", "since": [1, 2]},
        "counts": [("x", 1)],
    }


@pytest.mark.parametrize("target", [Delta, Parquet])
@pytest.mark.parametrize("bad", [{"whole": "many"}, {"small": 300}, {"price": "1e30"}, {"maker": 5}])
def test_a_value_that_does_not_fit_is_named_and_nothing_is_written(tmp_path, target, bad):
    store = target(tmp_path).open(SinkFeed("s", "all", ("id",), EVERYTHING))
    store.claim([0])

    with pytest.raises(Poison, match="does not fit") as caught:
        store.apply(batch(value(ROW), value(ROW, 1, **bad)))
    assert caught.value.offset == 1
    assert dict(store.claim([0])) == {}


def test_a_column_more_is_added_to_the_table_and_another_type_is_refused(tmp_path):
    target = Delta(tmp_path, partition_by=["id"])
    store = target.open(feed())
    store.claim([0])
    store.apply(batch(change("a", 1, 0)))
    wider = target.open(SinkFeed("orders.store", "orders", ("id",), COLUMNS | {"rating": "INT"}))
    wider.claim([0])
    wider.apply(batch(Change("b", '{"id":"b","rating":5}', 0, 1, 0)))

    rows = DeltaTable(tmp_path / "orders").to_pyarrow_table().to_pylist()
    assert {row["id"]: row["rating"] for row in rows} == {"a": None, "b": 5}
    assert DeltaTable(tmp_path / "orders").metadata().partition_columns == ["id"]
    with pytest.raises(UsageError, match=r"column 'total' .* has another type"):
        target.open(SinkFeed("orders.store", "orders", ("id",), COLUMNS | {"total": "STRING"}))


def test_records_that_are_rows_of_their_own_are_appended_once(tmp_path):
    clicks = SinkFeed("clicks.lake", "clicks", (), COLUMNS, append=True)
    store = Delta(tmp_path).open(clicks)
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change("a", 2, 1)))
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change("a", 2, 1)))
    store.apply(batch(change("a", 3, 2)))

    rows = DeltaTable(tmp_path / "clicks").to_pyarrow_table().to_pylist()
    assert sorted(row["total"] for row in rows) == [1, 2, 3]


@pytest.mark.parametrize("append", [True, False])
def test_a_commit_that_took_effect_and_was_reported_as_failed_is_not_made_again(tmp_path, append):
    of = SinkFeed("clicks.lake", "clicks", () if append else ("id",), COLUMNS, append=append)
    store = Delta(tmp_path).open(of)
    store.claim([0, 1])
    write = store._write

    def reported(*given):
        store._write = write
        write(*given)
        raise CommitFailedError("no answer")

    store._write = reported
    store.apply(batch(change("a", 1, 0), change("b", 2, 4, partition=1)))
    store.apply(batch(change("a", 3, 1)))

    table = DeltaTable(tmp_path / "clicks")
    totals = sorted(row["total"] for row in table.to_pyarrow_table().to_pylist())
    assert totals == ([1, 2, 3] if append else [2, 3])
    assert dict(store.claim([0, 1])) == {0: 2, 1: 5}


def test_small_files_are_made_into_larger_ones(tmp_path):
    clicks = SinkFeed("clicks.lake", "clicks", (), COLUMNS, append=True)
    store = Delta(tmp_path, compact_every=10).open(clicks)
    store.claim([0])
    for n in range(10):
        store.apply(batch(change("a", n, n)))

    table = DeltaTable(tmp_path / "clicks")
    assert len(table.file_uris()) == 1
    assert table.count() == 10


def test_a_row_whose_version_is_smaller_is_passed_over_and_of_equal_ones_the_later_counts(tmp_path):
    store = Delta(tmp_path).open(feed())
    store.claim([0])

    def put(*rows):
        changes = [
            Change("a", None if t is None else json.dumps({"id": "a", "total": t}), 0, o, 0, v)
            for t, o, v in rows
        ]
        store.apply(batch(*changes))
        (row,) = DeltaTable(tmp_path / "orders").to_pyarrow_table().to_pylist()
        return row["total"]

    assert put((31, 0, 31)) == 31
    assert put(*((n, n, n) for n in range(1, 32))) == 31
    assert put((32, 40, 32)) == 32
    assert put((33, 41, 32)) == 33
    assert put((None, 42, None), (1, 43, 1)) == 1
    assert dict(store.claim([0])) == {0: 44}


def test_a_wrong_declaration_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match="no such column to partition by; got land"):
        Delta(tmp_path, partition_by=["land"]).check(feed())
    Delta(tmp_path).open(feed())
    with pytest.raises(UsageError, match=r"belongs to orders\.store"):
        Delta(tmp_path).open(feed("another"))
    assert "secret" not in repr(Delta("s3://key:secret@bucket/lake"))
