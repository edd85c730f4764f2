"""Queries that could not be right are refused before anything starts, with what to use instead."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.declare.query.sql_functions import SQL_FUNCTIONS
from headwater.pipeline.build import prepare
from pipeline.differential.values import Click, User

pytestmark = pytest.mark.spark


def planned(spark, shop, make, key) -> None:
    app = hw.App("refused")
    app.table("users", User, key="id", topic=shop.name("users"))
    app.stream("orders", Click, key="id", time="at", topic=shop.name("orders"), delay="1 minute")
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
    with pytest.raises(hw.UsageError, match=r"(?s)whose value is not constant.*hw\.valid"):
        planned(spark, shop, make, key)


def test_a_text_that_looks_like_a_clock_is_not_a_clock(spark, shop):
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


def test_a_key_of_grouped_columns_is_accepted_in_any_expression(spark, shop):
    planned(spark, shop, "SELECT upper(item) AS item, count(*) AS n FROM orders GROUP BY item", "item")
    planned(
        spark,
        shop,
        lambda orders: (
            orders.groupBy(F.window("at", "1 hour"), "user").count().select("window", "user", "count")
        ),
        ["window", "user"],
    )


def sort(rows):
    return rows.orderBy("id")


def chance(rows):
    return rows.withColumn("r", F.rand())


def first(rows):
    return rows.limit(3)


def no_column(orders):
    return orders.select("id", F.concat("nosuch"))


def no_key(orders):
    return orders.select({}["id"])


PLANNED = {
    "an order in a helper": (
        lambda orders: sort(orders.where("id > 0")),
        "^view 'v' sorts the rows of a stream; rows of a view",
    ),
    "a limit in a helper": (
        lambda orders: first(orders.where("id > 0")),
        "^view 'v' takes the first rows of a stream",
    ),
    "chance in a helper": (
        lambda orders: chance(orders.where("id > 0")),
        r"^view 'v' uses rand\(\), which has another value",
    ),
    "a step that no stream has": (
        lambda orders: orders.sample(0.5),
        "^view 'v' cannot run as a stream: Sampling is not supported",
    ),
    "a column that is not there": (
        no_column,
        r"`nosuch` cannot be resolved.*; got test_refused_queries\.py, line \d+, in no_column: return orders.select",
    ),
    "an exception of its own": (
        no_key,
        r"^view 'v': KeyError: 'id'; got test_refused_queries\.py, line \d+, in no_key: return orders\.select\(\{\}",
    ),
    "a function with too many arguments": (
        "SELECT id,\n  upper(item, item) AS x FROM orders",
        r"got 'upper\(item, item\) AS x FROM orders' at line 2, column 3 of the query$",
    ),
    "a mistake of grammar": (
        "SELECT id FRM orders JOIN orders USING (id)",
        r"Syntax error at or near 'orders'.*got 'orders JOIN orders",
    ),
    "a type that does not fit": (
        "SELECT id, array(1) + item AS x FROM count(orders, key => 'id') JOIN orders USING (id)",
        r"got 'array\(1\) \+ item",
    ),
}


@pytest.mark.parametrize("name", PLANNED)
def test_what_only_a_plan_shows_is_refused_with_its_place(spark, shop, name):
    make, said = PLANNED[name]
    with pytest.raises(hw.UsageError, match=f"(?s){said}") as refused:
        planned(spark, shop, make, "id")
    assert "\n" not in str(refused.value)


def test_every_function_of_spark_is_known_without_spark(spark):
    """A query with a function that is not in the list would be refused before Spark is asked."""
    names = {row[0] for row in spark.sql("SHOW FUNCTIONS").collect() if row[0].isidentifier()}
    assert {name for name in names if not name.startswith("spark_catalog.")} <= SQL_FUNCTIONS
    assert SQL_FUNCTIONS - names == {"timestampadd", "timestampdiff", "try_cast"}
