"""One definition of a feature, for serving and for training; and a model that is swapped by a record.

headwater up examples/features/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

app = hw.App("features")


class Purchase(hw.Event):
    user: str
    cents: int
    at: datetime


class Visit(hw.Event):
    visit_id: int
    user: str
    spent: int
    """What was known of the user when the visit began, as the newest row of ``spending`` had it."""
    model: str
    at: datetime


class Model(hw.Row):
    model: str
    weight: float
    bias: float
    used_from: datetime


app.stream("purchases", Purchase, key="user", time="at", delay="10 minutes")
app.stream("visits", Visit, key="user", time="at", delay="10 minutes")
app.table("models", Model, key=["model", "used_from"])


@app.view(key=["user", "window"], late=hw.late.correct("1 day"))
def spending(purchases: DataFrame) -> DataFrame:
    """The feature: what a user has spent in a week, at each purchase. The newest row of a user serves."""
    return hw.sliding(purchases, "user", time="at", size="7 days", spent=F.sum("cents"), n=F.count("*"))


@app.view(key="visit_id", late=hw.late.correct("1 day"))
def scores(visits: DataFrame, models: DataFrame) -> DataFrame:
    """Each visit with the model of its time, which is in the row."""
    found = hw.enrich(visits, models, on="model", as_of="at", valid="used_from", version="model_version")
    score = F.col("weight") * F.col("spent") + F.col("bias")
    return found.select("visit_id", "user", "model", "model_version", score.alias("score"))


def training(labels: DataFrame, features: DataFrame) -> DataFrame:
    """The labels, each with what was known at its own time: ``training(labels, app.batch("spending"))``."""
    known = features.select(
        "user", F.col("window.end").alias("known_at"), F.col("spent").alias("known_spent")
    )
    return hw.enrich(labels, known, on="user", as_of="at", valid="known_at").rows


def disagreeing(served: DataFrame, features: DataFrame) -> DataFrame:
    """What was served that training would not have seen: empty when both agree."""
    return training(served, features).where("NOT (spent <=> coalesce(known_spent, 0))")
