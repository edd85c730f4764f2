"""What people do in a visit: sessions of clicks, live, and complete ones for the newsletter.

headwater up examples/sessions/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

app = hw.App("sessions")


class Click(hw.Event):
    user: str
    page: str
    at: datetime


app.stream("clicks", Click, key="user", time="at", delay="5 minutes")


def _visits(clicks: DataFrame) -> DataFrame:
    return hw.sessions(
        clicks,
        "user",
        time="at",
        gap="30 minutes",
        clicks=F.count("*"),
        landing=F.first("page"),
        exit=F.last("page"),
    )


@app.view(key=["user", "window"], late=hw.late.correct("1 day"))
def visits(clicks: DataFrame) -> DataFrame:
    """While they are open: a click may still join two of them."""
    return _visits(clicks)


@app.view(key=["user", "window"], emit="ready", late=hw.late.correct("1 day"))
def ended(clicks: DataFrame) -> DataFrame:
    """Once the clicks have ended, although no event says so."""
    return _visits(clicks).where("clicks > 1")


app.sql(
    "long_visits",
    """SELECT user, window, pages
       FROM sessions(clicks, key => 'user', time => 'at', gap => '30 minutes', pages => 'count(page)')
       WHERE window.end - window.start > INTERVAL 1 HOUR""",
    key=["user", "window"],
    late=hw.late.correct("1 day"),
)
