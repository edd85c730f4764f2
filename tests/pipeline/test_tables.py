"""Tables and views of views through Spark: as a stream, with restarts, and in batch."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater import testing
from headwater.pipeline.batch import rows
from headwater.pipeline.runner import Runner

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[2] / "docs"
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


class User(hw.Event):
    id: int
    name: str
    country: str
    tags: list[str] = []
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
    app.sql(seen, "SELECT country, id, name FROM users WHERE name <> 'nobody'", key=["country", "id"])
    steps = [
        [],  # the table is filled later
        [User(1, "ann", "de"), User(1, "bob", "fr")],
        [User(1, "nobody", "de"), None],
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
        (lambda users: users.groupBy("country").count(), "goes on with groupBy behind a table.*hw.group"),
        (
            lambda users: users.select("country").groupBy("country").count(),
            "goes on with groupBy behind a table",
        ),
        (
            lambda users: users.select("country").distinct(),
            "goes on with dropDuplicates behind a table|distinct",
        ),
        (
            lambda users: hw.count(users.select("country"), "country"),
            "count takes every row for one that stays",
        ),
    ],
)
def test_what_would_count_rows_that_are_gone_is_refused(spark, made, said):
    app = hw.App("people")
    app.table("users", User, key="id")
    app.view(key="country", inputs={"users": "users"}, name="v")(made)
    with pytest.raises(hw.UsageError, match=said), testing.views(app):
        pass


def test_a_view_of_a_table_does_not_append(spark):
    app = hw.App("people")
    app.table("users", User, key="id")
    app.sql("v", "SELECT id FROM users", key="id", append=True)
    with pytest.raises(hw.UsageError, match="appends, and rows of a table are taken out"), testing.views(app):
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
