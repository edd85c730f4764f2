"""Which searches find something: how many of them are followed by a click, and which are not.

headwater up examples/clickthrough/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name every PySpark user knows)

import headwater as hw

app = hw.App("clickthrough")

PATIENCE = "10 minutes"
"""A click belongs to a search when it comes within so long after it."""


class Search(hw.Event):
    search_id: int
    query: str
    at: datetime


class Click(hw.Event):
    click_id: int
    search_id: int
    at: datetime


app.stream("searches", Search, key="search_id", time="at", delay="5 minutes")
app.stream("clicks", Click, key="search_id", time="at", delay="5 minutes")


@app.view(key="window", emit="ready")
def click_through(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    """The searches of five minutes, those without a click, and the rate: once, when no click can come any more."""
    missed = hw.unmatched(searches, clicks, on="search_id", time="at", after=PATIENCE)
    one, none = F.lit(1), F.lit(0)
    steps = searches.select("at", one.alias("search"), none.alias("miss")).union(
        missed.select("at", none.alias("search"), one.alias("miss"))
    )
    counts = steps.groupBy(F.window("at", "5 minutes")).agg(
        F.sum("search").alias("searches"), F.sum("miss").alias("without_click")
    )
    return counts.withColumn("rate", F.round(1 - F.try_divide("without_click", "searches"), 4))


@app.view(key=["search_id", "click_id"])
def found(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    """Each click with its search, as soon as both are there, and how long it took."""
    clicked = clicks.select("click_id", "search_id", F.col("at").alias("clicked_at"))
    pairs = hw.match(searches, clicked, on="search_id", time=("at", "clicked_at"), after=PATIENCE)
    return pairs.withColumn("seconds", F.unix_timestamp("clicked_at") - F.unix_timestamp("at"))


app.sql(
    "nothing_found",
    """SELECT search_id, query, at
       FROM unmatched(searches, clicks, on => 'search_id', time => 'at', after => '10 minutes')""",
    key="search_id",
)
