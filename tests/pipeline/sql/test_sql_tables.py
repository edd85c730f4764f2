"""SQL over tables: the same rows as Spark's own SQL over what the tables hold, and as the operators in Python; and what is refused."""

import random
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.declare.spec import Stream, View
from headwater.declare.table import frame_of
from headwater.errors import UsageError
from headwater.pipeline.build import query
from headwater.pipeline.operator import weights

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs"
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEYS = {
    "orders": ("id",),
    "customers": ("id",),
    "lands": ("code",),
    "rates": ("land", "valid_from"),
    "prices": ("land",),
}
KINDS = {
    "orders": "id BIGINT, customer INT, cents INT, price DECIMAL(10, 2), kilos DOUBLE",
    "customers": "id BIGINT, name STRING, land STRING",
    "lands": "code STRING, name STRING",
    "rates": "land STRING, percent INT, valid_from TIMESTAMP",
    "prices": "land STRING, percent INT",
    "sales": "id BIGINT, land STRING, at TIMESTAMP",
}


def contents(seed: int) -> dict[str, list[Row]]:
    choose = random.Random(seed)
    customers, lands = [*range(12), None], ["de", "fr", "xx", None]
    return {
        "orders": [
            Row(
                n,
                choose.choice(customers),
                choose.choice([None, *range(50)]),
                choose.choice([None, Decimal("1.25"), Decimal(2)]),
                n / 8,
            )
            for n in range(40)
        ],
        "customers": [Row(n, choose.choice(["ann", "bob"]), choose.choice(lands)) for n in range(3, 15)],
        "lands": [Row("de", "Germany"), Row("fr", "France"), Row("it", "Italy")],
    }


def changes(rows: list[Row], choose: random.Random) -> list[Row]:
    """Rows of a table as they come and go: some were there before and are gone, some have come twice and gone once."""
    out = [Row(*row, 1) for row in rows]
    for row in choose.sample(rows, len(rows) // 2):
        out += [Row(*row, weight) for weight in (1, -1)]
    return choose.sample(out, len(out))


def declared(text: str, names: list[str]) -> tuple[View, dict[str, Stream]]:
    streams = {
        name: Stream(name, hw.Event, KEYS.get(name, ("id",)), "", "0 seconds", table=name in KEYS)
        for name in names
    }
    return View("v", ("k",), {name: name for name in names}, query=text), streams


def live(text: str, frames: dict[str, DataFrame]) -> DataFrame:
    view, streams = declared(text, list(frames))
    return weights.carry_weights(
        "view", query.build(next(iter(frames.values())).sparkSession, view, frames, streams)
    )


def rows(made: DataFrame) -> list[str]:
    """Rows as often as they are there. What comes and goes again has left a weight of 0 altogether."""
    frame = frame_of(made)
    shown = [f"c{n}" for n in range(len(frame.columns) - 1)]
    found = frame.toDF(*shown, "_weight").groupBy(*shown).agg(F.sum("_weight").alias("_weight")).collect()
    assert all(row["_weight"] >= 0 for row in found)
    return sorted(str(tuple(row)[:-1]) for row in found for _ in range(row["_weight"]))


SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}
"""What is good for few rows."""


