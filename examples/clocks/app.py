"""Taps on telephones whose clocks are wrong, counted by when they happened.

headwater up examples/clocks/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name every PySpark user knows)

import headwater as hw

app = hw.App("clocks")


class Tap(hw.Event):
    phone: str
    n: int
    occurred: datetime
    """By the telephone's clock."""
    sent: datetime
    """By the telephone's clock."""
    received: datetime
    """By ours."""


taps = app.stream("taps", Tap, key="phone", time="received", delay="10 seconds")


def corrected(taps: DataFrame) -> DataFrame:
    return hw.corrected_time(
        taps, "phone", occurred="occurred", sent="sent", received="received", bound="1 day"
    )


@app.view(key=["phone", "n"])
def corrected_taps(taps: DataFrame) -> DataFrame:
    return corrected(taps)


@app.view(key="window")
def taps_per_5_minutes(taps: DataFrame) -> DataFrame:
    return corrected(taps).groupBy(F.window("corrected", "5 minutes")).agg(F.count("*").alias("taps"))


@app.view(key="phone")
def phones(taps: DataFrame) -> DataFrame:
    newest = hw.latest(corrected(taps), "phone", time="received")
    return newest.select(
        "phone", "received", "correction.done", (F.col("correction.offset_us") / 1e6).alias("seconds")
    )
