"""The application of the day: the demo's shop with a table, a captured database and stores outside.

    orders      kept in full: its views are rebuilt and checked against a batch over the log
    page_views  a short delay, so that some records come late
    searches, clicks, page_views, requests   retention removes them while the day lasts
    customers   a compacted topic that the generator writes
    stock       a table of a SQLite file that the generator changes, captured

``expected.py`` has the rules of the views a second time, without Spark.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.demo.event import Click, Order, PageView, Request, Search

FOLDER = Path(os.environ.get("DAY_FOLDER", "day"))

app = hw.App("day")


class Customer(hw.Row):
    id: int
    country: str
    points: int


class Stock(hw.Row):
    id: int
    shelf: str
    quantity: int


app.stream("searches", Search, key="session_id", time="at", delay="30 minutes")
app.stream("clicks", Click, key="session_id", time="at", delay="30 minutes")
app.stream("orders", Order, key="session_id", time="at", delay="30 minutes")
app.stream("page_views", PageView, key="session_id", time="at", delay="2 minutes")
app.stream("requests", Request, key="request_id", time="at", delay="30 minutes")
app.table("customers", Customer, key="id")
app.capture("warehouse", hw.capture.Sqlite(str(FOLDER / "warehouse.db"), tables=["stock"]))
app.table("stock", Stock, key="id", topic="warehouse.stock", envelope="debezium")


@app.view(key=["window", "country"])
def revenue(orders: DataFrame) -> DataFrame:
    """Orders of each country and quarter of an hour; an order that was sent twice counts once."""
    placed = orders.dropDuplicates(["order_id", "at"])
    return placed.groupBy(F.window("at", "15 minutes"), "country").agg(
        F.count("*").alias("orders"), F.sum("cents").alias("cents")
    )


@app.view(key=["window"])
def click_through(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    """Searches of a quarter of an hour, and the clicks on their results within the hour after each."""
    clicks = clicks.dropDuplicates(["click_id", "at"]).select("search_id", F.col("at").alias("clicked_at"))
    matched = (
        searches.select("search_id", "at")
        .join(clicks, "search_id")
        .where("clicked_at BETWEEN at AND at + INTERVAL 1 HOUR")
    )
    one, none = F.lit(1), F.lit(0)
    steps = searches.select("at", one.alias("search"), none.alias("click")).union(
        matched.select("at", none.alias("search"), one.alias("click"))
    )
    return steps.groupBy(F.window("at", "15 minutes")).agg(
        F.sum("search").alias("searches"), F.sum("click").alias("clicks")
    )


app.sql(
    "pages",
    """
    SELECT window, count(*) AS views, count_if(page = '/product') AS products
    FROM page_views
    GROUP BY window(at, '15 minutes')
    """,
    key=["window"],
)
app.sql(
    "answers",
    "SELECT path, status, count(*) AS requests, sum(ms) AS ms FROM requests GROUP BY path, status",
    key=["path", "status"],
)
app.sql(
    "large_orders",
    "SELECT order_id, country, cents FROM orders WHERE cents >= 5000",
    key="order_id",
    append=True,
)
app.sql(
    "members",
    "SELECT country, count(*) AS customers, sum(points) AS points FROM customers GROUP BY country",
    key="country",
)
app.sql(
    "shelves",
    "SELECT shelf, count(*) AS articles, sum(quantity) AS quantity FROM stock GROUP BY shelf",
    key="shelf",
)

app.sink("revenue", hw.sink.Sqlite(str(FOLDER / "stores" / "revenue.db")))
app.sink("stock", hw.sink.Sqlite(str(FOLDER / "stores" / "stock.db")))
app.sink("customers", hw.sink.Tantivy(str(FOLDER / "stores" / "search"), text=["country"]))
app.sink("large_orders", hw.sink.Parquet(str(FOLDER / "stores" / "lake")))
