"""Two streams within a time bound through Spark: live, closing with no further input, with restarts, and as in batch."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.declare.table import frame_of
from headwater.errors import UsageError
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.output.changed_rows import ChangedRows

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PAGE = Path(__file__).parents[3] / "docs" / "within.md"

pytestmark = pytest.mark.spark
weighted = pytest.mark.skipif(
    "weighted" not in ChangedRows.__struct_fields__,
    reason="needs the publication of rows that are taken back",
)


class Search(hw.Event):
    search_id: int
    query: str
    at: datetime


class Click(hw.Event):
    click_id: int
    search_id: int
    at: datetime


def search(n: int, minute: float) -> Search:
    return Search(n, f"q{n % 2}", BEGIN + minute * MINUTE)


def click(n: int, of: int, minute: float) -> Click:
    return Click(n, of, BEGIN + minute * MINUTE)


def declared(prefix: str = "") -> hw.App:
    app = hw.App("searches")
    app.stream("searches", Search, key="search_id", time="at", delay="5 minutes", topic=f"{prefix}searches")
    app.stream("clicks", Click, key="search_id", time="at", delay="5 minutes", topic=f"{prefix}clicks")
    return app


def named(clicks: DataFrame) -> DataFrame:
    return clicks.select("click_id", "search_id", F.col("at").alias("clicked_at"))


def test_pairs_and_windows_over_them_with_a_restart_between(shop):
    app = declared(f"{shop.name('')}")
    pairs, counted, missed = (shop.name(name) for name in ("pairs", "counted", "missed"))
    within = {"on": "search_id", "time": ("at", "clicked_at"), "after": "10 minutes"}

    @app.view(key=["search_id", "click_id"], name=pairs)
    def of_pairs(searches, clicks):
        return hw.match(searches, named(clicks), **within)

    @app.view(key="window", name=counted)
    def of_counted(searches, clicks):
        matched = hw.match(searches, named(clicks), **within)
        return matched.groupBy(F.window("at", "5 minutes")).agg(F.count("*").alias("clicks"))

    @app.view(key="window", name=missed, late=hw.late.correct("6 minutes"))
    def of_missed(searches, clicks):
        alone = hw.unmatched(searches, named(clicks), **within)
        return alone.groupBy(F.window("at", "5 minutes")).agg(F.count("*").alias("searches"))

    shop.make("searches", "clicks")
    parts = [
        ([search(1, 0), search(2, 1), search(3, 2)], [click(10, 1, 10)]),
        ([search(4, 9)], [click(11, 2, 11.01), click(12, 4, 9), click(13, 9, 5)]),
        ([search(5, 12)], [click(14, 5, 11.9), click(15, 1, 3)]),
        ([search(6, 60)], [click(16, 6, 60)]),
        ([search(7, 90)], [click(17, 7, 90)]),
        ([search(8, 91)], [click(18, 8, 91)]),
    ]
    for between_starts in (parts[:3], parts[3:]):
        with shop.running(app) as runner:
            for searches, clicks in between_starts:
                with shop.one_batch(runner):
                    shop.send_to(shop.name("searches"), searches, "search_id")
                    shop.send_to(shop.name("clicks"), clicks, "search_id")

    found = sorted((row["search_id"], row["click_id"]) for row in shop.table(pairs).values())
    assert found == [(1, 10), (1, 15), (4, 12), (6, 16), (7, 17), (8, 18)]
    assert sorted(row["clicks"] for row in shop.table(counted).values()) == [1, 1, 2, 2]
    lost = {key[11:16]: row["searches"] for key, row in shop.table(missed).items()}
    assert lost == {"09:00": 2, "09:10": 1}
    answer = rows(app, shop.settings)
    for view in (pairs, counted, missed):
        assert answer[view] == shop.table(view)


def test_a_search_without_a_click_comes_out_with_no_further_input():
    app = declared()
    app.sql(
        "missed",
        "SELECT search_id, query, at FROM unmatched(searches, clicks, on => 'search_id', time => 'at', after => '10 minutes')",
        key="search_id",
    )
    with testing.views(app, now=BEGIN) as t:
        t.send("searches", search(1, 0), search(2, 1))
        t.send("clicks", click(10, 1, 10))
        assert t.rows("missed") == []
        t.advance(
            "5 minutes"
        )  # the clicks are at 9:10 less the delay, and advance by the clock after a minute: 9:09
        assert t.rows("missed") == []
        t.advance("20 minutes")
        assert [row["search_id"] for row in t.rows("missed")] == [2]
        t.check("missed")


@weighted
def test_a_left_join_shows_nulls_and_then_the_match():
    app = declared()

    @app.view(key="search_id")
    def first(searches, clicks):
        clicks = named(clicks).where("click_id < 20")
        return hw.match(searches, clicks, on="search_id", time=("at", "clicked_at"), after="10 minutes", how="left")  # fmt: skip

    with testing.views(app, now=BEGIN) as t:
        t.send("searches", search(1, 0), search(2, 1))
        assert [(row["search_id"], row["click_id"]) for row in t.rows("first")] == [(1, None), (2, None)]
        t.send("clicks", click(10, 2, 3), click(20, 1, 3))
        assert [(row["search_id"], row["click_id"]) for row in t.rows("first")] == [(1, None), (2, 10)]
        t.check("first")


def test_what_cannot_be_matched_is_refused_in_one_line(spark):
    left = spark.createDataFrame([(1, "a", BEGIN)], "id int, name string, at timestamp")
    right = spark.createDataFrame([(1, "a", BEGIN)], "id int, name string, seen timestamp")
    on = {"on": "id", "time": ("at", "seen")}
    with pytest.raises(
        UsageError, match=r"both inputs have a column of the same name; got name; rename it in one of them"
    ):
        hw.match(left, right, within="1 minute", **on)
    with pytest.raises(
        UsageError, match=r"give either within=, or one or both of before= and after=; got none of them"
    ):
        hw.match(left, right.drop("name"), **on)
    with pytest.raises(UsageError, match=r"unknown how=; got 'outer'; expected inner, left, right, full"):
        hw.match(left, right.drop("name"), within="1 minute", how="outer", **on)
    with pytest.raises(
        UsageError, match=r"unmatched: the right input is not a stream: its rows may still change"
    ):
        hw.unmatched(left, right.withColumn("_weight", F.lit(1)), within="1 minute", **on)
    with pytest.raises(UsageError, match=r"match: time='at' is not a timestamp column of its input"):
        hw.match(left, right.drop("name"), on="id", time="at", within="1 minute")


def test_the_examples_of_the_page_run(spark):
    app = hw.App("page")
    known: dict = {"hw": hw, "app": app, "F": F, "DataFrame": DataFrame, "datetime": datetime}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, known)  # noqa: S102  what readers of the page write
    searches = spark.createDataFrame(
        [(1, "shoes", BEGIN), (2, "hats", BEGIN)], "search_id int, query string, at timestamp"
    )
    clicks = spark.createDataFrame(
        [(1, 1, BEGIN + 10 * MINUTE), (2, 1, BEGIN - MINUTE)], "click_id int, search_id int, at timestamp"
    )
    counted = {
        name: frame_of(view.function(searches, clicks)).count()
        for name, view in app.graph().views.items()
        if view.function is not None
    }
    assert counted == {"clicked": 1, "answers": 2, "misses": 1, "by_spark": 1}
