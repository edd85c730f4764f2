"""A record that a query cannot take is left out, published to ``<view>.failed`` with the reason, and counted; everything else continues."""

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.client.client import Client
from headwater.errors import HeadwaterError, UsageError
from headwater.follow.results import newest
from headwater.operate.log import ledger
from headwater.operate.views.check import check
from headwater.operate.views.rebuild import Rebuild
from headwater.pipeline.engine.spark_engine import Spark
from headwater.pipeline.left_out.failed_records import published
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import catalyst
from headwater.result import files_of
from support.ordershop import Order, Shop

pytestmark = pytest.mark.spark

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
HUGE = 2**62
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SNAPSHOTS = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.StateStore$"


class Item(hw.Row):
    id: int
    n: int
    of: int


class Rate(hw.Row):
    of: int
    rate: int


def order(n: int, cents: int, country: str = "de", customer: int | None = None) -> Order:
    return Order(n, n if customer is None else customer, country, cents, BEGIN + timedelta(seconds=n))


def failed(shop: Shop, view: str) -> list[tuple[int, str]]:
    """The orders in a view's topic of failed records, with the reason up to the first full stop or place."""
    found = [
        (json.loads(row["value"])["order_id"], row["reason"].partition(".")[0].partition(" (in ")[0])
        for _, row, _ in shop.records(f"{view}.failed")
        if row is not None
    ]
    return sorted(found)


def place_of(shop: Shop, number: int) -> str:
    """The place of an order in the log, as an error names it."""
    topic = shop.name("orders")
    (record,) = [
        record
        for record in Client(shop.log).read([topic])
        if json.loads(record.value())["order_id"] == number
    ]
    return f"{topic}, partition {record.partition()}, offset {record.offset()}"


def parts(orders):
    return orders.selectExpr("order_id", "100 div cents AS part")


def test_a_division_by_zero_is_left_out_named_and_counted_and_the_rest_is_published(shop: Shop):
    shop.make("orders")
    app, view = shop.app(), shop.name("parts")
    app.view(key="order_id", name=view)(parts)
    shop.send([order(n, 0 if n in {3, 8} else n) for n in range(1, 13)])
    Runner(app, shop.settings).once()
    named = {name for _, name in files_of(newest(Client(shop.log), view).state)}
    assert {file.name for file in shop.settings.data.glob(f"checkpoints/{view}/*/shards/publish/*")} == named
    assert {row["order_id"] for row in shop.table(view).values()} == set(range(1, 13)) - {3, 8}
    assert failed(shop, view) == [
        (3, "[DIVIDE_BY_ZERO] Division by zero"),
        (8, "[DIVIDE_BY_ZERO] Division by zero"),
    ]

    shop.send([order(n, 0 if n == 15 else n) for n in range(13, 17)])
    Runner(app, shop.settings).once()
    assert [number for number, _ in failed(shop, view)] == [3, 8, 15]
    (account,) = (each for each in ledger.check(shop.log, [view]) if each.consumer == view)
    assert (account.produced, account.processed, account.failed) == (16, 13, 3)
    checked = check(app, shop.settings, view)
    assert (checked.first, checked.rows, checked.records) == (None, 13, 13)
    assert checked.notes == (f"3 records on which the query fails are in {view}.failed",)


def test_a_python_function_that_raises_leaves_out_its_record_alone(shop: Shop):
    shop.make("orders")

    @F.udf("long")
    def half(cents):
        if cents % 2:
            raise ValueError(f"{cents} is odd")
        return cents // 2

    app, view = shop.app(), shop.name("halves")

    @app.view(key="country", name=view)
    def halves(orders):
        return orders.groupBy("country").agg(F.sum(half("cents")).alias("half"))

    shop.send([order(1, 2), order(2, 4), order(3, 5), order(4, 6, "us")])
    Runner(app, shop.settings).once()
    assert {key: row["half"] for key, row in shop.table(view).items()} == {"de": 3, "us": 3}
    assert failed(shop, view) == [(3, "ValueError: 5 is odd")]


