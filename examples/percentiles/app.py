"""Response times: a dashboard of minutes, from which hours and days are merged on request.

headwater up examples/percentiles/app.py
curl 'localhost:8080/views/minutes?merge=times&by=service'
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name every PySpark user knows)

import headwater as hw

app = hw.App("percentiles")


class Request(hw.Event):
    service: str
    user: str
    milliseconds: float
    at: datetime


app.stream("requests", Request, key="service", time="at", delay="1 minute")


@app.view(key=["window", "service"], late=hw.late.correct("1 hour"))
def minutes(requests: DataFrame) -> DataFrame:
    return requests.groupBy(F.window("at", "1 minute"), "service").agg(
        F.count("*").alias("requests"),
        hw.sketch.percentiles("milliseconds").alias("times"),
        hw.sketch.distinct("user").alias("users"),
    )
