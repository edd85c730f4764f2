"""Kill -9 at each named point of the batch protocol and at random: every batch happens once, whole, and state equals output."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headwater.client import Client
from headwater.pipeline.points import POINTS
from headwater.pipeline.state import Place, Shard
from headwater.pipeline.topics import Topics
from headwater.result import Result
from ordershop import Shop, orders
from pipeline.driver import Driver, driving, own_shop
from pipeline.told import Published, complaints
from servers import BrokerProcess, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "10"))
SEED = int(os.environ.get("CRASH_SEED", "0"))
LIMIT_S = 180
RANDOM = ("driver", "worker", "broker")
VIEWS = ("by_country", "by_order")
APP = """
    import headwater as hw
    from ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("by_country", "SELECT country, sum(cents) AS cents, count(*) AS n FROM orders GROUP BY country", key="country")
    app.sql("by_order", "SELECT order_id, country, cents FROM orders", key="order_id")
"""


@pytest.fixture
def shop(own_broker: BrokerProcess, tmp_path: Path) -> Shop:
    return own_shop(own_broker, tmp_path)


@pytest.fixture
def driver(shop: Shop, tmp_path: Path):
    with driving(shop, tmp_path, APP) as driver:
        yield driver


def left(shop: Shop, view: str) -> Published:
    """Everything that a view has left in the log and on the disk."""
    client = Client(shop.bootstrap)
    records = [
        (m.partition(), m.offset(), m.key().decode(), msgspec.json.decode(m.value() or b"null"))
        for m in client.read([view])
    ]
    results = [msgspec.json.decode(message.value()) for message in client.read([f"{view}.progress"])]
    last = msgspec.convert(results[-1], Result, strict=False)
    folder = shop.settings.data / "checkpoints" / view / last.run
    place = Place(str(folder.absolute() / "shards" / "publish"), str(folder.absolute() / "check"))
    state = {
        key.decode(): msgspec.json.decode(value)
        for number, chain in enumerate(last.state["publish"])
        for key, value in Shard(place, number, chain).items()
    }
    return Published(records, results, state)


def plans(seed: int, rounds: int) -> list[str]:
    """What is killed in each round: all points in turn, in an order of the seed's own, with random kills among them."""
    chance = random.Random(seed)
    chosen = [*POINTS, *RANDOM]
    chance.shuffle(chosen)
    return [chosen[(seed * rounds + n) % len(chosen)] for n in range(rounds)]


def test_every_batch_happens_once_whatever_is_killed(shop, driver, own_broker):
    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)
    chance, sent = random.Random(SEED), 0

    def done() -> bool:
        driver.keep()
        return all(sum(shop.committed(view).get("orders", {}).values()) == sent for view in VIEWS)

    for plan in plans(SEED, ROUNDS):
        if plan in POINTS:
            driver.crash_file.write_text(f"{plan}#{chance.randint(1, 3)}")
        for _ in range(chance.randint(2, 5)):
            driver.keep()
            shop.send_to("orders", orders(count := chance.randint(1, 60), start=sent))
            sent += count
            time.sleep(chance.uniform(0, 0.4))
        if plan == "driver":
            driver.kill()
        elif plan == "broker":
            own_broker.end(signal.SIGKILL)
            own_broker.start()
        elif plan == "worker" and driver.workers():
            os.kill(chance.choice(driver.workers()), signal.SIGKILL)
        wait_until(done, LIMIT_S, f"the batches after a kill: {plan}; {driver.said()}")
        driver.crash_file.unlink(missing_ok=True)
    driver.kill()

    for view in VIEWS:
        found = left(shop, view)
        assert complaints(replace(found, expected=answer(view, sent))) == []


def answer(view: str, sent: int) -> dict[str, dict]:
    """The same in plain Python."""
    table: dict[str, dict] = {}
    for order in orders(sent):
        if view == "by_order":
            table[str(order.order_id)] = {
                "order_id": order.order_id,
                "country": order.country,
                "cents": order.cents,
            }
        else:
            row = table.setdefault(order.country, {"country": order.country, "cents": 0, "n": 0})
            row["cents"] += order.cents
            row["n"] += 1
    return table


def test_a_driver_that_slept_ends_when_it_wakes_and_its_successor_loses_nothing(shop, driver, tmp_path):
    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)

    def read() -> int:
        return min(sum(shop.committed(view).get("orders", {}).values()) for view in VIEWS)

    driver.keep()
    shop.send_to("orders", orders(100))
    wait_until(lambda: read() == 100, LIMIT_S, "the first batches")
    os.killpg(driver.process.pid, signal.SIGSTOP)
    (tmp_path / "successor").mkdir()
    successor = Driver(shop, tmp_path / "successor", APP)
    try:
        successor.keep()
        shop.send_to("orders", orders(100, start=100))
        wait_until(lambda: successor.keep() or read() == 200, LIMIT_S, "the successor's batches")
        os.killpg(driver.process.pid, signal.SIGCONT)
        shop.send_to("orders", orders(100, start=200))
        wait_until(lambda: driver.process.poll() is not None, LIMIT_S, "the end of the one that slept")
        assert "run by another driver" in driver.log.read_text()
        wait_until(lambda: successor.keep() or read() == 300, LIMIT_S, "the successor's last batches")
    finally:
        successor.kill()
    for view in VIEWS:
        assert complaints(replace(left(shop, view), expected=answer(view, 300))) == []
