"""The application whose data folders are fixtures. It means the same for as long as there is one of them: add views, change none."""

from datetime import datetime

from pyspark.sql import functions
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

app = hw.App("life")


class Order(hw.Event):
    id: int
    country: str
    cents: int
    at: datetime


app.stream("orders", Order, key="id", time="at", delay="1 minute")


@app.view(key="country")
def totals(orders):
    return orders.groupBy("country").agg(
        functions.count("*").alias("orders"), functions.sum("cents").alias("cents")
    )


@app.view(key=["window"], late=hw.late.correct("9000 days"))
def minutes(orders):
    return orders.groupBy(functions.window("at", "1 minute")).agg(functions.count("*").alias("orders"))


@app.view(key="country")
def counted(orders):
    return hw.count(orders, "country")


@app.view(key=["country", "window"], late=hw.late.correct("9000 days"))
def visits(orders):
    return hw.sessions(orders, "country", time="at", gap="30 seconds", orders=F.count("*"))


@app.view(key="country")
def large(totals):
    return totals.where("orders > 0").selectExpr("country", "orders AS n")


app.capture("shop", hw.capture.Sqlite("shop.db", tables=["item"]))
app.sink("totals", hw.sink.Sqlite("sink.db"), name="totals")
