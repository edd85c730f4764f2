"""Rows that are published once they are complete, and rows that leave a view again."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import UsageError
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.output.complete_rows import CompleteRows
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.state.layouts import WAITING, layout, values
from headwater.pipeline.time.watermark import NEVER, Moment
from headwater.testing import SettableClock
from support.memorystate import Memory
from support.ordershop import Order, Shop
from support.servers import wait_until

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
KINDS = pa.schema([("_key", pa.string()), ("_value", pa.string()), ("_until", pa.int64())])

batches = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 3)), st.integers(-30, 30)),
            max_size=4,
            unique_by=lambda row: row[0],
        ),
        st.integers(0, 20),
    ),
    max_size=12,
)


def applied(given_rows: list[tuple[str, int | None, int]], state: Memory, moved: int) -> tuple[dict, object]:
    """What a batch publishes, by key."""
    listed = [
        {"_key": key, "_value": None if n is None else f'{{"n":{n}}}', "_until": until}
        for key, n, until in given_rows
    ]
    made = CompleteRows().apply(pa.Table.from_pylist(listed, KINDS), state, Moment(moved, 0, moved))
    state.take(made.changes)
    found = values(layout(WAITING), made.changes.items())
    return {key.decode(): row and json.loads(row) for key, row in found}, made.open


@given(batches=batches)
def test_a_row_is_published_when_it_is_complete_and_not_before(batches):
    state, reached = Memory(), -30
    newest, complete, published = {}, {}, {}
    for part, wait in batches:
        reached += wait
        out, earliest = applied(part, state, reached)
        for key, n, until in part:
            newest[key] = (n, until)
        for key, (n, until) in list(newest.items()):
            if n is None:
                del newest[key]
                complete.pop(key, None)
            elif until <= reached:
                complete[key] = n
        for key, row in out.items():
            before = published.pop(key, None)
            if row is not None:
                published[key] = row
                assert row["_revision"] == (before["_revision"] + 1 if before else 1)
        assert {key: row["n"] for key, row in published.items()} == complete
        waiting = [until for _, until in newest.values() if until > reached]
        assert earliest == min(waiting, default=None)
    assert all(entry[:1] == b"r" for entry in state) or any(until > reached for _, until in newest.values())


def test_two_attempts_write_the_same():
    some = [("a", 1, 5), ("b", 2, 50), ("c", 3, 5)]
    state = Memory()
    applied([("b", 1, 20), ("c", 2, 5)], state, NEVER)
    once, again = (
        CompleteRows().apply(
            pa.Table.from_pylist(
                [{"_key": k, "_value": f'{{"n":{n}}}', "_until": u} for k, n, u in order], KINDS
            ),
            state,
            Moment(10, 0, 10),
        )
        for order in (some, some[::-1])
    )
    assert list(once.changes.items()) == list(again.changes.items())


# ---- through Spark -------------------------------------------------------------------------------------


def order(n: int, minute: float, country: str = "de") -> Order:
    return Order(n, 1, country, 100, BEGIN + timedelta(minutes=minute))


def declared(shop: Shop) -> hw.App:
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="5 minutes", topic=shop.name("orders"))
    return app


def ready(shop: Shop, name: str) -> hw.App:
    app = declared(shop)

    @app.view(key="window", name=name, emit="ready", late=hw.late.correct("1 hour"))
    def counted(orders):
        from pyspark.sql.functions import count, window

        return orders.groupBy(window("at", "10 minutes")).agg(count("*").alias("n"))

    return app


def history(shop: Shop, view: str) -> list[tuple[str, int, int]]:
    return [(key[11:16], row["n"], row["_revision"]) for key, row, _ in shop.records(view)]


@pytest.mark.spark
def test_a_window_is_published_once_it_is_complete_and_again_when_a_straggler_corrects_it(shop):
    shop.make("orders")
    name = shop.name("counted")
    expected = [[], [], [("09:00", 2, 1)], [("09:00", 2, 1), ("09:00", 3, 2)]]
    parts = [
        [order(1, 0), order(2, 14)],
        [order(3, 5), order(4, 15)],  # watermark 09:09
        [order(5, 16)],  # 09:10, the end of the first window
        [order(6, 6)],  # a straggler
    ]
    for part, published in zip(parts, expected, strict=True):
        shop.send(part)
        Runner(ready(shop, name), shop.settings).once()
        assert history(shop, name) == published


@pytest.mark.spark
def test_a_window_is_completed_by_the_clock_when_nothing_more_comes(shop):
    shop.make("orders")
    name, clock = shop.name("counted"), SettableClock()
    runner = Runner(ready(shop, name), shop.settings, clock)
    runner.start()
    try:
        shop.send([order(1, 0)])
        wait_until(runner.caught_up, 60, "the order")
        assert history(shop, name) == []
        clock.advance(60 + 15 * 60 + 1)  # idle, and from 08:55 to 09:10
        wait_until(lambda: history(shop, name) == [("09:00", 1, 1)], 60, "the end of the window")
    finally:
        runner.stop()


@pytest.mark.spark
def test_a_row_that_no_longer_fits_a_filter_leaves_the_view(shop):
    shop.make("orders")
    app, name, few, all_of = declared(shop), shop.name("few"), shop.name("german"), shop.name("appended")

    @app.view(key="country", name=name)
    def some(orders):
        counted = orders.groupBy("country").count()
        return counted.where("count < 3").selectExpr("country", "count AS n").where("n != 1")

    app.sql(
        few, "SELECT country, count(*) AS n FROM orders GROUP BY country HAVING country = 'de'", key="country"
    )
    having = "SELECT country, count(*) AS n FROM orders GROUP BY country HAVING n < 3"
    app.sql(all_of, having, key="country", append=True)
    for part, expected in (
        ([order(1, 0), order(2, 0, "fr")], {}),
        ([order(3, 0), order(4, 0, "fr")], {"de": 2, "fr": 2}),
        ([order(5, 0)], {"fr": 2}),
    ):
        shop.send(part)
        Runner(app, shop.settings).once()
        assert {key: row["n"] for key, row in shop.table(name).items()} == expected
    assert {key: row["n"] for key, row in shop.table(few).items()} == {"de": 3}
    assert sorted((key, row["n"]) for key, row, _ in shop.records(all_of)) == [
        ("de", 1), ("de", 2), ("fr", 1), ("fr", 2),
    ]  # fmt: skip
    assert {key: row["n"] for key, row in rows(app, shop.settings)[name].items()} == {"fr": 2}


@pytest.mark.spark
def test_a_view_without_windows_has_nothing_to_wait_for(shop):
    app = declared(shop)
    app.view(key="country", name=shop.name("v"), emit="ready")(
        lambda orders: orders.groupBy("country").count()
    )
    with pytest.raises(UsageError, match=r"no rows that become complete.*a window over event time"):
        Runner(app, shop.settings).once()


@pytest.mark.spark
def test_sessions_by_another_time_than_that_of_the_stream_are_refused(shop):
    app = declared(shop)

    @app.view(key=["country", "window"], name=shop.name("v"))
    def visits(orders):
        from pyspark.sql.functions import expr

        later = orders.withColumn("later", expr("at + INTERVAL 1 HOUR"))
        return hw.sessions(later, "country", time="later", gap="1 hour", n=F.count("*"))

    with pytest.raises(UsageError, match=r"sessions: time='later' is not the event time.*expected at"):
        Runner(app, shop.settings).once()


@pytest.mark.spark
def test_duplicates_within_a_watermark_that_is_not_sparks_are_one_clear_line(shop):
    app = declared(shop)
    app.view(key="order_id", name=shop.name("v"))(
        lambda orders: orders.dropDuplicatesWithinWatermark(["order_id"])
    )
    with pytest.raises(UsageError, match=r"uses dropDuplicatesWithinWatermark.*hw\.distinct"):
        Runner(app, shop.settings).once()


@pytest.mark.spark
def test_a_window_over_text_is_one_clear_line(shop):
    app = declared(shop)
    app.sql(
        shop.name("v"), "SELECT window, count(*) FROM orders GROUP BY window(country, '1 hour')", key="window"
    )
    with pytest.raises(UsageError, match=r"has a window over text; got .*country.*expected a timestamp"):
        Runner(app, shop.settings).once()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"emit": "late"}, "emit= is wrong"),
        ({"emit": "ready", "append": True}, "emit='ready' cannot be combined with append=True"),
        ({"emit": "ready", "forget": "1 day"}, "emit='ready' cannot be combined with forget="),
        ({"emit": "ready", "latency": "realtime"}, "emit='ready' cannot be combined with latency='realtime'"),
    ],
)
def test_emit_is_checked_before_anything_starts(options, said):
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.view(key="country", name="v", **options)(lambda orders: orders)
    with pytest.raises(UsageError, match=said):
        app.graph()