def test_of_two_rows_that_fail_where_they_meet_the_later_one_is_left_out(shop: Shop):
    """The division is after a join, so neither record fails alone; the row that is there stays."""
    app, view = hw.App("shop"), shop.name("priced")
    app.table("items", Item, key="id", topic=shop.name("items"))
    app.table("rates", Rate, key="of", topic=shop.name("rates"))
    app.sql(
        view,
        "SELECT id, n div rate AS x FROM items JOIN rates ON items.of = rates.of",
        key="id",
    )
    shop.make("items", "rates")
    shop.send_to(shop.name("rates"), [Rate(1, 2), Rate(2, 0)], "of")
    shop.send_to(shop.name("items"), [Item(1, 10, 1)], "id")
    Runner(app, shop.settings).once()
    shop.send_to(shop.name("items"), [Item(2, 20, 2), Item(3, 30, 1)], "id")
    Runner(app, shop.settings).once()
    assert {key: row["x"] for key, row in shop.table(view).items()} == {"1": 5, "3": 15}
    (one,) = [row for _, row, _ in shop.records(f"{view}.failed")]
    assert '"id":2' in one["value"]
    # The item was never taken, so the rate that makes it possible brings no row of it.
    shop.send_to(shop.name("rates"), [Rate(2, 4)], "of")
    Runner(app, shop.settings).once()
    assert {key: row["x"] for key, row in shop.table(view).items()} == {"1": 5, "3": 15}
    assert check(app, shop.settings, view).first is None


def test_an_aggregate_that_overflows_stops_its_view_and_names_the_key(shop: Shop):
    shop.make("orders")
    app, view = shop.app(), shop.name("totals")
    app.sql(
        view,
        "SELECT country, sum(cents) AS cents FROM orders GROUP BY country",
        key="country",
    )
    shop.send([order(1, HUGE), order(2, 5, "us")])
    Runner(app, shop.settings).once()
    shop.send([order(3, HUGE), order(4, 6, "us")])
    with pytest.raises(
        UsageError, match=r"has stopped: an aggregate has become too large for its type; got key de,"
    ):
        Runner(app, shop.settings).once()
    assert {key: row["cents"] for key, row in shop.table(view).items()} == {"de": HUGE, "us": 5}


def test_what_is_computed_from_an_aggregate_and_fails_stops_the_view_and_no_record_is_blamed(shop: Shop):
    """The record that makes a divisor 0 is right; without it the row would be wrong, also if it is the only one."""
    shop.make("orders")
    app, view = shop.app(), shop.name("ratios")

    @app.view(key="country", name=view)
    def ratios(orders):
        return (
            orders.groupBy("country")
            .agg((F.sum("order_id") * 100).alias("a"), F.sum("cents").alias("b"))
            .selectExpr("country", "a div b AS ratio")
        )

    shop.send([order(1, 5), order(2, 5, "us")])
    Runner(app, shop.settings).once()
    shop.send([order(3, -5), order(4, 6, "us")])
    with pytest.raises(
        UsageError, match=r"computes from an aggregate, .* fails; got key de, .*DIVIDE_BY_ZERO"
    ):
        Runner(app, shop.settings).once()
    shop.send([order(5, 0, "fr")])
    with pytest.raises(UsageError, match=r"computes from an aggregate, .* fails"):
        Runner(app, shop.settings).once()
    assert {key: row["ratio"] for key, row in shop.table(view).items()} == {"de": 20, "us": 40}
    assert failed(shop, view) == []


def test_a_group_of_a_table_that_fails_stops_the_view_and_an_update_that_fails_is_left_out(shop: Shop):
    app, view = hw.App("shop"), shop.name("grouped")
    app.table("items", Item, key="id", topic=shop.name("items"))

    @app.view(key="of", name=view)
    def grouped(items: hw.Table) -> hw.Table:
        parts = items.select("id", "of", (F.lit(100) / F.col("n")).alias("part"), "n")
        return parts.group("of", n=F.sum("n"), part=F.sum("part")).select(
            "of", (F.col("part") / F.col("n")).alias("x")
        )

    shop.make("items")
    shop.send_to(shop.name("items"), [Item(1, 10, 1), Item(2, 0, 1), Item(3, 20, 2)], "id")
    Runner(app, shop.settings).once()
    assert {key: row["x"] for key, row in shop.table(view).items()} == {"1": 1, "2": 0.25}
    assert len(shop.records(f"{view}.failed")) == 1
    shop.send_to(shop.name("items"), [Item(4, -10, 1)], "id")
    with pytest.raises(UsageError, match=r"computes from an aggregate, .* fails; got key"):
        Runner(app, shop.settings).once()
    assert len(shop.records(f"{view}.failed")) == 1


