"""A changed view: with which changes it continues, and which are refused with the command that puts it right."""

from datetime import UTC, datetime

import msgspec
import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.errors import UsageError
from headwater.follow.results import newest, results
from headwater.pipeline.build.prepare import prepare
from headwater.pipeline.definition.definition import FORM, Definition, edited, refusal
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from headwater.pipeline.topics import Topics
from support.ordershop import Order, Shop

QUERY = "SELECT country, window(at, '10 minutes') AS window, count(*) AS n FROM orders {where} GROUP BY country, window(at, '10 minutes')"


def now(**parts: str) -> Definition:
    return Definition("2-0", {"form": FORM, **parts}, dict)


def test_what_a_result_does_not_say_is_not_compared():
    assert refusal("v", {}, now(steps="a")) is None
    assert refusal("v", {"form": FORM, "steps": "a"}, now(steps="a", key="k")) is None


def test_a_result_of_the_form_that_had_no_number_is_compared_by_the_rule_of_its_time():
    changed = Definition("2-0", {"form": FORM, "steps": "of today"}, lambda: {"steps": "as text"})
    assert refusal("v", {"steps": "as text"}, changed) is None
    assert "its steps changed" in str(refusal("v", {"steps": "another text"}, changed))


def test_a_result_of_a_later_form_is_refused_with_what_helps():
    text = str(refusal("v", {"form": "3", "steps": "a"}, now(steps="a")))
    assert "got 3; expected 2; start the version" in text
    assert "headwater view rebuild v APP" in text


def test_a_digest_of_another_form_is_not_an_edit():
    assert edited("2-a", "2-b")
    assert not edited("2-a", "2-a")
    assert not edited("5f2d8c1a9e3b7f60", "2-a")


def test_the_message_shows_the_place_that_differs():
    same = "; ".join(f"step {n}" for n in range(100))
    before = {"form": FORM, "steps": f"{same}; window 10"}
    text = str(refusal("v", before, now(steps=f"{same}; window 5")))
    assert "got window 5; expected window 10" in text
    assert "headwater view rebuild v" in text
    assert len(text) < 500


def app(
    shop: Shop, query: str, *, topic: str = "orders", key: object = ("country", "window"), **options: object
) -> hw.App:
    declared = hw.App("shop")
    declared.stream("orders", Order, key="customer_id", time="at", topic=shop.name(topic), delay="1 minute")
    declared.sql(shop.name("v"), query, key=key, **options)
    return declared


@pytest.mark.spark
def test_a_changed_filter_continues_and_is_recorded_and_a_changed_window_is_refused(shop):
    shop.make("orders", "other")
    shop.send(_orders(1))
    Runner(app(shop, QUERY.format(where="")), shop.settings).once()

    shop.send(_orders(2, 3))
    Runner(
        app(shop, QUERY.format(where="WHERE order_id != 2"), late=hw.late.correct("1 hour")), shop.settings
    ).once()
    assert [row["n"] for row in shop.table(shop.name("v")).values()] == [2]
    first, second = results(Client(shop.bootstrap), shop.name("v"))
    assert first.edits == ()
    assert [(edit.batch, edit.definition, edit.inputs) for edit in second.edits] == [
        (second.batch, second.definition, first.inputs)
    ]

    where = "WHERE order_id != 2"
    for changed, said in (
        (
            app(shop, QUERY.format(where=where).replace("10 minutes", "5 minutes")),
            r"its steps changed.*300000000.*600000000",
        ),
        (
            app(shop, QUERY.format(where=where).replace("count(*)", "sum(cents)")),
            r"its steps changed.*sum\(orders.cents\).*count\(1\)",
        ),
        (app(shop, QUERY.format(where=where), topic="other"), r"its sources changed.*other.*orders"),
        (app(shop, QUERY.format(where=where), emit="ready"), r"its publication changed.*ready.*changes"),
        (
            app(shop, QUERY.format(where=where), key=("window", "country")),
            r"its key changed.*got window.*expected country",
        ),
    ):
        with pytest.raises(UsageError, match=rf"{said}.*headwater view rebuild"):
            Runner(changed, shop.settings).once()

    shop.send(_orders(4))
    Runner(app(shop, QUERY.format(where=where)), shop.settings).once()
    assert [row["n"] for row in shop.table(shop.name("v")).values()] == [3]


@pytest.mark.spark
def test_an_operator_with_other_settings_is_refused(shop):
    shop.make("orders")
    shop.send(_orders(1))
    for column in ("n", "total"):
        declared = shop.app()
        declared.view(key="country", name=shop.name("v"))(_counted(column))
        if column == "n":
            Runner(declared, shop.settings).once()
        else:
            with pytest.raises(UsageError, match=r"its steps changed.*total"):
                Runner(declared, shop.settings).once()


