"""Requests per minute, by when they were made.

headwater up examples/redeploy/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name every PySpark user knows)

import headwater as hw

app = hw.App("redeploy")


class Request(hw.Event):
    host: str
    path: str
    at: datetime


requests = app.stream("requests", Request, key="host", time="at", delay="1 minute")


@app.view(key="window")
def rate(requests: DataFrame) -> DataFrame:
    return requests.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("requests"))
