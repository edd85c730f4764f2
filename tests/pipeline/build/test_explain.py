"""What a view keeps, and where: planned by Spark, without a log."""

from datetime import datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.config import Settings
from headwater.pipeline.build.explain import steps

pytestmark = pytest.mark.spark


class Order(hw.Event):
    order_id: int
    region: str
    cents: int
    at: datetime


class Rate(hw.Row):
    region: str
    percent: int
    valid_from: datetime


def test_each_step_says_what_it_reads_and_who_keeps_its_state(spark):
    app = hw.App("shop")
    app.stream("orders", Order, key="order_id", time="at", delay="10 minutes")
    app.table("rates", Rate, key=["region", "valid_from"])
    app.table("regions", Rate, key="region")

    @app.view(key=["region", "window"])
    def hours(orders):
        return orders.groupBy("region", F.window("at", "1 hour")).agg(F.count("*").alias("n"))

    @app.view(key="order_id")
    def now(orders, rates):
        return hw.enrich(orders, rates, on="region")

    app.sql("plain", "SELECT order_id, cents FROM orders", key="order_id")
    app.sql(
        "taxes",
        """SELECT o.region, sum(o.cents * r.percent) AS tax FROM orders o
        JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.region = r.region GROUP BY o.region""",
        key="region",
    )
    app.sql("both", "SELECT a.region FROM rates a LEFT JOIN regions b ON a.region = b.region", key="region")
    settings = Settings(log="kafka://127.0.0.1:9", partitions=3)
    kept = "state by key in 3 shards"
    assert steps(app, app.graph(), settings) == {
        "hours": ["groupBy of orders · by Spark"],
        "now": [
            f"current1: rows of rates · {kept}",
            f"enrich_now2: hw.enrich of orders, rates as it is now · {kept}",
        ],
        "plain": [],
        "taxes": [
            f"current1: rows of rates · {kept}",
            f"enrich2: hw.enrich of orders, rates as of at · {kept}",
            f"group3: hw.group of orders, rates by region · {kept}",
        ],
        "both": [
            f"route3: changes of rates, regions · {kept}",
            f"join4: hw.join of rates, regions (left) · {kept}",
        ],
    }
