"""A changed view: what may change while it goes on, and what is refused with the command that puts it right."""

from datetime import UTC, datetime

import pytest

import headwater as hw
from headwater.client import Client
from headwater.errors import UsageError
from headwater.pipeline.definition import check
from headwater.pipeline.runner import Runner
from headwater.result import results
from ordershop import Order, Shop

QUERY = "SELECT country, window(at, '10 minutes') AS window, count(*) AS n FROM orders {where} GROUP BY country, window(at, '10 minutes')"


def test_what_is_not_known_of_an_older_version_is_not_held_against_it():
    check("v", {}, {"steps": "a"})
    check("v", {"steps": "a"}, {"steps": "a", "key": "k"})


def test_the_message_shows_the_place_that_differs():
    same = "; ".join(f"step {n}" for n in range(100))
    with pytest.raises(UsageError) as caught:
        check("v", {"steps": f"{same}; window 10"}, {"steps": f"{same}; window 5"})
    text = str(caught.value)
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
def test_a_changed_filter_goes_on_and_is_recorded_and_a_changed_window_is_refused(shop):
    shop.make("orders", "other")
    shop.send(_orders(1))
    Runner(app(shop, QUERY.format(where="")), shop.settings).once()

    shop.send(_orders(2, 3))
    Runner(
        app(shop, QUERY.format(where="WHERE order_id != 2"), late=hw.correct("1 hour")), shop.settings
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
            r"its steps changed.*sum\(cents\).*count\(1\)",
        ),
        (app(shop, QUERY.format(where=where), topic="other"), r"its sources changed.*other.*orders"),
        (app(shop, QUERY.format(where=where), emit="ready"), r"its publication changed.*ready.*changes"),
        (
            app(shop, QUERY.format(where=where), key=("window", "country")),
            r"its key changed.*window, country",
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


def _orders(*numbers):
    return [Order(n, 1, "de", 100, datetime(2026, 1, 5, 9, n, tzinfo=UTC)) for n in numbers]
