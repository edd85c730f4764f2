"""The further promises of a store that is a table of a SQL database."""

import json
from typing import Any, Protocol

import pytest

from headwater.change import Change
from headwater.clock import SystemClock
from headwater.errors import UsageError
from headwater.sink.store import Batch, DatedStore, Poison, SinkFeed, Target
from sink.contract import Contract, Place, batch, change, feed

AT_MS = 1_769_853_600_000


class SqlPlace(Place, Protocol):
    """A place that can be asked."""

    history: Target
    """The same, with every version of a row."""

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT."""


def row(value: dict[str, Any], offset: int = 0, key: str = "k", **more: Any) -> Change:
    """A row of a feed with any columns, a second after the one before it."""
    return Change(key, json.dumps(value), 0, offset, AT_MS + offset * 1000, **more)


class SqlContract(Contract):
    """The promises of a table, one test each."""

    @pytest.mark.parametrize("table", ["headwater_position", "Headwater_Origin", "headwater_format"])
    def test_rows_never_go_into_the_tables_that_a_sink_keeps_for_itself(self, place: SqlPlace, table):
        with pytest.raises(UsageError, match="reserved for sinks"):
            place.target.open(feed(topic=table))

    def test_a_column_with_the_name_of_one_that_history_adds_is_refused(self, place: SqlPlace):
        columns = {"id": "STRING", "valid_to": "TIMESTAMP"}
        with pytest.raises(UsageError, match="needed for the time of a version"):
            place.history.open(SinkFeed("s", "t", ("id",), columns))
        place.target.open(SinkFeed("s", "t", ("id",), columns)).close()

    def test_keys_of_several_columns_with_nulls_and_windows_are_one_row_each(self, place: SqlPlace):
        kinds = {"window": "STRUCT<start: TIMESTAMP, end: TIMESTAMP>", "c": "STRING", "n": "INT"}
        of = SinkFeed("s", "t", ("window", "c"), kinds)
        start = "2026-01-31T10:00:00.000000Z"
        window = {"start": start, "end": "2026-01-31T11:00:00.000000Z"}
        key, none = json.dumps([start, "DE"]), json.dumps([start, None])
        store = place.target.open(of)
        store.claim([0])
        for n in range(1, 4):
            of_null = row({"window": window, "c": None, "n": n}, 2 * n, none)
            store.apply(batch(of_null, row({"window": window, "c": "DE", "n": n + 5}, 2 * n + 1, key)))

        assert place.query("SELECT window_start, c, n FROM t ORDER BY n") == [
            (start, None, 3),
            (start, "DE", 8),
        ]
        store.apply(batch(Change(none, None, 0, 15, 0), Change(key, None, 0, 16, 0)))
        assert place.query("SELECT * FROM t") == []
        store.close()

    def test_rows_of_an_append_feed_are_identified_by_their_place(self, place: SqlPlace):
        of = SinkFeed("s", "t", ("id",), {"id": "STRING"}, append=True)
        store = place.target.open(of)
        store.claim([0])
        store.apply(batch(row({"id": "a"}, 0, "a"), row({"id": "a"}, 1, "a"), Change("a", None, 0, 2, 0)))
        store.close()

        assert place.query("SELECT * FROM t") == [(0, 0, "a"), (0, 1, "a")]

    def test_an_older_version_never_replaces_a_newer_one(self, place: SqlPlace):
        of = SinkFeed("s", "t", ("id",), {"id": "STRING", "n": "INT"}, versioned=True)
        store = place.target.open(of)
        store.claim([0])
        for n, versions in enumerate([(1, 3, 2), (1,), (5, 4)]):
            changes = [
                row({"id": "a", "n": v, "_version": v}, 10 * n + i, "a", version=v)
                for i, v in enumerate(versions)
            ]
            store.apply(batch(*changes))
        store.close()

        assert place.query("SELECT * FROM t") == [("a", 5, 5)]

    def test_of_equal_versions_the_later_record_counts(self, place: SqlPlace):
        of = SinkFeed("s", "t", ("id",), {"id": "STRING", "n": "INT"}, versioned=True)
        store = place.target.open(of)
        store.claim([0])
        for offset, n in enumerate((1, 2)):
            store.apply(batch(row({"id": "a", "n": n, "_version": 7}, offset, "a", version=7)))
        store.close()

        assert place.query("SELECT * FROM t") == [("a", 2, 7)]

    def test_history_keeps_every_version_of_a_row(self, place: SqlPlace):
        of = SinkFeed("s", "t", ("id",), {"id": "STRING", "n": "INT"})
        store = place.history.open(of)
        store.claim([0])
        first, second, third = (row({"id": "a", "n": n + 1}, 2 * n, "a") for n in range(3))
        store.apply(batch(first, row({"id": "b", "n": 1}, 1, "b"), second))
        gone = Change("b", None, 0, 3, AT_MS + 3_000)
        store.apply(batch(gone, third, row({"id": "b", "n": 2}, 5, "b")))
        store.apply(batch(Change("z", None, 0, 6, AT_MS)))
        store.close()

        seconds = (f"substr(CAST({name} AS text), 18, 2)" for name in ("valid_from", "valid_to"))
        assert place.query(f"SELECT id, n, {', '.join(seconds)} FROM t ORDER BY id, n") == [
            ("a", 1, "00", "02"),
            ("a", 2, "02", "04"),
            ("a", 3, "04", None),
            ("b", 1, "01", "03"),
            ("b", 2, "05", None),
        ]

    def test_history_ends_the_version_of_a_key_that_was_in_another_partition(self, place: SqlPlace):
        of = SinkFeed("s", "t", ("id",), {"id": "STRING", "n": "INT"})
        store = place.history.open(of)
        store.claim([0, 1])
        store.apply(batch(row({"id": "a", "n": 1}, 7, "a"), row({"id": "b", "n": 1}, 8, "b")))
        moved = Change("a", '{"id":"a","n":2}', 1, 0, AT_MS + 9_000)
        store.apply(batch(moved, Change("b", None, 1, 1, AT_MS + 9_000)))
        store.close()

        assert place.query("SELECT id, n FROM t WHERE valid_to IS NULL") == [("a", 2)]

    def test_history_of_a_record_that_does_not_fit_is_as_it_was(self, place: SqlPlace):
        of = SinkFeed("s", "t", ("id",), {"id": "STRING", "n": "INT"})
        store = place.history.open(of)
        store.claim([0])
        store.apply(batch(row({"id": "a", "n": 1}, 0, "a")))
        with pytest.raises(Poison):
            store.apply(batch(row({"id": "a", "n": "one"}, 1, "a")))
        store.close()

        assert place.query("SELECT n, valid_to FROM t") == [(1, None)]

    def test_a_table_of_rows_does_not_become_one_of_versions_nor_the_other_way_round(self, place: SqlPlace):
        first, second = (SinkFeed("s", name, ("id",), {"id": "STRING"}) for name in ("t", "u"))
        place.target.open(first).close()
        place.history.open(second).close()

        for target, of in ((place.history, first), (place.target, second)):
            with pytest.raises(UsageError, match="rows of another kind"):
                target.open(of)

    def test_history_is_refused_where_there_is_none(self, place: SqlPlace):
        kinds = {"id": "STRING"}
        with pytest.raises(UsageError, match="never replaced"):
            place.history.check(SinkFeed("s", "t", ("id",), kinds, append=True))
        with pytest.raises(UsageError, match="has no history"):
            place.history.check(SinkFeed("s", "t", ("id",), kinds, versioned=True))

    def test_new_columns_are_added_and_another_type_is_refused(self, place: SqlPlace):
        def of(**columns: str) -> SinkFeed:
            return SinkFeed("s", "t", ("id",), {"id": "STRING"} | columns)

        for n, columns in enumerate([{"n": "INT"}, {"m": "DOUBLE"}]):
            store = place.target.open(of(**columns))
            store.claim([0])
            store.apply(batch(row({"id": f"a{n}"} | dict.fromkeys(columns, n + 1), n, f"a{n}")))
            store.close()

        assert place.query("SELECT * FROM t ORDER BY id") == [("a0", 1, None), ("a1", None, 2)]
        with pytest.raises(UsageError, match="column 'n' has another type"):
            place.target.open(of(n="STRING"))

    @pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
    def test_a_column_with_a_name_that_no_table_can_have_is_refused_before_anything_starts(
        self, place: SqlPlace, name: str
    ):
        with pytest.raises(UsageError, match="name that no table can have"):
            place.target.check(SinkFeed("s", "t", ("id",), {"id": "STRING", name: "INT"}))

    def test_a_store_knows_its_topic_and_when_it_was_complete(self, place: SqlPlace):
        store = place.target.open(feed())
        assert isinstance(store, DatedStore)
        began = SystemClock().now_ms()
        store.claim([0, 1])
        store.adopt("abc")
        store.apply(batch(change("a", 1, 0)))  # of an old record
        assert store.origin() == "abc"
        (known,) = store.at_ms().values()
        assert began <= known
        store.claim([0])
        store.apply(batch(change("a", 2, 1)))
        assert store.at_ms() == {0: known}
        store.apply(Batch((), {0: 2}))
        assert store.at_ms()[0] > known
        store.apply(batch(change("a", 3, 2)))
        assert store.at_ms()[0] > known
        store.reset()
        assert store.origin() == ""
        assert dict(store.at_ms()) == {}
        store.close()
