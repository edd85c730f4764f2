"""Queries that could not be right are refused before anything starts, with what to use instead."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.pipeline import prepare
from pipeline.differential.values import Order, User

pytestmark = pytest.mark.spark


def planned(spark, shop, make, key) -> None:
    app = hw.App("refused")
    app.table("users", User, key="id", topic=shop.name("users"))
    app.stream("orders", Order, key="code", time="at", topic=shop.name("orders"), delay="1 minute")
    if isinstance(make, str):
        app.sql("v", make, key=key)
    else:
        app.view(key=key, name="v")(make)
    graph = app.graph()
    prepare.planned(spark, shop.settings, graph, graph.views["v"], 2)


CLOCKS = {
    "a filter": ("id", "SELECT id, name FROM users WHERE seen > current_timestamp()"),
    "a group": ("name", "SELECT name, count(*) AS n FROM users WHERE seen > now() GROUP BY name"),
    "a column": ("id", "SELECT id, current_date() AS today FROM users"),
    "a DataFrame": ("id", lambda users: users.where(F.col("seen") > F.current_timestamp()).select("id")),
    "a random number": ("id", lambda users: users.select("id", F.rand().alias("r"))),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_over_a_table_is_refused_since_no_record_comes_when_it_strikes(spark, shop, name):
    key, make = CLOCKS[name]
    with pytest.raises(hw.UsageError, match=r"(?s)another one each time.*hw\.valid"):
        planned(spark, shop, make, key)


def test_a_text_that_looks_like_a_clock_is_none(spark, shop):
    planned(spark, shop, "SELECT id, 'current_date' AS now FROM users WHERE name <> 'now()'", "id")


AGGREGATES = {
    "an aggregate": (["user", "n"], "SELECT user, count(*) AS n FROM orders GROUP BY user"),
    "an expression of one": (
        ["user", "size"],
        "SELECT user, CASE WHEN count(*) > 1 THEN 'big' ELSE 'small' END AS size FROM orders GROUP BY user",
    ),
    "a column of a subquery": (
        ["user", "m"],
        "SELECT user, n + 1 AS m FROM (SELECT user, count(*) AS n FROM orders GROUP BY user)",
    ),
    "a generator": (
        ["user", "letter"],
        "SELECT user, letter FROM (SELECT user, max(item) AS items FROM orders GROUP BY user) LATERAL VIEW explode(split(items, '')) AS letter",
    ),
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_key_that_comes_from_an_aggregate_is_refused_since_its_old_row_would_stay(spark, shop, name):
    key, make = AGGREGATES[name]
    with pytest.raises(hw.UsageError, match=r"(?s)comes from an aggregate.*hw\.group"):
        planned(spark, shop, make, key)


def test_a_key_of_what_is_grouped_by_is_taken_whatever_is_made_of_it(spark, shop):
    planned(spark, shop, "SELECT upper(item) AS item, count(*) AS n FROM orders GROUP BY item", "item")
    planned(
        spark,
        shop,
        lambda orders: (
            orders.groupBy(F.window("at", "1 hour"), "user").count().select("window", "user", "count")
        ),
        ["window", "user"],
    )