def _counted(column):
    def counted(orders):
        return hw.count(orders, "country", column=column)

    return counted


class User(hw.Row):
    id: int
    country: str
    age: int


class Bought(hw.Row):
    id: int
    user: int


def bucket(size):
    return F.udf(lambda number: number // size, "bigint")


TABLES = {
    "group": (
        "country",
        lambda n: (
            f"SELECT country, count(*) AS n, sum(age) AS ages FROM users WHERE age >= {n} GROUP BY country"
        ),
    ),
    "plain": ("id", lambda n: f"SELECT id, country, age FROM users WHERE age >= {n}"),
    "function": (
        "b",
        lambda n: lambda users: hw.group(users.select(bucket(n)("age").alias("b")), "b", n=F.count("*")),
    ),
    "right": (
        "id",
        lambda n: (
            lambda bought, users: hw.join(
                bought, users.select(F.col("id").alias("user"), (F.col("age") * n).alias("x")), on="user"
            )
        ),
    ),
    "function of the right": (
        "id",
        lambda n: (
            lambda bought, users: hw.join(
                bought, users.select(F.col("id").alias("user"), bucket(n)("age").alias("x")), on="user"
            )
        ),
    ),
}


def of_tables(shop: Shop, n: int, *cases: str) -> hw.App:
    declared = hw.App("shop")
    declared.table("users", User, key="id", topic=shop.name("users"))
    declared.table("bought", Bought, key="id", topic=shop.name("bought"))
    for case in cases:
        (key, made), name = TABLES[case], shop.name(case.replace(" ", "_"))
        view = made(n)
        if isinstance(view, str):
            declared.sql(name, view, key=key)
        else:
            declared.view(key=key, name=name)(view)
    return declared


@pytest.mark.spark
def test_a_changed_view_of_tables_is_refused_and_the_old_one_continues(shop):
    """Each of these continued once, and had rows for ever that were deleted, or groups without rows that are there."""
    shop.make("users", "bought")
    shop.send_to(shop.name("users"), [User(1, "de", 19), User(2, "de", 30), User(3, "fr", 40)], "id")
    shop.send_to(shop.name("bought"), [Bought(10, 2), Bought(11, 3)], "id")
    Runner(of_tables(shop, 18, *TABLES), shop.settings).once()

    shop.send_to(shop.name("users"), [User(1, "us", 18), User(3, "fr", 41)], "id")
    for case in TABLES:
        with pytest.raises(UsageError, match=r"its (steps|filters) changed.*headwater view rebuild"):
            Runner(of_tables(shop, 21, case), shop.settings).once()

    Runner(of_tables(shop, 18, *TABLES), shop.settings).once()
    assert {row["country"]: row["ages"] for row in shop.table(shop.name("group")).values()} == {
        "de": 30,
        "us": 18,
        "fr": 41,
    }
    assert {row["id"]: row["x"] for row in shop.table(shop.name("right")).values()} == {10: 540, 11: 738}


@pytest.mark.spark
def test_a_result_without_a_form_is_taken_over_and_the_next_one_has_a_form_and_no_edit(shop):
    shop.make("orders")
    shop.send(_orders(1))
    view, same = shop.name("v"), QUERY.format(where="")
    Runner(app(shop, same), shop.settings).once()
    topics = Topics(shop.log)
    last = newest(topics, view)
    graph = app(shop, same).graph()
    partitions = topics.partitions()
    made = prepare(
        session.start(shop.settings), shop.settings, graph, graph.views[view], 2, partitions=partitions
    )
    former = msgspec.structs.replace(last, parts=made.definition.former(), definition="5f2d8c1a9e3b7f60")
    progress = RunResults(topics, view, last.run, SystemClock())
    progress.take_over()
    progress.revise([former])
    progress.close()

    shop.send(_orders(2))
    with pytest.raises(UsageError, match=r"its steps changed.*headwater view rebuild"):
        Runner(app(shop, same.replace("10 minutes", "5 minutes")), shop.settings).once()
    Runner(app(shop, same), shop.settings).once()
    assert [row["n"] for row in shop.table(view).values()] == [2]
    now_last = newest(topics, view)
    assert (now_last.parts, now_last.definition, now_last.edits) == (last.parts, last.definition, ())


def _orders(*numbers):
    return [Order(n, 1, "de", 100, datetime(2026, 1, 5, 9, n, tzinfo=UTC)) for n in numbers]
