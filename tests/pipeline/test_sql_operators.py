"""Operators in SQL views: as functions of a stream, with the same answer as in Python."""

from datetime import UTC, datetime, timedelta

import pytest

import headwater as hw
from headwater.errors import UsageError
from headwater.operate.check import check
from headwater.pipeline.runner import Runner
from ordershop import Order, Shop

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
        late=hw.correct("1 day"),
    )
    app.sql(
        shop.name("days"),
        "SELECT window, sum(cents) AS cents FROM calendar(orders, unit => 'day', time => 'at', zone => 'Europe/Berlin')"
        " GROUP BY window",
        key="window",
        late=hw.correct("1 day"),
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
