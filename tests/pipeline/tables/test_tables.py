"""Tables and views of views through Spark: as a stream, with restarts, and in batch."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.client.client import Client
from headwater.follow.follower import Follower
from headwater.follow.results import results
from headwater.operate.views.reset import reset
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.operator.weights import carry_weights
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs"
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


class User(hw.Row):
    id: int
    name: str
    country: str
    tags: list[str] | None = None
    price: Decimal | None = None
    since: datetime | None = None


def declared() -> hw.App:
    app = hw.App("people")
    app.table("users", User, key="id")

    @app.view(key="id")
    def everybody(users):
        return users

    @app.view(key="id")
    def germans(users):
        return users.where("country = 'de'").select("id", F.upper("name").alias("name"), "price")

    app.sql("french", "SELECT id, concat(name, '!') AS name FROM users WHERE country = 'fr'", key="id")
    return app


def names(t: testing.Views, view: str) -> dict[int, str]:
    return {row["id"]: row["name"] for row in t.rows(view)}


def test_inserts_updates_and_deletes_move_a_view(spark):
    with testing.views(declared()) as t:
        assert t.rows("germans") == t.rows("french") == []
        t.delete("users", 9)  # a key never seen, in a table that is empty
        t.send("users", User(1, "ann", "de", ["a"], Decimal("1.5")), User(2, "bob", "fr"))
        assert names(t, "germans") == {1: "ANN"}
        assert names(t, "french") == {2: "bob!"}
        assert t.rows("germans")[0]["price"] == Decimal("1.5")

        t.send("users", User(1, "ann", "fr"), User(2, "bob", "fr"))  # one moves, the other is repeated
        assert names(t, "germans") == {}
        assert names(t, "french") == {1: "ann!", 2: "bob!"}

        t.send("users", User(3, "cy", "de"), User(3, "cyd", "de"))  # twice in a batch
        t.delete("users", 2, 4)
        t.send("users", User(4, "dan", "de"))  # delete before insert
        assert names(t, "germans") == {3: "CYD", 4: "DAN"}
        assert names(t, "french") == {1: "ann!"}

        t.send("users", b'{"id": "one"}', User(1, "anna", "fr"))
        assert t.invalid("users") == [b'{"id": "one"}']
        t.send("users", User(3, "cyd", "fr"))
        t.delete("users", 3)
        assert names(t, "everybody") == {1: "anna", 4: "dan"}
        for view in ("everybody", "germans", "french"):
            assert t.rows(view) == t.batch(view)
            t.check(view)


def test_what_a_table_keeps_outlives_restarts(shop):
    topic, seen = shop.name("users"), shop.name("seen")
    app = hw.App("people")
    users = app.table("users", User, key=["country", "id"], topic=topic)
    app.sql(seen, "SELECT country, id, name FROM users WHERE name <> 'hidden'", key=["country", "id"])
    steps = [
        [],  # the table is filled later
        [User(1, "ann", "de"), User(1, "bob", "fr")],
        [User(1, "hidden", "de"), None],
        [User(2, "cy", "de"), User(1, "ann", "de")],
    ]
    with hw.Writer(shop.log) as writer:
        for step in steps:
            Runner(app, shop.settings).once()
            for event in step:
                writer.send(users, [event], key='["fr",1]' if event is None else None)
            Runner(app, shop.settings).once()
            assert shop.table(seen) == rows(app, shop.settings)[seen]
    assert {row["name"] for row in shop.table(seen).values()} == {"ann", "cy"}
    Runner(app, shop.settings).once()
    assert len(shop.records(seen)) == 6  # each change once: two in, two out, two in


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda users: users.groupBy("country").count(),
            r"a table has no groupBy\(\), since its rows are retracted.*; expected group\(by, name=F.sum",
        ),
        (lambda users: users.select("country").dropDuplicates(), r"no dropDuplicates.*expected distinct\(\)"),
        (lambda users: users.select("country").nme, "a table has no column 'nme'; expected country"),
        (
            lambda users: users.rows.groupBy("country").count(),
            "applies groupBy to a table.*hw.group",
        ),
        (
            lambda users: users.rows.union(users),
            r"a method of a DataFrame takes no table; expected .*table.union",
        ),
        (
            lambda users: hw.count(users.select("country"), "country"),
            "count accepts only rows that stay",
        ),
    ],
)
def test_what_would_count_rows_that_are_gone_is_refused(spark, made, said):
    app = hw.App("people")
    app.table("users", User, key="id")
    app.view(key="country", inputs={"users": "users"}, name="v")(made)
    with pytest.raises(hw.UsageError, match=said), testing.views(app):
        pass


def test_a_table_has_what_stays_right_while_its_rows_change(spark):
    app = hw.App("people")
    app.table("users", User, key="id")

    app.table("places", User, key="id")

    @app.view(key="country")
    def countries(users: hw.Table, places: hw.Table) -> hw.Table:
        named = users.where(users.country != "xx").withColumn("letters", F.length(users["name"]))
        totals = named.group("country", n=F.count("*"), letters=F.sum("letters"))
        return totals.join(places.select("country").distinct(), on="country")

    with testing.views(app) as t:
        t.send("users", User(1, "ann", "de"), User(2, "bo", "de"), User(3, "zoe", "xx"))
        t.send("places", User(1, "", "de"), User(2, "", "de"), User(3, "", "fr"))
        assert t.rows("countries") == [{"country": "de", "n": 2, "letters": 5}]
        t.send("users", User(2, "bo", "fr"))
        t.delete("users", 3)
        assert t.rows("countries") == [
            {"country": "de", "n": 1, "letters": 3},
            {"country": "fr", "n": 1, "letters": 2},
        ]
        t.check("countries")
        t.check("countries", plain=True)


def test_a_table_shows_its_columns_and_types(spark):
    frame = spark.createDataFrame([(1, "ann", 1)], "id INT, name STRING, _weight INT")
    table = hw.Table(frame)

    assert repr(table.select("id", "name")) == "Table[id: int, name: string]"
    assert table.columns == ["id", "name"]
    assert table.schema.names == ["id", "name"]


def test_a_view_of_a_table_does_not_append(spark):
    app = hw.App("people")
    app.table("users", User, key="id")
    app.sql("v", "SELECT id FROM users", key="id", append=True)
    with pytest.raises(hw.UsageError, match="appends, and rows of a table are retracted"), testing.views(app):
        pass


def test_a_key_that_is_not_unique_stops_the_view(spark):
    app = hw.App("people")
    app.table("users", User, key="id")
    app.sql("countries", "SELECT country, name FROM users", key="country")
    with testing.views(app) as t:
        t.send("users", User(1, "ann", "de"))
        assert len(t.rows("countries")) == 1
        t.send("users", User(2, "bob", "de"))
        with pytest.raises(hw.MachineError, match="not unique: there are two rows with 'de'"):
            t.rows("countries")


def test_a_view_of_a_view_follows_its_rows(spark):
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("small", "SELECT window, country, sum(cents) AS cents FROM orders GROUP BY window(at, '1 hour'), country HAVING sum(cents) < 100", key=["window", "country"])  # fmt: skip
    app.sql("in_germany", "SELECT window, cents FROM small WHERE country = 'de'", key="window")
    app.sql(
        "large", "SELECT order_id, country, at FROM orders WHERE cents >= 50", key="order_id", append=True
    )
    app.sql("counted", "SELECT country, count(*) AS n FROM large GROUP BY country", key="country")

    def order(n: int, country: str, cents: int) -> Order:
        return Order(n, 1, country, cents, BEGIN)

    with testing.views(app, "in_germany", "counted") as t:
        t.send("orders", order(1, "de", 40), order(2, "fr", 60))
        hour = {"start": BEGIN, "end": BEGIN.replace(hour=10)}
        assert t.rows("in_germany") == [{"window": hour, "cents": 40}]
        assert t.rows("counted") == [{"country": "fr", "n": 1}]
        t.send("orders", order(3, "de", 50), order(4, "fr", 60))
        assert t.rows("in_germany") == t.batch("in_germany") == [{"window": hour, "cents": 90}]
        assert t.rows("small") == t.batch("small") == [{"window": hour, "country": "de", "cents": 90}]
        t.send(
            "orders", order(5, "de", 50)
        )  # its row leaves the first view, by a tombstone with a window in its key
        assert t.rows("in_germany") == t.batch("in_germany") == []
        assert t.rows("counted") == [{"country": "de", "n": 2}, {"country": "fr", "n": 2}]
        t.check("in_germany")
        t.check("counted")


def test_waiting_at_the_end_of_a_chain_and_what_is_complete_there(shop):
    first, second = shop.name("hours"), shop.name("busy")
    app = shop.app()
    orders = app.graph().streams["orders"]
    app.sql(first, "SELECT window, sum(cents) AS cents FROM orders GROUP BY window(at, '1 hour')", key="window")  # fmt: skip
    app.sql(second, f"SELECT window, cents FROM `{first}` WHERE cents >= 100", key="window")
    shop.make("orders")

    def order(n: int, minute: int, cents: int) -> Order:
        return Order(n, n, "de", cents, BEGIN + timedelta(minutes=minute))

    with shop.running(app), hw.Writer(shop.log) as writer, Follower(shop.log) as follower:
        for n, (minute, cents, shown) in enumerate(
            [
                (0, 60, {}),
                (1, 60, {"09": 120}),
                (2, 0, {"09": 120}),  # which changes nothing in the first view
                (60, 10, {"09": 120}),  # nor this in the second
                (200, 500, {"09": 120, "12": 500}),
            ]
        ):
            position = writer.send(orders, [order(n, minute, cents)])
            held = follower.wait(second, position, 120)
            found = {row["window"]["start"][11:13]: row["cents"] for row in shop.table(second).values()}
            assert found == shown
        position = writer.send(orders, [order(9, 201, 1), order(10, 202, 1)])
        held = follower.wait(second, position, 120)
        above = follower.wait(first, position, 120)
        assert follower.complete(second, held) == follower.complete(first, above)
        assert follower.complete(second, held) > (BEGIN - timedelta(minutes=10)).timestamp() * 1e6
    with pytest.raises(hw.UsageError, match=f"view '{first}' cannot be reset: view '{second}' reads it"):
        reset(shop.settings, first)
    Runner(app, shop.settings).once()  # the whole chain, one view after the other
    assert shop.table(second) == rows(app, shop.settings)[second]


@pytest.mark.parametrize("late", [hw.late.side(), hw.late.correct("1 hour")])
def test_a_table_with_a_time_takes_part_in_the_watermark_and_has_no_late_rows(spark, late):
    app = hw.App("people")
    app.stream("orders", Order, key="customer_id", time="at", delay="10 minutes")
    app.table("users", User, key="id", time="since", delay="20 minutes")
    app.table("others", User, key="id")

    @app.view(key="id", late=late)
    def seen(orders, users, others):
        once = hw.distinct(orders, "order_id", time="at", within="1 minute")
        stays = once.selectExpr("order_id AS id", "country AS name")
        return users.select("id", "name").union(stays).union(others.select("id", "name"))

    with testing.views(app, now="2026-01-05T12:00:00Z") as t:
        t.send("orders", Order(100, 1, "de", 5, BEGIN + timedelta(hours=1)))
        t.send("users", User(1, "ann", "de", since=BEGIN))
        t.send("others", User(11, "zoe", "de", since=BEGIN.replace(year=2025)))
        assert names(t, "seen") == {1: "ann", 11: "zoe", 100: "de"}
        t.send("users", User(2, "bob", "de", since=BEGIN - timedelta(days=3)))
        t.delete("users", 1)
        assert names(t, "seen") == {2: "bob", 11: "zoe", 100: "de"}
        assert t.late("seen") == []
        last = results(Client(t._settings.access), "seen")[-1]
        assert last.watermark == (BEGIN - timedelta(minutes=20)).timestamp() * 1e6
        assert sorted(last.heard) == ["orders/0", "users/0"]
        t.check("seen")


def test_the_examples_of_the_page_run(spark):
    code = re.findall(r"^```python\n(.*?)^```", (DOCS / "tables.md").read_text(), re.MULTILINE | re.DOTALL)
    app = hw.App("people")
    found = {"hw": hw, "app": app, "DataFrame": DataFrame, "F": F}
    exec("\n".join(code), found)  # noqa: S102
    user = found["User"]
    with testing.views(app) as t:
        t.send("users", user(1, "ann", "DE"), user(2, "bob", "FR"), user(3, "cy", "DE"))
        assert names(t, "names") == {1: "ANN", 3: "CY"}
        t.send("users", user(1, "ann", "FR"))
        t.delete("users", 3)
        assert names(t, "names") == names(t, "germans") == {}
        assert names(t, "french") == {1: "ann", 2: "bob"}
        assert t.rows("countries") == [{"country": "FR", "users": 2}]


def test_weights_follow_rows_through_what_says_something_of_each_row(spark):
    table = spark.createDataFrame([(1, "a b", -1), (2, "c", 1)], "id INT, name STRING, _weight INT")
    stream = spark.createDataFrame([(3, "d")], "id INT, name STRING")
    table.createOrReplaceTempView("weighted")

    def rows(frame):
        return sorted(map(tuple, carry_weights("this", frame).collect()))

    assert rows(table.select("id").where("id < 2")) == [(1, -1)]
    assert rows(table.select("id").union(stream.select("id"))) == [(1, -1), (2, 1), (3, 1)]
    assert rows(stream.select("id").union(table.select("id"))) == [(1, -1), (2, 1), (3, 1)]
    words = table.select(F.explode(F.split("name", " ")).alias("word"))
    assert rows(words) == [("a", -1), ("b", -1), ("c", 1)]
    assert rows(spark.sql("SELECT id + 1 AS next FROM (SELECT * FROM weighted) AS w WHERE id > 1")) == [
        (3, 1)
    ]
    assert carry_weights("this", stream) is stream
    for wrong, said in (
        (table.select("id").join(stream, "id"), "this applies join to a table.*hw.join does it"),
        (stream.join(table.select("id"), "id").select("id").limit(1), "join to a table"),
        (table.select("id").distinct(), "distinct to a table.*hw.group does it"),
        (table.select("id").agg(F.sum("id")), "groupBy to a table.*hw.group does it"),
    ):
        with pytest.raises(hw.UsageError, match=said):
            carry_weights("this", wrong)
