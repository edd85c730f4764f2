"""Two frames that are made of one: a union of them reads it once, and says the same."""

import pytest

import headwater as hw
from headwater.pipeline.batch.batch import rows as rows_of
from headwater.pipeline.operator import shared_scan
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import catalyst
from support.ordershop import orders

pytestmark = pytest.mark.spark


def reads(rows) -> int:
    return catalyst.plan(rows).collectLeaves().size()


def same(rows, plain) -> bool:
    return sorted(map(str, rows.collect())) == sorted(map(str, plain.collect()))


@pytest.fixture
def rows(spark):
    made = [(n, n % 3, n % 5 - 2, f"t{n}") for n in range(12)]
    return spark.createDataFrame(made, "id long, kind long, of long, name string")


def test_selects_and_filters_of_one_frame_are_one_read(rows):
    left = rows.where("kind = 0").select("id", "name")
    right = (
        rows.where("kind <= 1").selectExpr("id + 1 AS a", "name AS n").where("a > 2").selectExpr("a * 2", "n")
    )
    both = shared_scan.union(left, right)
    assert reads(both) == 1
    assert same(both, left.union(right))


def test_what_a_filter_leaves_out_is_not_computed_after_it(rows):
    left = rows.where("of != 0").selectExpr("10 div of AS part", "name")
    right = rows.where("of = 0").selectExpr("id", "name")
    both = shared_scan.union(left, right)
    assert reads(both) == 1
    assert same(both, left.union(right))


def test_a_filter_that_knows_no_answer_lets_nothing_through(rows):
    left = rows.where("nullif(kind, 1) = 0").select("id", "name")
    right = rows.select("id", "name")
    assert same(shared_scan.union(left, right), left.union(right))


def test_the_same_frame_twice_is_every_row_twice(rows):
    both = shared_scan.union(rows, rows)
    assert both.count() == 24
    assert both.columns == rows.columns


@pytest.mark.parametrize("step", ["id + rand()", "(SELECT max(id) FROM range(3)) + id"])
def test_what_may_say_something_else_each_time_is_read_twice(rows, step):
    left = rows.selectExpr(f"{step} AS id").selectExpr("CAST(id AS BIGINT) AS id")
    assert reads(shared_scan.union(left, rows.select("id"))) > 1


def test_other_frames_are_read_each(spark, rows):
    assert reads(shared_scan.union(rows.select("id"), spark.range(3))) == 2


def test_both_sides_of_a_join_read_their_one_topic_once(shop):
    app = shop.app()
    name = shop.name("both")

    @app.view(key=["order_id", "other"], name=name)
    def both(orders):
        large = orders.where("cents >= 20").selectExpr("order_id", "customer_id", "cents div 10 AS tens")
        small = orders.where("cents < 20").selectExpr("customer_id", "order_id AS other")
        return hw.join(large, small, on="customer_id")

    shop.make("orders")
    shop.send(orders(40, 0))
    runner = Runner(app, shop.settings)
    runner.once()
    progress = runner.views[name].query.recentProgress
    assert sum(each["numInputRows"] for each in progress) == 40
    assert shop.table(name) == rows_of(app, shop.settings)[name]
    assert shop.table(name)
