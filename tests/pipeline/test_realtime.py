"""Real-time views: Kafka to Kafka with no batch between, rows that never go back, invalid records settled behind."""

import pytest

import headwater as hw
from headwater.config import Settings
from headwater.operate.check import check
from headwater.pipeline.batch import rows
from headwater.pipeline.runner import Runner
from headwater.pipeline.session import master
from headwater.pipeline.topics import Topics
from ordershop import orders
from servers import both_logs, wait_until

pytestmark = pytest.mark.spark


@both_logs
def test_real_time_views_publish_at_once_and_never_go_back(shop):
    app = shop.app()
    totals, latest = shop.name("totals"), shop.name("latest")
    app.sql(
        totals,
        "SELECT country, sum(cents) AS cents FROM orders GROUP BY country",
        key="country",
        latency="realtime",
    )

    @app.view(key="customer_id", name=latest, latency="realtime")
    def newest(orders):
        return orders.where("cents >= 0").select("customer_id", "order_id")

    shop.make("orders")
    shop.send([*orders(30), b"bad"])
    topics = Topics(shop.bootstrap)

    def meanwhile(runner):
        wait_until(lambda: runner.wait(0.02) or len(shop.table(latest)) == 7, 60, "the first rows")
        shop.send(orders(30, start=30))
        wait_until(lambda: runner.wait(0.02) or shop.table(latest)["3"]["order_id"] == 59, 5, "the next rows")

    shop.run(app, meanwhile)
    shop.run(app, lambda _: shop.send(orders(30, start=60)))
    assert rows(app, shop.settings) == {totals: shop.table(totals), latest: shop.table(latest)}
    for view in (totals, latest):
        assert check(app, shop.settings, view).first is None
    versions = {key: value["_version"] for key, value, _ in shop.records(totals)}
    assert versions == {"de": 30, "fr": 30, "us": 30}

    invalid = {key: value["value"] for key, value, _ in shop.records(shop.name("orders.invalid"))}
    assert list(invalid.values()) == ["bad"]
    assert shop.committed(totals) == topics.ends([shop.name("orders")])


def test_a_real_time_view_is_compared_only_when_it_has_read_all(shop):
    app = shop.app()
    app.sql(
        shop.name("totals"), "SELECT country FROM orders GROUP BY country", key="country", latency="realtime"
    )
    shop.make("orders")
    shop.send(orders(5))
    with pytest.raises(hw.UsageError, match="known to have read all but 5 records"):
        check(app, shop.settings, shop.name("totals"))


@pytest.mark.parametrize(
    ("query", "key", "said"),
    [
        (
            "SELECT order_id, cents FROM orders",
            "order_id",
            "rows of one key may come from several partitions",
        ),
        ("SELECT a.customer_id FROM orders a JOIN orders b USING (order_id)", "customer_id", "it uses Join"),
    ],
)
def test_a_view_whose_rows_could_go_back_is_refused(shop, query, key, said):
    app = shop.app()
    app.sql(shop.name("wrong"), query, key=key, latency="realtime")
    with pytest.raises(hw.UsageError, match=said):
        Runner(app, shop.settings).start()


def test_the_embedded_spark_gets_a_slot_for_every_real_time_task():
    import os

    assert master(Settings(spark="local[*,4]"), 6) == f"local[{6 + os.cpu_count()},4]"
    assert master(Settings(spark="local[*,4]"), 0) == "local[*,4]"
    assert master(Settings(spark="spark://host:7077"), 6) == "spark://host:7077"
    with pytest.raises(
        hw.UsageError,
        match="too few slots for the real-time views; got 'local\\[2,4\\]'; expected at least 6",
    ):
        master(Settings(spark="local[2,4]"), 6)
