"""Joins of tables after selects and filters: from their changes where that says the same, and from their rows where it might not."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.config import Settings
from headwater.pipeline.build.prepare import planned
from headwater.pipeline.spark import catalyst

pytestmark = pytest.mark.spark


class Order(hw.Row):
    order_id: str
    customer_id: str | None
    cents: int


class Customer(hw.Row):
    customer_id: str
    region: str | None


class Person(hw.Row):
    id: str
    name: str
    boss: str | None = None


def shop() -> hw.App:
    app = hw.App("shop")
    app.table("orders", Order, key="order_id")
    app.table("customers", Customer, key="customer_id")
    app.table("people", Person, key="id")
    return app


def plan_of(spark, app: hw.App, view: str):
    settings = Settings(log="kafka://127.0.0.1:9", partitions=2)
    graph = app.graph()
    return planned(spark, settings, graph, graph.views[view], settings.partitions)


def operators(spark, app: hw.App, view: str) -> list[str]:
    """The operators in the plan of a view, in the order of the rows."""
    frame, _ = plan_of(spark, app, view)
    found = catalyst.observations(catalyst.plan(frame))
    return [name.removeprefix("state ") for name in reversed(found) if name.startswith("state ")]


def test_a_filter_and_a_select_before_a_join_are_applied_to_the_changes(spark):
    app = shop()

    @app.view(key="order_id")
    def parts(orders, customers):
        some = orders.where("cents != 0").selectExpr(
            "order_id", "upper(customer_id) AS who", "100 div cents AS part", "100 div coalesce(cents, 0) AS same"
        )  # fmt: skip
        return hw.join(some, customers.where("region != 'x'"), on={"who": "customer_id"})

    assert operators(spark, app, "parts") == ["route3", "join4"]
    with testing.views(app) as t:
        t.send("customers", Customer("A", "de"), Customer("B", "x"))
        t.send("orders", Order("1", "a", 20), Order("2", "b", 10), Order("3", "a", 0), Order("4", None, 1))
        assert {row["order_id"]: (row["part"], row["region"]) for row in t.rows("parts")} == {"1": (5, "de")}
        t.send(
            "customers", Customer("A", "x"), Customer("B", "fr")
        )  # one goes out of the filter, one comes in
        assert {row["order_id"]: row["region"] for row in t.rows("parts")} == {"2": "fr"}
        t.send("orders", Order("2", "b", 0), Order("3", "b", 50))
        assert {row["order_id"]: row["same"] for row in t.rows("parts")} == {"3": 2}
        t.delete("orders", "3", "9")  # of which nothing may be divided
        assert t.rows("parts") == []
        t.send("orders", Order("3", "b", 25))
        t.delete("customers", "B")
        assert t.rows("parts") == []
        t.send("customers", Customer("B", "us"))
        assert {row["order_id"]: row["region"] for row in t.rows("parts")} == {"3": "us"}


def test_what_a_filter_keeps_away_from_another_is_never_computed(spark):
    app = shop()

    @app.view(key="order_id")
    def small(orders, customers):
        some = orders.where("cents != 0").where("100 div cents > 1 AND 100 div cents < 50")
        return hw.join(some, customers, on="customer_id")

    assert operators(spark, app, "small") == ["route3", "join4"]
    with testing.views(app) as t:
        t.send("customers", Customer("a", "de"))
        t.send("orders", Order("1", "a", 0), Order("2", "a", 20), Order("3", "a", 1))
        t.delete("orders", "4")
        assert {row["order_id"] for row in t.rows("small")} == {"2"}


def test_columns_with_names_of_ours_are_joined_as_rows(spark):
    app = shop()

    @app.view(key="order_id")
    def named(orders, customers):
        return hw.join(orders.withColumn("_offset", F.lit(1)), customers, on="customer_id").drop("_offset")

    assert "join3" in operators(spark, app, "named")


def test_a_table_is_joined_with_itself_and_read_once(spark):
    app = shop()

    @app.view(key="id")
    def bosses(people):
        return hw.join(people, people.selectExpr("id AS boss", "name AS of"), on="boss", how="left")

    frame, _ = plan_of(spark, app, "bosses")
    assert catalyst.plan(frame).collectLeaves().size() == 1
    with testing.views(app) as t:
        t.send("people", Person("1", "ann"), Person("2", "bob", "1"), Person("3", "cy", "2"))
        assert {row["id"]: row["of"] for row in t.rows("bosses")} == {"1": None, "2": "ann", "3": "bob"}
        t.send("people", Person("1", "anna", "3"))
        t.delete("people", "2")
        assert {row["id"]: row["of"] for row in t.rows("bosses")} == {"1": "cy", "3": None}


@pytest.mark.parametrize(
    ("step", "single"),
    [
        (lambda rows: rows, True),
        (lambda rows: rows.selectExpr("region", "customer_id"), True),
        (lambda rows: rows.withColumnRenamed("customer_id", "who").withColumnRenamed("who", "customer_id"), False),
        (lambda rows: rows.selectExpr("upper(customer_id) AS customer_id", "region"), False),
    ],
    ids=["bare", "select", "renamed", "another"],
)  # fmt: skip
def test_a_table_that_is_joined_on_its_key_has_one_row_for_each(spark, step, single):
    app = shop()

    @app.view(key="order_id")
    def named(orders, customers):
        return hw.join(orders, step(customers), on="customer_id")

    _, site = plan_of(spark, app, "named")
    assert site.logics["join4"].single == (False, single)


@pytest.mark.parametrize(
    "step",
    [
        lambda rows: rows.withColumn("cents", F.udf(lambda cents: cents + 1, "long")("cents")),
        lambda rows: rows.withColumn("cents", F.explode(F.array("cents", "cents"))),
    ],
    ids=["python", "explode"],
)
def test_any_other_operation_makes_the_table_come_as_rows(spark, step):
    app = shop()

    @app.view(key="order_id")
    def named(orders, customers):
        return hw.join(step(orders), customers, on="customer_id")

    assert "join3" in operators(spark, app, "named")
