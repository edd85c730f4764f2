"""Enrich and versions through Spark: as a stream, whichever input comes first, and in batch; and what is refused."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.errors import UsageError
from headwater.pipeline.asof import table_changes
from headwater.pipeline.build import query

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PAGE = Path(__file__).parents[3] / "docs" / "asof.md"
EXAMPLES = Path(__file__).parents[3] / "examples"
needs_tables = pytest.mark.skipif(not hasattr(hw.App, "table"), reason="tables are declared with app.table")
pytestmark = pytest.mark.spark


class Sale(hw.Event):
    id: int
    region: str | None
    cents: int
    at: datetime


class Rate(hw.Event):
    region: str
    percent: int
    valid_from: datetime


class RateRow(hw.Row):
    region: str
    percent: int
    valid_from: datetime


def sale(n: int, minute: int, region: str | None = "de") -> dict:
    return {"id": n, "region": region, "cents": 100 * n, "at": BEGIN + minute * MINUTE}


def rate(percent: int, minute: int, region: str = "de") -> dict:
    return {"region": region, "percent": percent, "valid_from": BEGIN + minute * MINUTE}


def declared() -> hw.App:
    app = hw.App("sales")
    app.stream("sales", Sale, key="id", time="at", delay="5 minutes")
    app.stream("rates", Rate, key="region", time=hw.ARRIVAL)

    @app.view(key=["region", "window"])
    def tax(sales, rates):
        found = hw.enrich(sales, rates, on="region", as_of="at", valid="valid_from", final="10 minutes")
        cents = F.sum(F.col("cents") * F.col("percent")).alias("tax")
        return found.groupBy("region", F.window("at", "1 hour")).agg(cents, F.count("*").alias("n"))

    @app.view(key="id")
    def now(sales, rates):
        return hw.enrich(sales, rates, on="region").select("id", "percent")

    return app


@pytest.mark.timeout(1200)
def test_final_rows_are_counted_once_and_the_newest_row_is_whatever_has_come():
    with testing.views(declared(), now=BEGIN) as t:
        t.send("sales", sale(1, 10), sale(2, 20), sale(3, 5, None))
        assert {row["percent"] for row in t.rows("now")} == {None}
        t.send("rates", rate(16, 20), rate(19, 0))
        t.send("sales", sale(4, 19))
        assert {row["id"]: row["percent"] for row in t.rows("now")}[4] in {16, 19}
        assert [row["region"] for row in t.rows("tax")] == [None]  # nothing to wait for
        t.watermark(BEGIN + 50 * MINUTE)
        t.send("sales", sale(5, 70))
        wanted = {None: (None, 1), "de": (19 * 100 + 16 * 200 + 19 * 400, 3)}
        assert {row["region"]: (row["tax"], row["n"]) for row in t.rows("tax")} == wanted
        t.advance("2 hours")
        t.check("tax")


@needs_tables
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("key", [["region", "valid_from"], ["region"]], ids=["rows", "changes"])
def test_a_sale_meets_the_rate_of_its_time_whichever_comes_first(key):
    app = hw.App("sales")
    app.stream("sales", Sale, key="id", time="at", delay="5 minutes")
    app.table("rates", RateRow, key=key)

    @app.view(key="id", late=hw.late.correct("1 hour"))
    def taxed(sales, rates):
        return hw.enrich(sales, rates, on="region", as_of="at", valid="valid_from")

    @app.view(key=["region", "valid_from"])
    def kept(rates):
        return hw.versions(rates, "region", time="valid_from")

    with testing.views(app, now=BEGIN) as t:
        t.send("sales", sale(1, 10), sale(2, 20), sale(3, 5, None))
        assert [row["percent"] for row in t.rows("taxed")] == [None, None, None]
        t.send("rates", rate(16, 20), rate(19, 0))
        assert [row["percent"] for row in t.rows("taxed")] == [19, 16, None]
        assert t.rows("taxed")[1]["version"].startswith("2026-01-05T09:20:00.000000Z")
        assert [(row["percent"], row["valid_to"]) for row in t.rows("kept")] == [
            (19, BEGIN + 20 * MINUTE),
            (16, None),
        ]
        t.send("rates", rate(7, 10))
        assert [row["percent"] for row in t.rows("taxed")] == [7, 16, None]
        for view in ("taxed", "kept"):
            t.check(view)


@pytest.mark.timeout(1200)
def test_a_copy_of_an_event_is_one_row_of_a_view_and_leaves_with_the_last_of_its_copies():
    """A producer that tries again sends an event twice: in one batch, or in a later one."""
    app = hw.App("sales")
    app.stream("sales", Sale, key="id", time="at", delay="5 minutes")
    app.stream("offers", Rate, key="region", time="valid_from", delay="5 minutes")
    app.stream("rates", Rate, key="region", time=hw.ARRIVAL)

    @app.view(key="id", late=hw.late.correct("1 day"))
    def taxed(sales, rates):
        return hw.enrich(sales, rates, on="region", as_of="at", valid="valid_from").select("id", "percent")

    @app.view(key=["id", "percent"])
    def offered(sales, offers):
        sides = {"time": ["at", "valid_from"], "within": "15 minutes", "how": "left"}
        return hw.match(sales, offers, on="region", **sides).select("id", "percent")

    with testing.views(app, now=BEGIN) as t:
        t.send("rates", rate(19, 0))
        t.send("offers", rate(5, 0), rate(7, 20), rate(7, 20))
        t.send("sales", sale(1, 10), sale(1, 10), sale(2, 30))
        t.send("sales", sale(2, 30), sale(3, 50))
        assert {row["id"]: row["percent"] for row in t.rows("taxed")} == {1: 19, 2: 19, 3: 19}
        t.send("rates", rate(16, 20))
        t.send("sales", sale(2, 30), sale(1, 10))
        assert {row["id"]: row["percent"] for row in t.rows("taxed")} == {1: 19, 2: 16, 3: 16}
        assert len(t.rows("taxed")) == 3
        pairs = {(row["id"], row["percent"]) for row in t.rows("offered")}
        assert pairs == {(1, 5), (1, 7), (2, 7), (3, None)}
        t.check("taxed")
        t.check("offered")


def test_what_cannot_be_meant_is_refused_in_one_line(spark):
    sales = spark.createDataFrame([], "id int, region string, at timestamp")
    rates = spark.createDataFrame([], "region string, percent int, valid_from timestamp")
    asked = {"on": "region", "as_of": "at", "valid": "valid_from"}
    wrong = [
        ({"missing": "lose"}, "missing= is wrong; got 'lose'"),
        ({"missing": "wait"}, "missing='wait' and wait= can only be used together"),
        ({"valid": ""}, "as_of= needs valid="),
        ({"as_of": ""}, "valid= needs as_of="),
        ({"valid": "since"}, "valid='since' is not a column of the table"),
        ({"valid": "percent"}, "valid='percent' is not a timestamp column of the table"),
        ({"as_of": "id"}, "time='id' is not a timestamp column of its input"),
        ({"final": "1 hour", "correct": "1 day"}, "final= cannot be combined with wait= or correct="),
        ({"correct": "soon"}, "correct"),
        ({"version": "id"}, "both inputs have a column 'id'"),
    ]
    for change, line in wrong:
        with pytest.raises(UsageError, match=re.escape(line)):
            hw.enrich(sales, rates, **asked | change)
    with pytest.raises(UsageError, match="both inputs have a column 'at'"):
        hw.enrich(sales, rates.withColumnRenamed("percent", "at"), **asked)
    with pytest.raises(UsageError, match="not a table of the application"):
        hw.history(rates)


def test_a_table_is_read_by_its_rows_or_by_its_changes_as_its_key_says(spark):
    sales = spark.createDataFrame([(1, "de", BEGIN)], "id int, region string, at timestamp")
    early = BEGIN - MINUTE
    changes = spark.createDataFrame(
        [("de", 19, early, False, 0, early), ("de", None, None, True, 1, BEGIN)],
        "region string, percent int, valid_from timestamp, _gone boolean, _offset bigint, _arrival timestamp",
    )
    rows = "region string, percent int, valid_from timestamp, _weight int"
    current = spark.createDataFrame([("de", 7, early, 1)], rows)
    asked = {"on": "region", "as_of": "at", "valid": "valid_from"}

    def percent(table: DataFrame) -> int | None:
        (row,) = hw.enrich(sales, table, **asked).rows.collect()
        return row.percent

    assert percent(current) == 7
    assert percent(table_changes.offer(current.select("*"), ("region", "valid_from"), lambda: changes)) == 7
    assert (
        percent(table_changes.offer(current.select("*"), ("region",), lambda: changes)) is None
    )  # deleted by then
    assert percent(changes.where("NOT _gone")) == 19
    with pytest.raises(UsageError, match="on= is not the key of the table"):
        percent(table_changes.offer(current.select("*"), ("percent",), lambda: changes))


@needs_tables
def test_the_examples_of_the_page_run(spark):
    app = hw.App("page")
    names: dict = {"hw": hw, "app": app, "F": F, "DataFrame": DataFrame, "datetime": datetime}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)  # noqa: S102  what readers of the page write
    orders = spark.createDataFrame(
        [(1, "de", 100, BEGIN), (2, "de", 50, BEGIN + MINUTE), (3, "fr", 1, BEGIN)],
        "order_id int, region string, cents int, at timestamp",
    )
    rates = spark.createDataFrame(
        [("de", 19, BEGIN, 1), ("de", 16, BEGIN + MINUTE, 1)],
        "region string, percent int, valid_from timestamp, _weight int",
    )
    regions = spark.createDataFrame([("de", "Germany", 1)], "region string, name string, _weight int")
    frames = {"orders": orders, "rates": rates, "regions": regions}
    graph = app.graph()
    made = {
        name: query.build(
            spark, view, {each: frames[stream] for each, stream in view.inputs.items()}, graph.inputs(view)
        )
        for name, view in graph.views.items()
    }
    assert [row.percent for row in made["taxed"].orderBy("order_id").collect()] == [19, 16, None]
    assert [row.tax for row in made["taxed_in_sql"].orderBy("order_id").collect()] == [1900, 800]
    assert made["history_in_sql"].count() == 2
    assert {row.region: row.tax for row in made["revenue"].collect()} == {"de": 1900 + 800, "fr": None}
    assert [row.name for row in made["with_names"].orderBy("order_id").collect()] == [
        "Germany",
        "Germany",
        None,
    ]
    assert {row.percent: row.valid_to is None for row in made["rate_history"].collect()} == {
        19: False,
        16: True,
    }
    trained = names["training"](orders.select("region", "at"), made["spending"])
    assert sorted((row.region, row.spent) for row in trained.collect()) == [
        ("de", 100),
        ("de", 150),
        ("fr", 1),
    ]


@needs_tables
@pytest.mark.timeout(1200)
def test_orders_are_taxed_by_the_rate_of_their_day():
    app = hw.App.load(str(EXAMPLES / "tax" / "app.py"))

    def order(n: int, minute: int) -> dict:
        return {"order_id": n, "region": "de", "cents": 1000, "at": BEGIN + minute * MINUTE}

    with testing.views(app, now=BEGIN) as t:
        t.send("orders", order(1, 0), order(2, 30))
        assert [row["tax_cents"] for row in t.rows("taxed")] == [None, None]
        t.send("rates", {"region": "de", "percent": "19", "valid_from": BEGIN})
        t.send("rates", {"region": "de", "percent": "16", "valid_from": BEGIN + 20 * MINUTE})
        assert [row["tax_cents"] for row in t.rows("taxed")] == [190, 160]
        assert [row["valid_to"] for row in t.rows("rate_history")] == [BEGIN + 20 * MINUTE, None]
        t.send("orders", order(3, 200))
        t.advance("2 hours")
        assert sum(row["cents"] for row in t.rows("tax_by_hour")) >= 350
        for view in ("taxed", "rate_history"):
            t.check(view)


@needs_tables
@pytest.mark.timeout(1200)
def test_a_model_is_swapped_by_a_record_and_training_sees_what_was_served():
    app = hw.App.load(str(EXAMPLES / "features" / "app.py"))
    module = sys.modules["headwater_app_app"]

    def visit(n: int, minute: int, spent: int) -> dict:
        return {"visit_id": n, "user": "ann", "spent": spent, "model": "m", "at": BEGIN + minute * MINUTE}

    with testing.views(app, now=BEGIN) as t:
        really = [("ann", 0, BEGIN + MINUTE)]
        for minute, cents in ((5, 500), (15, 100)):
            t.send("purchases", {"user": "ann", "cents": cents, "at": BEGIN + minute * MINUTE})
            newest = max(t.rows("spending"), key=lambda row: row["window"]["end"])
            really.append(("ann", newest["spent"], BEGIN + (minute + 1) * MINUTE))
        t.send("models", {"model": "m", "weight": 1.0, "bias": 0.0, "used_from": BEGIN})
        t.send("models", {"model": "m", "weight": 2.0, "bias": 1.0, "used_from": BEGIN + 10 * MINUTE})
        t.send("visits", visit(1, 1, 0), visit(2, 5, 500), visit(3, 12, 500), visit(4, 20, 500))
        assert [row["score"] for row in t.rows("scores")] == [0.0, 500.0, 1001.0, 1001.0]
        assert len({row["model_version"] for row in t.rows("scores")}) == 2
        t.check("scores")
        spark = SparkSession.active()
        features = spark.createDataFrame(
            [(row["user"], row["window"], row["spent"]) for row in t.batch("spending")],
            "user string, window struct<start: timestamp, end: timestamp>, spent long",
        )
        visits = [("ann", spent, BEGIN + n * MINUTE) for n, spent in ((1, 0), (5, 500), (12, 500), (20, 500))]
        served, agreeing = (
            spark.createDataFrame(rows, "user string, spent long, at timestamp") for rows in (visits, really)
        )
        assert [row.known_spent for row in module.training(served, features).orderBy("at").collect()] == [
            None,
            500,
            500,
            600,
        ]
        assert [row.at.minute for row in module.disagreeing(served, features).collect()] == [20]
        assert [spent for _, spent, _ in really] == [0, 500, 600]
        assert module.disagreeing(agreeing, features).collect() == []