def test_a_number_out_of_range_in_a_record_is_the_fault_of_the_record_also_inside_an_aggregate(shop: Shop):
    shop.make("orders")
    app, view = shop.app(), shop.name("doubled")
    app.sql(
        view,
        "SELECT country, sum(cents * 4) AS cents FROM orders GROUP BY country",
        key="country",
    )
    shop.send([order(1, 10), order(2, HUGE), order(3, 5)])
    Runner(app, shop.settings).once()
    assert {key: row["cents"] for key, row in shop.table(view).items()} == {"de": 60}
    assert [number for number, _ in failed(shop, view)] == [2]


def test_with_on_error_stop_every_failure_stops_the_view(shop: Shop):
    shop.make("orders")
    app, view = shop.app(), shop.name("strict")
    app.view(key="order_id", name=view, on_error="stop")(parts)
    shop.send([order(1, 1), order(2, 0)])
    for _ in range(2):
        with pytest.raises(HeadwaterError) as stopped:
            Runner(app, shop.settings).once()
        assert re.search(r"has stopped; got the record at .*: \[DIVIDE_BY_ZERO\]", str(stopped.value))
        place = place_of(shop, 2)
        assert place in str(stopped.value)
    assert shop.table(view) == {}


def test_an_exception_with_on_error_stop_names_the_line_and_the_record(shop: Shop):
    shop.make("orders")
    app, view = shop.app(), shop.name("strict")

    def checked(cents):
        if cents == 0:
            raise ValueError("nothing to divide")
        return 100 // cents

    @app.view(key="order_id", name=view, on_error="stop")
    def strict(orders):
        return orders.select("order_id", F.udf(checked, "long")("cents").alias("part"))

    shop.send([order(n, 0 if n == 7 else n) for n in range(1, 13)])
    with pytest.raises(HeadwaterError) as stopped:
        Runner(app, shop.settings).once()
    place = place_of(shop, 7)
    said = str(stopped.value)
    assert f"got the record at {place}: ValueError: nothing to divide (in test_failed.py, line " in said
    assert "in checked: raise ValueError" in said


def test_a_query_that_fails_on_nearly_every_record_stops_instead_of_leaving_all_of_them_out(shop: Shop):
    shop.make("orders")
    app, view = shop.app(), shop.name("hopeless")
    app.view(key="order_id", name=view)(parts)
    shop.send([order(n, 0) for n in range(12)])
    with pytest.raises(
        UsageError, match="its query fails on too many records; got more than 10 of the 12 records"
    ):
        Runner(app, shop.settings).once()
    assert newest(Client(shop.log), view) is None


def test_windows_are_complete_without_the_record_that_fails(shop: Shop):
    """Time, shards and Spark's own state move as if the record were not there."""
    shop.make("orders")
    app, view = shop.app(), shop.name("windows")

    @app.view(key=["window", "country"], name=view)
    def windows(orders):
        rows = orders.selectExpr("at", "country", "100 div cents AS part")
        return rows.groupBy(F.window("at", "10 seconds"), "country").agg(F.sum("part").alias("parts"))

    for first in (0, 30):
        shop.send(
            [order(n, 0 if n in {7, 33} else 50, "de" if n % 2 else "us") for n in range(first, first + 30)]
        )
        Runner(app, shop.settings).once()
    assert [number for number, _ in failed(shop, view)] == [7, 33]
    checked = check(app, shop.settings, view)
    assert (checked.first, checked.records) == (None, 58)


def test_a_batch_that_is_run_once_more_leaves_out_the_same_records(shop: Shop):
    """The crash comes between the transaction and Spark's commit; the state of Spark's own aggregate must not have the record either."""
    shop.make("orders")
    app, view = shop.app(), shop.name("again")
    app.sql(
        view,
        "SELECT country, sum(100 div cents) AS n FROM orders GROUP BY country",
        key="country",
    )
    shop.send([order(1, 50), order(2, 0), order(3, 25)])
    Runner(app, shop.settings).once()
    shop.lose_commit(view)
    assert newest(Client(shop.log), view).batch == 0
    shop.send([order(4, 10)])
    Runner(app, shop.settings).once()
    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 16}
    assert [number for number, _ in failed(shop, view)] == [2]