@pytest.fixture(autouse=True)
def small(spark):
    before = {name: spark.conf.get(name) for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


QUERIES = {
    "a select": "SELECT * FROM orders WHERE cents > 20",
    "inner, of other types": "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id",
    "all columns": "SELECT * FROM orders o JOIN customers c ON o.customer = c.id",
    "left": "SELECT o.*, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer AND c.land = 'de' WHERE o.cents < 40",
    "right": "SELECT o.id, c.id AS customer FROM orders o RIGHT JOIN customers c ON c.id = o.customer AND o.cents > 10",
    "full": "SELECT o.id, o.customer, c.id AS other, c.land FROM orders o FULL OUTER JOIN customers c ON c.id = o.customer",
    "using": "SELECT * FROM (SELECT id, name FROM customers) FULL JOIN (SELECT id, cents FROM orders) USING (id)",
    "a chain": """SELECT o.id, upper(c.name) AS who, coalesce(l.name, 'nowhere') AS land
        FROM orders o JOIN customers c ON o.customer = c.id LEFT JOIN lands l ON c.land = l.code WHERE o.cents + o.id > 20 AND c.name <> 'eve'""",
    "commas": "SELECT o.id, l.name FROM orders o, customers c, lands l WHERE o.customer = c.id AND c.land = l.code AND o.cents < c.id * 4",
    "expressions on both sides": "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer + 1 = c.id - 1 AND o.cents > c.id",
    "a column twice": "SELECT o.id, c.id AS c FROM orders o JOIN customers c ON o.customer = c.id AND o.customer = length(c.name) + 2",
    "groups": """SELECT customer, sum(cents) AS s, count(*) AS n, count(cents) AS known, avg(cents), min(kilos), max(price), sum(price), avg(price)
        FROM orders GROUP BY customer""",
    "groups of expressions": """SELECT id % 3 AS third, sum(cents * 2) + 1 AS s, avg(kilos) AS mean, count(*) FILTER (WHERE cents > 20) AS many
        FROM orders GROUP BY id % 3 HAVING count(*) > 5 AND max(cents) > 3""",
    "groups of a join": """SELECT l.name, count(*) AS n, sum(o.cents) AS cents FROM orders o JOIN customers c ON o.customer = c.id
        LEFT JOIN lands l ON c.land = l.code GROUP BY l.name""",
    "groups without aggregates": "SELECT land FROM customers GROUP BY land",
    "groups of groups": "SELECT n, count(*) AS customers FROM (SELECT customer, count(*) AS n FROM orders GROUP BY customer) GROUP BY n",
    "a join of groups": """WITH totals AS (SELECT customer, sum(cents) AS cents FROM orders GROUP BY customer)
        SELECT c.name, t.cents FROM customers c LEFT JOIN totals t ON t.customer = c.id""",
    "distinct": "SELECT DISTINCT name, land FROM customers",
    "union all": "SELECT id FROM customers UNION ALL SELECT customer FROM orders",
    "union": "SELECT CAST(id AS STRING) AS id FROM customers UNION SELECT code FROM lands",
    "words of a row": "SELECT o.id, letter FROM (SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id) o LATERAL VIEW explode(split(name, '')) AS letter",
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_over_tables_says_what_spark_says_of_what_they_hold(spark, name):
    text = QUERIES[name]
    held, choose = contents(len(name)), random.Random(len(name))
    kinds = {table: f"{KINDS[table]}, _weight INT" for table in held}
    frames = {table: spark.createDataFrame(changes(held[table], choose), kinds[table]) for table in held}
    found = live(text, frames)
    for table, plain in held.items():
        spark.createDataFrame(plain, KINDS[table]).createOrReplaceTempView(table)
    wanted = spark.sql(text)
    assert [each for each in found.columns if each != "_weight"] == wanted.columns
    assert [each.dataType for each in found.schema.fields[:-1]] == [
        each.dataType for each in wanted.schema.fields
    ]
    assert rows(found) == rows(wanted.withColumn("_weight", F.lit(1)))


def past(spark: SparkSession) -> dict[str, DataFrame]:
    sales = [(1, "de", BEGIN), (2, "de", BEGIN + 30 * MINUTE), (3, "fr", BEGIN), (4, None, BEGIN)]
    rates = [("de", 19, BEGIN - MINUTE, 1), ("de", 16, BEGIN + 20 * MINUTE, 1)]
    return {
        "sales": spark.createDataFrame(sales, KINDS["sales"]),
        "rates": spark.createDataFrame(rates, f"{KINDS['rates']}, _weight INT"),
    }


@pytest.mark.parametrize("how", ["JOIN", "LEFT JOIN"])
@pytest.mark.parametrize("written", ["FOR SYSTEM_TIME AS OF s.at AS r", "TIMESTAMP AS OF s.at r"])
def test_a_table_as_of_the_time_of_an_event_is_enrich(spark, how, written):
    frames = past(spark)
    text = f"SELECT s.id, s.land, r.percent * 2 AS twice, r.version FROM sales s {how} rates {written} ON s.land = r.land"
    missing = "keep" if how == "LEFT JOIN" else "drop"
    wanted = hw.enrich(
        frames["sales"], frames["rates"], on="land", as_of="at", valid="valid_from", missing=missing
    )
    found = live(text, frames)
    assert rows(found) == rows(wanted.selectExpr("id", "land", "percent * 2", "version", "_weight"))
    assert len(rows(found)) == (4 if how == "LEFT JOIN" else 2)


def test_filters_and_groups_may_follow_a_table_as_of_a_time(spark):
    text = """SELECT r.percent, count(*) AS n FROM sales JOIN rates FOR SYSTEM_TIME AS OF sales.at AS r
        ON sales.land = r.land AND r.percent < 19 WHERE sales.id > 0 GROUP BY r.percent"""
    assert rows(live(text, past(spark))) == ["(16, 1)"]
    unnamed = "SELECT * FROM sales s JOIN rates FOR SYSTEM_TIME AS OF s.at ON s.land = rates.land"
    assert live(unnamed, past(spark)).columns == [
        *("id", "land", "at", "land", "percent", "valid_from", "version", "_weight")
    ]


def test_versions_and_enrich_are_functions_of_tables(spark):
    frames = past(spark)
    text = (
        "SELECT percent, valid_to FROM versions(rates, key => 'land', time => 'valid_from') WHERE percent > 1"
    )
    wanted = hw.versions(frames["rates"], "land", time="valid_from")
    assert rows(live(text, frames)) == rows(wanted.select("percent", "valid_to", "_weight"))
    newest = (
        "SELECT id, percent FROM enrich(sales, rates, on => 'land', as_of => 'at', valid => 'valid_from')"
    )
    assert len(rows(live(newest, frames))) == 4


REFUSED = {
    "SELECT o.id FROM orders o JOIN customers c ON o.id < c.id": "a JOIN without an equality of both sides.*got .*<.*ON a.x = b.y",
    "SELECT o.id FROM orders o CROSS JOIN customers c": "a JOIN without an equality of both sides.*got no condition",
    "SELECT o.id FROM orders o LEFT JOIN customers c ON o.customer = c.id AND o.cents > 3": "this condition in a LEFT JOIN.*cents",
    "SELECT o.id FROM orders o LEFT SEMI JOIN customers c ON o.customer = c.id": "LEFT SEMI JOIN over a table",
    "SELECT id FROM orders WHERE customer IN (SELECT id FROM customers)": "a subquery in an expression.*use JOIN",
    "SELECT id, (SELECT max(id) FROM customers) AS m FROM orders": "a subquery in an expression",
    "SELECT id FROM sales WHERE land IN (SELECT code FROM lands)": "a subquery in an expression",
    "SELECT sum(cents) AS s FROM orders": "an aggregate without GROUP BY.*the view's key",
    "SELECT customer, count(DISTINCT cents) AS n FROM orders GROUP BY customer": "DISTINCT values.*groups by them first",
    "SELECT customer, collect_list(id) AS ids FROM orders GROUP BY customer": "this aggregate.*collect_list.*newest_of",
    "SELECT customer, id, sum(cents) AS s FROM orders GROUP BY ROLLUP (customer, id)": "ROLLUP",
    "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id) AS n FROM orders": "a window function.*newest_of",
    "SELECT id FROM orders ORDER BY id": "ORDER BY over a table.*no order",
    "SELECT id FROM orders LIMIT 3": "LIMIT over a table",
    "SELECT id FROM orders EXCEPT SELECT id FROM customers": "EXCEPT over a table.*LEFT JOIN",
    "SELECT id, rand() AS r FROM orders": "whose value is not constant.*rand",
    "SELECT s.id FROM sales s RIGHT JOIN rates FOR SYSTEM_TIME AS OF s.at r ON s.land = r.land": "RIGHT OUTER JOIN … AS OF",
    "SELECT s.id FROM sales s JOIN rates FOR SYSTEM_TIME AS OF s.at + INTERVAL 1 DAY r ON s.land = r.land": "AS OF takes the event time of a stream.*INTERVAL",
    "SELECT s.id FROM sales s LEFT JOIN rates FOR SYSTEM_TIME AS OF s.at r ON s.land = r.land AND r.percent > 1": "this condition in a LEFT JOIN",
    "SELECT s.id FROM sales s JOIN rates FOR SYSTEM_TIME AS OF s.at r ON s.land = upper(r.land)": "an expression of the table",
    "SELECT s.id FROM sales s JOIN rates FOR SYSTEM_TIME AS OF s.at r USING (land)": "right side of a JOIN with ON.*got rates",
    "SELECT s.id FROM sales s JOIN rates VERSION AS OF 3 r ON s.land = r.land": "AS OF takes the event time.*VERSION",
    "SELECT s.id FROM sales s JOIN sales FOR SYSTEM_TIME AS OF s.at r ON s.land = r.land": "AS OF needs a table.*got sales",
    "SELECT s.id FROM sales s JOIN prices FOR SYSTEM_TIME AS OF s.at r ON s.land = r.land": "'prices' does not say from when a row is valid.*FROM enrich",
    "SELECT r.land FROM rates FOR SYSTEM_TIME AS OF '2026-01-01' r": "AS OF takes the event time.*got rates FOR",
    "SELECT r.land FROM rates FOR SYSTEM_TIME AS OF r.at r": "AS OF is only possible on the right side of a JOIN",
    "SELECT s.id FROM sales s JOIN rates FOR SYSTEM_TIME AS OF r.valid_from r ON s.land = r.land": "AS OF an expression.*event time",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_follow_the_changes_of_a_table_is_refused_in_one_line(spark, text):
    frames = {
        name: spark.createDataFrame([], kind if name == "sales" else f"{kind}, _weight INT")
        for name, kind in KINDS.items()
    }
    with pytest.raises(UsageError, match=REFUSED[text]) as refused:
        live(text, frames)
    assert str(refused.value).startswith("view 'v': ")
    assert "\n" not in str(refused.value)


def page(name: str, app: hw.App) -> dict:
    known = {"hw": hw, "app": app, "F": F, "DataFrame": DataFrame, "datetime": datetime}
    for block in re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL):
        exec(block, known)  # noqa: S102  what readers of the page write
    return known


@pytest.mark.timeout(1200)
def test_views_in_sql_follow_the_tables_as_those_in_python_do(spark):
    app = hw.App("shop")
    found = page("joins.md", app)
    customer, order = found["Customer"], found["Order"]
    pairs = {"orders_with_names": "named_in_sql", "customers_now": "now_in_sql"}

    def same(t: testing.Views) -> None:
        for python, sql in pairs.items():
            of_sql = t.rows(sql)
            assert [{name: row[name] for name in of_sql[0]} for row in t.rows(python)] == of_sql

    with testing.views(app, *pairs, *pairs.values(), "by_name") as t:
        t.send("orders", order(1, 5, 100), order(2, 6, 250), order(3, 5, 30))
        t.send("customers", customer(5, "ann"))
        same(t)
        assert {row["name"]: row["cents"] for row in t.rows("by_name")} == {"ann": 130}
        t.send("customers", customer(6, "ann"), customer(5, "bob"))
        t.send("orders", order(3, 6, 40))
        t.delete("orders", 1)
        same(t)
        assert {row["name"]: row["cents"] for row in t.rows("by_name")} == {"ann": 290}
        for view in (*pairs.values(), "by_name"):
            t.check(view)


def test_a_query_is_the_same_plan_every_time(spark):
    """Names of columns in a plan are what its state goes by: they depend on nothing but the query."""
    text = QUERIES["a chain"]
    kinds = {name: f"{KINDS[name]}, _weight INT" for name in ("orders", "customers", "lands")}
    frames = {name: spark.createDataFrame([], kind) for name, kind in kinds.items()}

    def operators() -> list[str]:
        plan = live(text, frames)._jdf.queryExecution().analyzed().toString()
        return [re.sub(r"#\d+L?", "", line) for line in plan.splitlines() if "MapInArrow" in line]

    assert operators() == operators() != []
