"""Operators in SQL views: as functions of a stream, with the same answer as in Python."""

from datetime import UTC, datetime, timedelta

import pytest

import headwater as hw
from headwater.errors import UsageError
from headwater.operate.views.check import check
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order, Shop

BEGIN = datetime(2026, 3, 28, 20, tzinfo=UTC)


def declared(shop: Shop) -> hw.App:
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="10 minutes", topic=shop.name("orders"))
    return app


@pytest.mark.spark
def test_sessions_and_days_are_written_in_sql(shop):
    shop.make("orders")
    app = declared(shop)
    app.sql(
        shop.name("visits"),
        "SELECT customer_id AS customer, window, n FROM sessions(orders, key => 'customer_id', time => 'at',"
        " gap => '30 minutes', n => 'count(*)') WHERE n > 1",
        key=["customer", "window"],
        late=hw.late.correct("1 day"),
    )
    app.sql(
        shop.name("days"),
        "SELECT window, sum(cents) AS cents FROM calendar(orders, unit => 'day', time => 'at', zone => 'Europe/Berlin')"
        " GROUP BY window",
        key="window",
        late=hw.late.correct("1 day"),
    )
    for minutes in ([0, 20, 90], [110, 45, 600], [70, 60 * 24]):
        shop.send([Order(n, 1, "de", 1, BEGIN + timedelta(minutes=n)) for n in minutes])
        Runner(app, shop.settings).once()
    visits = {key[4:20]: row["n"] for key, row in shop.table(shop.name("visits")).items()}
    assert visits == {"2026-03-28T20:00": 6}
    days = {
        row["window"]["start"][:16]: (row["window"]["end"][:16], row["cents"])
        for row in shop.table(shop.name("days")).values()
    }
    assert days == {
        "2026-03-27T23:00": ("2026-03-28T23:00", 6),
        "2026-03-28T23:00": ("2026-03-29T22:00", 2),  # 23 hours: clocks were put forward
    }
    for name in ("visits", "days"):
        checked = check(app, shop.settings, shop.name(name))
        assert checked.first is None, str(checked)


class Payment(hw.Event):
    payment_id: int
    order_id: int
    paid_at: datetime


class Tap(hw.Event):
    customer_id: int
    occurred: datetime
    sent: datetime
    received: datetime


@pytest.mark.spark
def test_sliding_windows_duplicates_clocks_and_matches_are_written_in_sql(shop):
    app = declared(shop)
    more = {"payments": (Payment, "order_id", "paid_at"), "taps": (Tap, "customer_id", "received")}
    for name, (kind, key, time) in more.items():
        app.stream(name, kind, key=key, time=time, delay="10 minutes", topic=shop.name(name))
    views = {
        "rolling": (
            "SELECT customer_id, window, n FROM sliding(orders, key => 'customer_id', time => 'at', size => '10 minutes', n => 'count(*)')",
            ["customer_id", "window"],
        ),
        "once": (
            "SELECT order_id, country FROM distinct(orders, key => 'customer_id, order_id', time => 'at', within => '1 hour')",
            "order_id",
        ),
        "paid": (
            "SELECT order_id, payment_id FROM match(orders, payments, on => 'order_id', time => 'at, paid_at', after => '10 minutes')",
            "payment_id",
        ),
        "right": (
            "SELECT customer_id, corrected FROM corrected_time(taps, device => 'customer_id', occurred => 'occurred', sent => 'sent', received => 'received', bound => '2 hours')",
            "customer_id",
        ),
    }
    for name, (query, key) in views.items():
        app.sql(shop.name(name), query, key=key)

    def at(minute: int) -> datetime:
        return BEGIN + timedelta(minutes=minute)

    shop.make("orders", *more)
    for minutes in ([0, 5, 5], [20], [200]):
        shop.send([Order(n, 1, "de", 1, at(n)) for n in minutes])
        paid = [Payment(n, n, at(n + late)) for n, late in ((0, 7), (20, 12)) if n in minutes]
        shop.send_to(shop.name("payments"), paid, "order_id")
        shop.send([Tap(n, at(n - 61), at(n - 60), at(n)) for n in minutes[:1]], "taps")  # an hour slow
        Runner(app, shop.settings).once()
    found = {name: shop.table(shop.name(name)).values() for name in views}
    rolling = {row["window"]["end"][11:16]: row["n"] for row in found["rolling"]}
    assert rolling == {"20:00": 1, "20:05": 3, "20:20": 1, "23:20": 1}
    assert sorted(row["order_id"] for row in found["once"]) == [0, 5, 20, 200]
    assert [(row["order_id"], row["payment_id"]) for row in found["paid"]] == [(0, 0)]
    corrected = {row["customer_id"]: row["corrected"][11:16] for row in found["right"]}
    assert corrected[0] == "19:59"
    for name in ("rolling", "once", "paid"):
        checked = check(app, shop.settings, shop.name(name))
        assert checked.first is None, str(checked)


@pytest.mark.spark
def test_a_wrong_argument_is_one_clear_line(shop):
    app = declared(shop)
    app.sql(
        shop.name("v"),
        "SELECT * FROM sessions(orders, key => 'customer_id', time => 'at')",
        key="customer_id",
    )
    with pytest.raises(UsageError, match=r"sessions: missing a required.*'gap'.*expected key => '…'"):
        Runner(app, shop.settings).once()
