"""The demo's application: a web shop, its five streams and four live views.

This is an ordinary application file. Start it against your own log with `headwater up shop.py`, draw it
with `headwater graph shop.py`, or let `headwater demo` start it together with the shop's traffic.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

import headwater as hw
from headwater.demo.event import Click, Order, PageView, Request, Search

app = hw.App("shop")

# Some phones send minutes late, and some have a wrong clock: events up to half an hour late still count.
app.stream("searches", Search, key="session_id", time="at", delay="30 minutes")
app.stream("clicks", Click, key="session_id", time="at", delay="30 minutes")
app.stream("orders", Order, key="session_id", time="at", delay="30 minutes")
app.stream("page_views", PageView, key="session_id", time="at", delay="30 minutes")
app.stream("requests", Request, key="request_id", time="at", delay="30 minutes")


@app.view(key=["window"])
def click_through(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    """The searches of five minutes, and the clicks on their results within an hour.

    A phone that gets no answer sends its click again: the same click counts once.
    """
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
    counts = steps.groupBy(F.window("at", "5 minutes")).agg(
        F.sum("search").alias("searches"), F.sum("click").alias("clicks")
    )
    return counts.withColumn("rate", F.round(F.try_divide("clicks", "searches"), 4))


@app.view(key=["window", "country"])
def revenue(orders: DataFrame) -> DataFrame:
    """The orders of each country in five minutes, and their value.

    An order that was sent twice counts once.
    """
    placed = orders.dropDuplicates(["order_id", "at"])
    return placed.groupBy(F.window("at", "5 minutes"), "country").agg(
        (F.sum("cents") / 100).alias("revenue"), F.count("*").alias("orders")
    )


app.sql(
    "page_views_per_minute",
    """
    SELECT window, count(*) AS views, count_if(page = '/product') AS products
    FROM page_views
    GROUP BY window(at, '1 minute')
    """,
    key=["window"],
)


@app.view(key=["window"], latency="realtime")
def requests_per_second(requests: DataFrame) -> DataFrame:
    """The answers of the web server in each second, published within milliseconds of the request."""
    return requests.groupBy(F.window("at", "1 second")).agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= 500).alias("errors"),
        F.max("ms").alias("slowest_ms"),
    )
