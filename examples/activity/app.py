"""What people do, each act with the profile that its user had at that time.

headwater up examples/activity/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

app = hw.App("activity")


class Act(hw.Event):
    act_id: int
    user_id: int
    page: str
    at: datetime


class Profile(hw.Row):
    user_id: int
    country: str
    plan: str
    changed_at: datetime


app.stream("acts", Act, key="user_id", time="at", delay="10 minutes")
app.table("profiles", Profile, key="user_id")


@app.view(key="act_id", late=hw.late.correct("1 day"))
def activity(acts: DataFrame, profiles: DataFrame) -> DataFrame:
    """Live: an act without a profile is there at once, and put right when the profile comes within a day."""
    found = hw.enrich(acts, profiles, on="user_id", as_of="at", valid="changed_at")
    return found.select("act_id", "user_id", "page", "at", "country", "plan")


@app.view(key=["plan", "window"])
def acts_by_plan(acts: DataFrame, profiles: DataFrame) -> DataFrame:
    """Each act counts once, by the plan that its user had at that time; profiles may be an hour late."""
    found = hw.enrich(acts, profiles, on="user_id", as_of="at", valid="changed_at", final="1 hour")
    plan = F.coalesce("plan", F.lit("none")).alias("plan")
    return found.groupBy(plan, F.window("at", "1 hour")).agg(F.count("*").alias("acts"))
