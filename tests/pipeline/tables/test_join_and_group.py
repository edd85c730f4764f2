"""Joins and groups through Spark: in batch beside Spark's own, as a stream with restarts, and what is refused."""

import random

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.errors import UsageError
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.run.runner import Runner
from support.ordershop import orders

pytestmark = pytest.mark.spark


def changes(table: list[Row], choose: random.Random) -> list[Row]:
    """A table as inserted and retracted rows: some of them more than once, some that are no longer there."""
    out = [Row(**row.asDict(), _weight=1) for row in table]
    for row in choose.sample(table, len(table) // 2):
        out += [Row(**row.asDict(), _weight=weight) for weight in (1, -1)]
    return choose.sample(out, len(out))


def people(choose: random.Random) -> list[Row]:
    return [Row(person=n if n % 7 else None, name=choose.choice(["ann", "bob", None]), x=choose.random()) for n in range(60)]  # fmt: skip


def visits(choose: random.Random) -> list[Row]:
    return [Row(person=choose.choice([None, *range(40, 80)]), page=f"/{n}") for n in range(100)]


def same(one, two) -> bool:
    return sorted(map(repr, one)) == sorted(map(repr, two))


@pytest.mark.parametrize("seed", range(2))
def test_in_batch_it_is_what_spark_says_of_the_tables(spark, seed):
    choose = random.Random(seed)
    left, right = people(choose), visits(choose)
    plain = spark.createDataFrame(left), spark.createDataFrame(right)
    weighted = (
        spark.createDataFrame(changes(left, choose)),
        spark.createDataFrame(changes(right, choose)),
    )
    for how in ("inner", "left", "right", "full"):
        found = hw.join(*weighted, on="person", how=how).rows
        columns = ["person", "name", "x", "page"]
        assert found.columns == [*columns, "_weight"]
        expected = plain[0].join(plain[1], on="person", how=how).select(*columns)
        out = [row for row in found.collect() for _ in range(row["_weight"])]
        assert same([row[:-1] for row in out], [tuple(row) for row in expected.collect()])

    grouped = hw.group(
        weighted[0],
        "name",
        n=F.count("*"),
        some=F.count("person"),
        total=F.sum("person"),
        mean=F.avg("person"),
        least=F.min("x"),
        most=F.max("x"),
        product=F.sum(F.col("person") * F.col("person")),
        lengths=F.max(F.length("name")),
        positive=F.expr("count(*) FILTER (WHERE x > 0)"),
    )
    plain[0].createOrReplaceTempView("people")
    wanted = spark.sql(
        "SELECT name, count(*), count(person), sum(person), avg(person), min(x), max(x), sum(person * person), max(length(name)), "
        "count(*) FILTER (WHERE x > 0) FROM people GROUP BY name"
    )
    assert same([tuple(row)[:-1] for row in grouped.rows.collect()], [tuple(row) for row in wanted.collect()])
    by_name = hw.group(
        weighted[0], "name", newest=hw.newest_of(["x", "person"], order="x", limit=2)
    ).rows.collect()
    for row in by_name:
        best = sorted((each for each in left if each["name"] == row["name"]), key=lambda each: -each["x"])[:2]
        assert [(each["x"], each["person"]) for each in row["newest"]] == [
            (e["x"], e["person"]) for e in best
        ]


def test_a_join_of_streams_continues_after_a_restart(shop):
    app, both = shop.app(), shop.name("both")

    @app.view(key=["order_id", "other"], name=both)
    def pairs(orders):
        others = orders.selectExpr("order_id AS other", "customer_id", "country AS to")
        return hw.join(orders.select("order_id", "customer_id"), others, on="customer_id")

    shop.make("orders")
    for start in (0, 20, 30):
        shop.send(orders(10, start))
        Runner(app, shop.settings).once()
    assert len(shop.table(both)) > 30
    assert shop.table(both) == rows(app, shop.settings)[both]


def test_what_cannot_be_joined_or_grouped_is_refused(spark):
    one = spark.createDataFrame([Row(k=1, a=1, b=[1])])
    two = spark.createDataFrame([Row(k=1, a=2)])
    for wrong, message in (
        (lambda: hw.join(one, two, on="k"), "a column of the same name; got a"),
        (lambda: hw.join(one, two, on="a", how="outer"), "join: unknown how=; got 'outer'"),
        (lambda: hw.join(one, two, on="missing"), "on='missing' is not a column of the left input"),
        (lambda: hw.group(one, "k", k=F.count("*")), "an aggregate cannot be called 'k'"),
        (
            lambda: hw.group(one, "k", n=F.sum("b")),
            "group: n does not fit the columns of its input; got .*DATATYPE_MISMATCH",
        ),
        (lambda: hw.group(one, "k", n=F.min("b")), "min cannot be applied to column 'b'; got array<bigint>"),
        (lambda: hw.group(one, "k", n="sum(a)"), r"n is not an aggregate; got 'sum\(a\)'; expected a Column"),
        (lambda: hw.group(one, "k", n=F.sum("mony")), "n does not fit the columns .*; got .*mony"),
        (lambda: hw.group(one, "k", n=F.col("a")), "group: n is not an aggregate; got .*expected a Column"),
        (
            lambda: hw.group(one, "k", n=F.sum("a") + 1),
            r"n is an expression around aggregates.*in a select\(\)",
        ),
        (lambda: hw.group(one, "k", n=F.count_distinct("a")), "n counts distinct values"),
        (
            lambda: hw.group(one, "k", n=F.stddev("a")),
            "that Headwater does not support.*expected avg, count",
        ),
        (lambda: hw.group(one, "k", n=F.first("a")), "depends on the order of arrival"),
        (
            lambda: hw.group(one, "k", n=hw.newest_of("b", order="a", limit=2)),
            "the values of 'b' have no order",
        ),
        (
            lambda: hw.group(one, "k", n=hw.newest_of("a", order="a", limit=0)),
            "hw.newest_of: limit= is wrong; got 0",
        ),
        (lambda: hw.group(one, "nothing", n=F.count("*")), "the key 'nothing' is not a column of its input"),
    ):
        with pytest.raises(UsageError, match=message):
            wrong()
