"""Kill -9 of the broker and of the Spark driver in the middle of a run: no row is lost and none is doubled.

A kind of ``make test-faults``; ``test_stage_kill.py`` kills both in the tests of every day. VIEWS_KILL_SEED is the first run,
VIEWS_KILL_RUNS their number.
"""

import os
import random
import signal
from pathlib import Path

import pytest

import headwater as hw
from headwater.pipeline.topics import Topics
from pipeline.driver import Driver, driving, own_shop
from support.ordershop import Shop, orders
from support.servers import BrokerProcess, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.own_spark, pytest.mark.timeout(2400)]

FIRST = int(os.environ.get("VIEWS_KILL_SEED", "0"))
RUNS = int(os.environ.get("VIEWS_KILL_RUNS", "0"))
STEPS = 10
LIMIT_S = 180
"""Three starts of Spark on a machine that others use too."""

APP = """
    import headwater as hw
    from support.ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("by_country", "SELECT country, sum(cents) AS cents, count(*) AS n FROM orders GROUP BY country", key="country")
    app.sql("per_minute", "SELECT window, count(*) AS n FROM orders GROUP BY window(at, '1 minute')", key="window")
"""


@pytest.fixture
def shop(own_broker: BrokerProcess, tmp_path: Path) -> Shop:
    return own_shop(own_broker, tmp_path)


@pytest.fixture
def driver(shop: Shop, tmp_path: Path):
    with driving(shop, tmp_path, APP) as driver:
        yield driver


def read(shop: Shop, driver: Driver) -> int:
    """How many orders both views have published; keeps the driver alive meanwhile."""
    driver.keep()
    found = [shop.committed(view).get("orders", {}) for view in ("by_country", "per_minute")]
    return min(sum(positions.values()) for positions in found)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_a_killed_broker_and_a_killed_driver_lose_and_double_nothing(shop, driver, own_broker, seed):
    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)
    of_broker, of_driver = sorted(random.Random(seed).sample(range(1, STEPS), 2))
    for step in range(STEPS):
        shop.send_to("orders", orders(100, start=100 * step))
        if step == of_broker:
            wait_until(lambda: read(shop, driver) >= 100 * of_broker, LIMIT_S, "the first batches")
            own_broker.end(signal.SIGKILL)
            own_broker.start()
        if step == of_driver:
            wait_until(
                lambda: read(shop, driver) >= 100 * of_broker, LIMIT_S, "batches after the broker's restart"
            )
            driver.kill()
    wait_until(lambda: read(shop, driver) == 1000, LIMIT_S, "all orders")

    app = hw.App.load(str(driver.app))
    assert {row["country"]: row["n"] for row in shop.table("by_country").values()} == {
        "de": 334,
        "fr": 333,
        "us": 333,
    }
    cents = sum(row["cents"] for row in shop.table("by_country").values())
    assert cents == sum(order.cents for order in orders(1000))
    assert {row["n"] for row in shop.table("per_minute").values()} == {30, 10}
    assert len(shop.table("per_minute")) == 34
    assert list(app.graph().views) == ["by_country", "per_minute"]
