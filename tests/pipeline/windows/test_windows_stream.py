"""Windows of our own through Spark: as a stream and in batch, with restarts; and sessions beside Spark's own."""

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
PAGE = Path(__file__).parents[3] / "docs" / "windows.md"


def order(n: int, second: int, customer: int = 1) -> Order:
    return Order(n, customer, "de" if n % 2 else "fr", n, BEGIN + timedelta(seconds=second))


def _span(row: dict) -> tuple[str, str]:
    """Minute and second of its window's start and end."""
    return row["window"]["start"][14:19], row["window"]["end"][14:19]


@pytest.mark.spark
def test_in_a_stream_and_in_batch_with_restarts_between(shop):
    visits, recent, once = (shop.name(name) for name in ("visits", "recent", "once"))
    app = shop.app()

    @app.view(key=["customer_id", "window"], name=visits)
    def of_visits(orders):
        return hw.sessions(orders, "customer_id", time="at", gap="20 seconds", n=F.count("*"), cents=F.sum("cents"), first=F.first("country"))  # fmt: skip

    @app.view(key=["customer_id", "window"], name=recent)
    def of_recent(orders):
        return hw.sliding(
            orders, "customer_id", time="at", size="30 seconds", n=F.count("*"), mean=F.avg("cents")
        )

    @app.view(key="order_id", name=once)
    def of_once(orders):
        return hw.distinct(orders, "order_id", time="at", within="1 minute").withColumn("seen", F.lit(1))

    shop.make("orders")
    parts = [
        [order(1, 0), order(2, 20), order(3, 5, customer=2)],
        [order(2, 20), order(4, 40), order(5, 61), order(3, 5, customer=2)],
        [order(6, 26, customer=2), order(7, 70), order(1, 0)],
    ]
    for part in parts:
        shop.send(random.Random(1).sample(part, len(part)))
        Runner(app, shop.settings).once()

    found = shop.table(visits).values()
    assert sorted((*_span(row), row["customer_id"], row["n"], row["cents"]) for row in found) == [
        ("00:00", "01:00", 1, 5, 10),
        ("00:05", "00:25", 2, 2, 6),
        ("00:26", "00:46", 2, 1, 6),
        ("01:01", "01:30", 1, 2, 12),
    ]
    counted = {(row["customer_id"], _span(row)[1]): row["n"] for row in shop.table(recent).values()}
    assert counted == {(1, "00:00"): 2, (1, "00:20"): 4, (1, "00:40"): 3, (1, "01:01"): 2, (1, "01:10"): 2, (2, "00:05"): 2, (2, "00:26"): 3}  # fmt: skip
    assert sorted(shop.table(once)) == ["1", "2", "3", "4", "5", "6", "7"]
    answer = rows(app, shop.settings)
    for view in (visits, recent, once):
        assert answer[view] == shop.table(view)


@pytest.mark.spark
def test_sessions_and_aggregates_are_those_of_spark(spark):
    """Its session_window and its functions, over rows that often are exactly a gap apart."""
    chance = random.Random(5)
    made = [
        (chance.choice("abc"), BEGIN + timedelta(seconds=chance.randint(0, 400)), n, chance.random(), chance.choice("xyz"))
        for n in range(150)
    ]  # fmt: skip
    frame = spark.createDataFrame(made, "user string, at timestamp, n int, weight double, page string").selectExpr(
        "*", "CAST(n AS DECIMAL(10, 2)) / 1 AS price", "IF(n % 3 = 0, NULL, page) AS maybe"
    )  # fmt: skip
    asked = {"rows": "count(*)", "some": "count(maybe)", "total": "sum(n)", "mean": "avg(n)", "low": "min(page)", "high": "max(at)", "cost": "sum(price)", "fair": "avg(price)"}  # fmt: skip
    ours = hw.sessions(
        frame, "user", time="at", gap="5 seconds", **{name: F.expr(text) for name, text in asked.items()}
    )
    theirs = frame.groupBy("user", F.session_window("at", "5 seconds").alias("window")).agg(
        *(F.expr(text).alias(name) for name, text in asked.items())
    )
    names = ["user", "window", *asked]
    assert [(f.name, f.dataType.simpleString()) for f in ours.select(names).schema] == [
        (f.name, f.dataType.simpleString()) for f in theirs.select(names).schema
    ]
    found = ours.select(names).orderBy("user", "window").collect()
    assert found == theirs.select(names).orderBy("user", "window").collect()
    assert len(found) < 90


@pytest.mark.spark
def test_the_examples_of_the_page_run(spark):
    app = hw.App("page")
    known: dict = {"hw": hw, "app": app, "F": F, "DataFrame": DataFrame, "datetime": datetime}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, known)  # noqa: S102  what readers of the page write
    clicks = spark.createDataFrame(
        [("1", "ann", "/", 5, BEGIN), ("1", "ann", "/", 5, BEGIN), ("2", "ann", "/buy", 7, BEGIN + timedelta(minutes=30))],
        "id string, user string, page string, cents int, at timestamp",
    )  # fmt: skip
    counted = {name: view.function(clicks).count() for name, view in app.graph().views.items()}
    assert counted == {
        "clicks_of_ten_minutes": 2,
        "clicks_every_five_minutes": 4,
        "spent_in_the_last_hour": 2,
        "visits": 1,
        "clicks_once": 2,
    }
