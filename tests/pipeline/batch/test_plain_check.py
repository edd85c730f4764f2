"""view check --plain: a batch by Spark's own operators finds what an operator's own batch cannot; and views that forget are compared exactly."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.client.client import producer
from headwater.declare import operators, substitute
from headwater.errors import UsageError
from headwater.pipeline.batch.plain.moment import At
from headwater.pipeline.batch.plain.query import operators as plain_operators
from headwater.pipeline.operator import event_rows
from headwater.pipeline.tables import join

pytestmark = pytest.mark.spark

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


class Customer(hw.Row):
    id: int
    name: str
    land: str | None = None


class Land(hw.Row):
    code: str
    title: str


class Rate(hw.Row):
    land: str
    percent: int
    since: datetime


class Price(hw.Row):
    item: str
    cents: int
    at: datetime


class Order(hw.Event):
    id: int
    customer: int | None
    land: str
    item: str
    cents: int
    at: datetime


class Click(hw.Event):
    id: int
    order: int
    at: datetime


def at(minute: float) -> datetime:
    return BEGIN + timedelta(minutes=minute)


SQL = {
    "named": ("id", "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.id"),
    "in_lands": (
        "id",
        "SELECT c.id, upper(c.name) AS name, l.title FROM customers c JOIN lands l ON c.land = l.code WHERE c.name <> 'eve'",
    ),
    "both_ways": (
        ["id", "code"],
        "SELECT coalesce(c.id, 0) AS id, coalesce(l.code, '-') AS code FROM customers c FULL JOIN lands l ON c.land = l.code",
    ),
    "per_land": (
        "land",
        "SELECT land, count(*) AS n, min(name) AS first, max(id) AS last FROM customers GROUP BY land HAVING count(*) > 1",
    ),
    "names": ("name", "SELECT DISTINCT name FROM customers"),
    "taxed": (
        "id",
        "SELECT o.id, o.cents * r.percent AS tax, r.version FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.land = r.land",
    ),
    "priced": (
        "id",
        "SELECT o.id, prices.cents AS price FROM orders o LEFT JOIN prices FOR SYSTEM_TIME AS OF o.at ON o.item = prices.item",
    ),
    "visits": (
        ["customer", "window"],
        "SELECT customer, window, n, opening FROM sessions(orders, key => 'customer', time => 'at', gap => '5 minutes', n => 'count(*)', opening => 'first(item)')",
    ),
}


def declared() -> hw.App:
    app = hw.App("plain")
    app.table("customers", Customer, key="id")
    app.table("lands", Land, key="code")
    app.table("rates", Rate, key=["land", "since"])
    app.table("prices", Price, key="item", time="at")
    app.stream("orders", Order, key="id", time="at", delay="5 minutes")
    app.stream("clicks", Click, key="id", time="at", delay="5 minutes")
    for name, (key, text) in SQL.items():
        app.sql(name, text, key=key)

    @app.view(key="land")
    def totals(orders, customers):
        people = customers.select("name", customers.id.alias("customer"))
        both = hw.join(orders, people, on="customer", how="left")
        return hw.group(
            both,
            by="land",
            n=F.count("*"),
            cents=F.sum("cents"),
            mean=F.avg("cents"),
            newest=hw.newest_of("id", order="at", limit=2),
        )

    @app.view(key=["window", "land"])
    def windows(orders):
        from pyspark.sql.functions import count, window

        return orders.groupBy(window("at", "10 minutes"), "land").agg(count("*").alias("n"))

    @app.view(key=["customer", "window"])
    def lately(orders):
        return hw.sliding(
            orders, "customer", time="at", size="10 minutes", cents=F.sum("cents"), top=F.max("item")
        )

    @app.view(key=["id", "click"])
    def clicked(orders, clicks):
        once = hw.distinct(clicks, "id", time="at", within="10 minutes")
        right = once.selectExpr("id AS click", "order", "at AS clicked_at")
        return hw.match(
            orders, right, {"id": "order"}, time=("at", "clicked_at"), after="5 minutes", how="left"
        ).fillna(0, ["click"])

    @app.view(key="id")
    def ignored(orders, clicks):
        return hw.unmatched(
            orders, clicks.withColumnRenamed("id", "click"), {"id": "order"}, time="at", after="5 minutes"
        )

    @app.view(key="customer")
    def last_order(orders):
        return hw.latest(orders, "customer", time="at")

    @app.view(key=["item", "valid_from"])
    def price_list(prices):
        return hw.versions(prices, "item", time="at")

    @app.view(key="name")
    def popular(named):
        return hw.group(named.where("name IS NOT NULL"), by="name", n=F.count("*"))

    return app


def history(t: testing.Views, view: str) -> None:
    """Rows that come, change and go, in several batches; orders that are late."""
    t.send(
        "customers",
        *(Customer(n, ("ann", "bob", "eve")[n % 3], ("de", "fr", None)[n % 3]) for n in range(1, 7)),
    )
    t.send("lands", Land("de", "Germany"), Land("it", "Italy"))
    t.send("rates", Rate("de", 19, at(-100)), Rate("de", 16, at(4)), Rate("fr", 20, at(2)))
    t.send("prices", Price("tea", 100, at(-50)), Price("jam", 300, at(1)))
    t.send(
        "orders",
        *(
            Order(n, n % 7 or None, ("de", "fr")[n % 2], ("tea", "jam", "oil")[n % 3], 10 * n, at(n))
            for n in range(1, 9)
        ),
    )
    t.send("clicks", Click(1, 1, at(2)), Click(2, 1, at(3)), Click(3, 2, at(30)))
    t.rows(view)
    t.send("customers", Customer(1, "bob", "it"), Customer(9, "zoe", "de"))
    t.delete("customers", 2, 3)
    t.delete("lands", "de")
    t.send("prices", Price("tea", 120, at(6)))
    t.delete("prices", "jam")
    t.delete("rates", ("de", at(4)))
    t.send("orders", Order(20, 1, "de", "tea", 5, at(30)))
    t.send("clicks", Click(4, 4, at(6)), Click(5, 20, at(31)), Click(5, 20, at(31)))
    t.rows(view)
    t.send("orders", Order(21, 1, "de", "tea", 7, at(3)), Order(22, 4, "fr", "jam", 7, at(31)))
    t.send("lands", Land("de", "Deutschland"))
    t.send("rates", Rate("fr", 21, at(30.5)))
    t.rows(view)


GROUPS = {
    "tables": ["in_lands", "both_ways", "per_land", "names", "price_list"],
    "events and tables": ["named", "popular", "taxed", "priced", "totals"],
    "event time": ["visits", "windows", "lately", "clicked", "ignored", "last_order"],
}


@pytest.mark.parametrize("name", GROUPS)
def test_views_over_a_history_with_updates_deletes_and_late_records_equal_a_plain_batch(spark, name):
    views = GROUPS[name]
    with testing.views(declared(), *views) as t:
        history(t, views[0])
        if name == "event time":
            t.watermark(at(40))
            assert t.rows("ignored")
            assert [event.id for event in t.late("windows")] == [21]
        for view in views:
            t.check(view, plain=True)


def test_every_operator_has_a_plain_one_or_says_that_there_is_none():
    assert set(plain_operators(At(view="v"))) == substitute.OPERATORS
    assert set(operators.__all__) - substitute.OPERATORS == {
        "calendar",
        "history",
        "newest_of",
    }  # Spark's own as they are


def inner_for_left(real):
    def joined_wrongly(left, right, on, how):
        return real(left, right, on, "inner" if how == "left" else how)

    return joined_wrongly


def shorter_gap(real):
    def length_us(operator, name, text):
        return real(operator, name, text) - (name == "gap")

    return length_us


def test_a_defect_of_an_operator_is_found_by_plain_operators_and_not_by_its_own_batch(spark, monkeypatch):
    monkeypatch.setattr(join, "join", inner_for_left(join.join))
    monkeypatch.setattr(event_rows, "length_us", shorter_gap(event_rows.length_us))
    with testing.views(declared(), "named", "visits") as t:
        t.send("customers", Customer(1, "ann"))
        t.send("orders", Order(1, 1, "de", "tea", 1, at(0)), Order(2, 1, "de", "tea", 1, at(5)))
        t.send("orders", Order(3, 9, "de", "tea", 1, at(2)))
        for view in ("named", "visits"):
            t.check(view)
        with pytest.raises(AssertionError, match=r"1 of 2 rows differ from a plain batch(?s:.*)first is 3"):
            t.check("named", plain=True)
        with pytest.raises(AssertionError, match=r"3 of 3 rows differ from a plain batch"):
            t.check("visits", plain=True)


def test_a_view_that_plain_operators_cannot_compute_is_refused_with_the_reason(spark):
    app = hw.App("impossible")
    app.table("lands", Land, key="code")
    app.stream("orders", Order, key="id", time="at", delay="5 minutes")

    @app.view(key="id")
    def now(orders, lands):
        return hw.enrich(orders, lands, {"land": "code"})

    with testing.views(app) as t:
        t.send("orders", Order(1, 1, "de", "tea", 1, at(0)))
        t.check("now")
        wanted = r"'now' cannot be computed by plain operators: it uses enrich without as_of"
        with pytest.raises(UsageError, match=wanted) as refused:
            t.check("now", plain=True)
        assert refused.value.exit_code == 2


def test_of_a_view_that_forgets_a_row_is_missed_that_had_not_to_go_yet(spark):
    app = hw.App("forgets")
    app.stream("orders", Order, key="id", time="at", delay="5 minutes")
    app.sql("seen", "SELECT id, cents FROM orders", key="id", forget="1 hour")
    with testing.views(app, now=BEGIN) as t:
        for number in (1, 2):
            t.send("orders", Order(number, 1, "de", "tea", 10, at(number)))
            t.rows("seen")
            t.advance("40 minutes")
        assert [row["id"] for row in t.rows("seen")] == [2]
        t.check("seen")
        t.check("seen", plain=True)

        out = producer(t._settings.access)
        out.produce("seen", None, b"2", 0)
        assert out.flush(30) == 0
        t.send("orders", Order(3, 1, "de", "tea", 10, at(3)))
        assert [row["id"] for row in t.rows("seen")] == [3]
        with pytest.raises(AssertionError, match=r"1 of 1 rows differ(?s:.*)first is 2(?s:.*)view   -"):
            t.check("seen")
