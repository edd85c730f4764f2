"""Views of one application share a busy machine, whatever they are called.

``FAIR_ROUNDS`` says how often; in every second round the names are in the reverse order of the declarations.
"""

import os
import statistics
import time
from collections import Counter

import pytest

from headwater.client.client import Client
from headwater.follow.results import results
from headwater.pipeline.topics import Topics
from pipeline.driver import driving, own_shop
from support.ordershop import orders
from support.servers import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.own_spark]

FIRST = int(os.environ.get("FAIR_SEED", "0"))
ROUNDS = int(os.environ.get("FAIR_ROUNDS", "0"))
VIEWS = 12
MEASURED_S = 60
SLOWEST = 1.5
"""The median of the views has at most this times the batches of the slowest one."""
START_S = 300
APP = """
    import headwater as hw
    from support.ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    for name in {names}:
        app.sql(
            name, "SELECT window, country, count(*) AS n FROM orders GROUP BY window(at, '1 minute'), country",
            key=["window", "country"],
        )
"""


@pytest.mark.timeout(START_S + 4 * MEASURED_S)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_each_of_equal_views_gets_its_share_of_a_busy_machine(own_broker, tmp_path, seed):
    names = sorted((f"view_{chr(ord('a') + n)}" for n in range(VIEWS)), reverse=seed % 2 == 1)
    shop, client = own_shop(own_broker, tmp_path), Client(own_broker.bootstrap)
    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)

    def batches() -> Counter[str]:
        return Counter({name: found[-1].batch for name in names if (found := results(client, name))})

    with driving(shop, tmp_path, APP.format(names=names), masters=("local[2,4]",)) as driver:
        sent = 0

        def send() -> None:
            nonlocal sent
            driver.keep()
            shop.send_to("orders", orders(20, start=sent))
            sent += 20

        def all_run() -> bool:
            send()
            return len(batches()) == VIEWS

        wait_until(all_run, START_S, "a batch of each view")
        before, end = batches(), time.monotonic() + MEASURED_S
        while time.monotonic() < end:
            send()
            time.sleep(0.05)  # a load of twenty records at a time, not a wait
        done = batches() - before
    assert driver.starts == 1
    counts = [done[name] for name in names]
    assert statistics.median(counts) <= SLOWEST * min(counts), dict(zip(names, counts, strict=True))
