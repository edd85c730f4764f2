"""Orders of a web shop: revenue by country in windows of five minutes, and orders per minute.

headwater up examples/orders/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name every PySpark user knows)

import headwater as hw

app = hw.App("shop")


class Order(hw.Event):
    order_id: int
    customer_id: int
    country: str
    total: float
    at: datetime


orders = app.stream("orders", Order, key="customer_id", time="at", delay="10 minutes")


@app.view(key=["window", "country"])
def revenue(orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.window("at", "5 minutes"), "country").agg(F.sum("total").alias("revenue"))


app.sql(
    "orders_per_minute",
    "SELECT window, count(*) AS orders FROM orders GROUP BY window(at, '1 minute')",
    key=["window"],
)