def test_state_that_does_not_separate_attempts_is_not_searched_with_and_a_rebuild_mends_that(
    shop: Shop, spark
):
    """A run that an earlier version has begun; its state keeps Spark's first format."""
    shop.make("orders")
    app, view = shop.app(), shop.name("earlier")
    query = "SELECT country, sum(100 div cents) AS n FROM orders GROUP BY country"
    app.sql(view, query, key="country")
    before = spark.conf.get(STATE_FORMAT)
    try:
        spark.conf.set(STATE_FORMAT, "1")
        shop.send([order(1, 50)])
        Runner(app, shop.settings).once()
    finally:
        spark.conf.set(STATE_FORMAT, before)
    shop.send([order(2, 25)])
    Runner(app, shop.settings).once()
    shop.send([order(3, 0)])
    with pytest.raises(UsageError, match=r"fails on a record; got .*DIVIDE_BY_ZERO.*headwater view rebuild"):
        Runner(app, shop.settings).once()
    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 6}
    Rebuild(app, shop.settings, view).run()
    assert [number for number, _ in failed(shop, view)] == [3]
    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 6}


def test_a_mended_query_that_ran_before_its_rebuild_takes_the_records_too(shop: Shop):
    shop.make("orders")
    app, view = shop.app(), shop.name("mended")
    app.view(key="order_id", name=view)(parts)
    shop.send([order(1, 1), order(2, 0)])
    Runner(app, shop.settings).once()
    assert [number for number, _ in failed(shop, view)] == [2]

    mended = shop.app()
    mended.sql(view, "SELECT order_id, try_divide(100, cents) AS part FROM orders", key="order_id")
    shop.send([order(3, 1)])
    Runner(mended, shop.settings).once()
    assert Rebuild(mended, shop.settings, view).run().failed == {}
    assert {row["order_id"] for row in shop.table(view).values()} == {1, 2, 3}


def test_a_rebuild_of_the_same_query_leaves_out_the_same_records_and_one_of_a_mended_query_takes_them(
    shop: Shop,
):
    shop.make("orders")
    app, view = shop.app(), shop.name("rebuilt")
    app.view(key="order_id", name=view)(parts)
    shop.send([order(n, n % 5) for n in range(1, 11)])
    Runner(app, shop.settings).once()
    assert [number for number, _ in failed(shop, view)] == [5, 10]
    first = newest(Client(shop.log), view).run
    second = Rebuild(app, shop.settings, view).run().run
    assert runs(shop, view) == {first: 2, second: 2}
    assert check(app, shop.settings, view).first is None

    mended = shop.app()
    mended.sql(view, "SELECT order_id, try_divide(100, cents) AS part FROM orders", key="order_id")
    assert Rebuild(mended, shop.settings, view).run().failed == {}
    assert {row["order_id"] for row in shop.table(view).values()} == set(range(1, 11))
    assert runs(shop, view) == {second: 2}, "the run that the view may return to"
    assert check(mended, shop.settings, view).first is None

    assert Rebuild(app, shop.settings, view).back().run == second
    assert len(shop.table(view)) == 8
    assert check(app, shop.settings, view).first is None


def test_a_restart_reads_the_state_of_the_attempt_that_counts_and_of_no_trial(shop: Shop, spark, monkeypatch):
    """Spark uploads snapshots of its own state at any time, here after each trial; then the process ends."""
    spark.conf.set(SNAPSHOTS, "1")
    monkeypatch.setattr(Spark, "forget_attempt", after_uploads(spark, Spark.forget_attempt))
    shop.make("orders")
    app, view = shop.app(), shop.name("uploaded")
    query = "SELECT country, sum(100 div cents) AS n FROM orders GROUP BY country"
    app.sql(view, query, key="country")
    try:
        shop.send([order(1, 50), order(2, 0), order(3, 25)])
        Runner(app, shop.settings).once()
        shop.send([order(4, 10)])
        Runner(app, shop.settings).once()
    finally:
        spark.conf.unset(SNAPSHOTS)
    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 2 + 4 + 10}


def after_uploads(spark, forget):
    """Forgets an attempt, after all snapshots of Spark's state that wait for it were uploaded."""
    field = spark._jvm.java.lang.Class.forName(STATE_STORE).getDeclaredField("loadedProviders")
    field.setAccessible(True)

    def uploading(*arguments):
        for provider in catalyst.items(field.get(None).values().toSeq()):
            provider.doMaintenance()
        forget(*arguments)

    return uploading


def runs(shop: Shop, view: str) -> dict[str, int]:
    """How many failed records there are of each run."""
    return dict(Counter(each.run for each in published(Client(shop.log), view)))


def test_the_kit_shows_what_a_query_fails_on():
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.view(key="order_id", name="parts")(parts)
    with testing.views(app) as t:
        wrong = order(2, 0)
        t.send("orders", order(1, 50), wrong)
        assert t.failed("parts") == [wrong]
        assert t.rows("parts") == t.batch("parts") == [{"order_id": 1, "part": 2}]
