"""Timelines: what those have posted whom one follows, the newest first.

headwater up examples/timeline/app.py
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

LENGTH = 100

app = hw.App("timeline")


class Tweet(hw.Row):
    tweet_id: int
    author: str
    text: str
    at: datetime


class Follow(hw.Row):
    follower: str
    followee: str


app.table("tweets", Tweet, key="tweet_id")
app.table("follows", Follow, key=["follower", "followee"])


@app.view(key="follower")
def timelines(follows: DataFrame, tweets: DataFrame) -> DataFrame:
    """One row for each person who follows an author of posts."""
    posted = hw.join(follows, tweets, on={"followee": "author"})
    newest = hw.newest_of(["tweet_id", "author", "text", "at"], order="at", limit=LENGTH)
    return hw.group(posted, "follower", tweets=newest, there_are=F.count("*"))
