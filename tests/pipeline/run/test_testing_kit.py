"""The kit for users' views: one batch a look, time by hand, rows as Python values, and the mistakes that a test can make."""

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import headwater as hw
from headwater import testing
from support.ordershop import Order
from support.servers import wait_until

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs"
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


class Payment(hw.Event):
    order_id: int
    amount: Decimal
    at: datetime
    day: date | None = None


def order(n: int, minute: float, country: str = "de", customer: int = 1) -> Order:
    return Order(n, customer, country, 100 * n, BEGIN + timedelta(minutes=minute))


def declared() -> hw.App:
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="5 minutes", idle="10 minutes")
    app.stream("payments", Payment, key="order_id", time="at", delay="5 minutes", idle="10 minutes")

    @app.view(key="window")
    def both(orders, payments):
        from pyspark.sql.functions import count, window

        moments = orders.select("at").union(payments.select("at"))
        return moments.groupBy(window("at", "10 minutes")).agg(count("*").alias("n"))

    @app.view(key="order_id", forget="1 hour")
    def paid(payments):
        return payments

    app.sql("totals", "SELECT country, sum(cents) AS cents FROM orders GROUP BY country", key="country")
    return app


def counts(t: testing.Views) -> dict[int, int]:
    return {row["window"]["start"].minute: row["n"] for row in t.rows("both")}


def test_events_go_in_and_rows_come_out(spark):
    with testing.views(declared(), "both", "totals") as t:
        assert t.rows("totals") == t.batch("totals") == []
        t.send("orders", order(1, 0, "fr"), order(2, 30), order(3, 1))  # not late: it is in the same batch
        t.send("payments", Payment(7, Decimal("1.50"), BEGIN), b"nothing")
        assert t.rows("totals") == [{"country": "de", "cents": 500}, {"country": "fr", "cents": 100}]
        assert counts(t) == {0: 3, 30: 1}
        assert t.invalid("payments") == [b"nothing"]
        assert t.late("both") == t.late("totals") == t.invalid("orders") == []

        late = order(4, 1)
        t.send("orders", order(5, 40))
        t.watermark("2026-01-05T09:30:00Z")
        t.send("orders", late, order(6, 30))  # exactly at the watermark
        t.send("payments", {"order_id": 8, "amount": "2", "at": BEGIN + timedelta(minutes=31)})
        assert counts(t) == {0: 3, 30: 3, 40: 1}
        assert t.late("both") == [late]
        assert t.rows("totals")[0]["cents"] == 2000
        assert t.rows("both") == t.batch("both")
        t.check("totals")

        for wrong, says in (
            (lambda: t.send("order", order(1, 1)), "unknown stream 'order'"),
            (lambda: t.send("payments", order(1, 1)), "not an event of stream 'payments'; got Order"),
            (lambda: t.rows("total"), "unknown view 'total'"),
            (lambda: t.advance("soon"), "'soon' is not a duration"),
        ):
            with pytest.raises(hw.UsageError, match=says):
                wrong()


def test_time_advances_by_the_clock_on_request(spark):
    with testing.views(declared(), "both", "paid", now="2026-01-05T12:00:00Z") as t:
        t.send("payments", Payment(1, Decimal("1.5"), BEGIN, date(2026, 1, 5)))
        t.send("orders", order(1, 60))
        assert t.rows("paid") == [
            {"order_id": 1, "amount": Decimal("1.500000000"), "at": BEGIN, "day": date(2026, 1, 5)}
        ]
        t.advance(
            "11 minutes"
        )  # both are silent for longer than allowed: the greatest time advances, less the delay
        missed = Payment(2, Decimal(2), BEGIN + timedelta(minutes=55))
        t.send("payments", missed)
        t.send("orders", order(2, 57))
        assert [(row["window"]["start"].strftime("%H:%M"), row["n"]) for row in t.rows("both")] == [
            ("09:00", 1),
            ("09:50", 1),
            ("10:00", 1),
        ]
        assert t.late("both") == [missed]
        t.advance("50 minutes")
        assert [row["order_id"] for row in t.rows("paid")] == [2]
        t.advance("11 minutes")
        assert t.rows("paid") == []
    with pytest.raises(hw.UsageError, match="unknown view 'nothing'"), testing.views(declared(), "nothing"):
        pass


def test_a_view_that_is_wrong_fails_the_look_and_one_that_differs_fails_the_check(spark):
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("luck", "SELECT country, raise_error('no such luck') AS n FROM orders", key="country")
    with testing.views(app) as t:
        t.send("orders", order(1, 0))
        with pytest.raises(hw.MachineError, match=r"view 'luck' has stopped; got .*no such luck"):
            t.rows("luck")

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")

    @app.view(key="country")
    def odd(orders):
        return orders.selectExpr("country", f"{int(orders.isStreaming)} AS streaming")

    with testing.views(app) as t:
        t.send("orders", order(1, 0))
        with pytest.raises(AssertionError, match="the first is de, in streaming"):
            t.check("odd")


def clients_that_run() -> int:
    """The threads of librdkafka in this process."""
    threads = Path("/proc/self/task").glob("*/comm")
    return sum(thread.read_text().startswith("rdk:") for thread in threads)


def test_views_that_cannot_start_leave_no_client_open(spark):
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("wrong", "SELECT country, array(1) + country AS n FROM orders", key="country")
    clients = clients_that_run()
    with pytest.raises(hw.UsageError, match="view 'wrong'") as refused, testing.views(app):
        pass
    wait_until(lambda: clients_that_run() <= clients, what=f"the end of the clients that {refused.value} had")


def test_the_example_of_the_guide_runs(spark):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "testing.md").read_text(), re.DOTALL)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(code, "testing.md", "exec"), names)  # noqa: S102
    names["test_revenue_of_an_hour"]()
