"""What an order costs with the tax of its own day: rates change, are announced before, and are put right afterwards.

headwater up examples/tax/app.py
"""

from datetime import datetime
from decimal import Decimal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

app = hw.App("tax")


class Order(hw.Event):
    order_id: int
    region: str
    cents: int
    at: datetime


class Rate(hw.Row):
    region: str
    percent: Decimal
    valid_from: datetime


app.stream("orders", Order, key="order_id", time="at", delay="10 minutes")
app.table("rates", Rate, key=["region", "valid_from"])


@app.view(key="order_id", late=hw.late.correct("1 day"))
def taxed(orders: DataFrame, rates: DataFrame) -> DataFrame:
    """Live: a rate that is put right within a day puts the orders right, too."""
    found = hw.enrich(orders, rates, on="region", as_of="at", valid="valid_from")
    return found.withColumn("tax_cents", F.round(F.col("cents") * F.col("percent") / 100).cast("long"))


@app.view(key=["region", "window"])
def tax_by_hour(orders: DataFrame, rates: DataFrame) -> DataFrame:
    """Once a row is final, Spark may add it up."""
    found = hw.enrich(
        orders, rates, on="region", as_of="at", valid="valid_from", missing="drop", final="1 hour"
    )
    tax = F.col("cents") * F.col("percent") / 100
    return found.groupBy("region", F.window("at", "1 hour")).agg(
        F.round(F.sum(tax)).cast("long").alias("cents")
    )


@app.view(key=["region", "valid_from"])
def rate_history(rates: DataFrame) -> DataFrame:
    """From when until when: GET /views/rate_history?as_of=2026-01-05T09:00:00Z."""
    return hw.versions(rates, "region", time="valid_from")
