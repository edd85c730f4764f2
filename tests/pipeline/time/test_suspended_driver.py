"""A driver that is suspended, JVM and all, while records are still written to its log: nothing is late when it wakes up."""

import signal
from pathlib import Path

import pytest

from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.follow.results import newest
from headwater.pipeline.topics import Topics
from pipeline.driver import driving, own_shop
from pipeline.orderly_traffic import Traffic
from support.ordershop import Shop
from support.servers import BrokerProcess, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.own_spark, pytest.mark.timeout(900)]

ASLEEP_S = 10
LIMIT_S = 180
APP = """
    import headwater as hw
    from support.ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="1 second", idle="2 seconds")
    app.sql("windows", "SELECT window, count(*) AS n FROM orders GROUP BY window(at, '5 seconds')", key="window")
"""


@pytest.fixture
def shop(own_broker: BrokerProcess, tmp_path: Path) -> Shop:
    return own_shop(own_broker, tmp_path)


def test_a_driver_that_was_suspended_judges_nothing_late_that_came_meanwhile(shop, tmp_path):
    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)
    counted = lambda: sum(row["n"] for row in shop.table("windows").values())  # noqa: E731
    clock = SystemClock()
    with driving(shop, tmp_path, APP) as driver, Traffic(shop, "orders") as traffic:
        driver.keep()
        wait_until(lambda: counted() > 500, LIMIT_S, "the first windows")
        driver.signal(signal.SIGSTOP)
        since = clock.monotonic()
        wait_until(lambda: clock.monotonic() > since + ASLEEP_S, 60, "a sleep longer than idle")
        driver.signal(signal.SIGCONT)
        shop.taken("windows", "orders", traffic.sent, LIMIT_S)
        traffic.end()
        shop.taken("windows", "orders", traffic.sent, LIMIT_S)
        last = newest(Client(shop.log), "windows")
        assert last is not None
        assert (counted(), last.late) == (traffic.sent, 0)
