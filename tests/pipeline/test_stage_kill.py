"""Kill -9 at each named point of the batch protocol and at random: every batch happens once, whole, and state equals output.

CRASH_SEED is the first seed, CRASH_ROUNDS the number of kills; each seed is ten of them. CRASH_KIND is ``stage`` for the embedded log,
``stage-kafka`` for Apache Kafka, ``stage-executor`` for executors that are processes of their own. What was killed is told to the file
CRASH_TALLY.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.pipeline.points import POINTS
from headwater.pipeline.topics import Topics
from ordershop import Shop, orders
from pipeline.driver import Driver, driving, own_shop, spark_home
from pipeline.lives import APP, JVM, KILLS_PER_SEED, OF_DRIVER, VIEWS, Life, faults, plans
from servers import BrokerProcess, KafkaProcess, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.own_spark, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("CRASH_ROUNDS", "10"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_SEED, 1))
LIMIT_S = 180
KIND = os.environ.get("CRASH_KIND", "stage")
SLOTS = ("local[2,4]", "local[1,4]", "local[3,4]")
"""Each start has another number of them."""
CLUSTER = ("local-cluster[2,1,1024]",)
AT_A_POINT = "worker at a point"
OTHERS = (AT_A_POINT, "broker", "worker", AT_A_POINT, "broker", AT_A_POINT, "worker", AT_A_POINT)
OF_A_CLUSTER = ("executor", AT_A_POINT, "executor", "worker", "executor", "broker", "executor", "executor")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[BrokerProcess | KafkaProcess]:
    """A log that a test may kill."""
    kafka = KIND == "stage-kafka"
    process = (
        KafkaProcess(tmp_path / "kafka") if kafka else BrokerProcess(tmp_path / "data", "--flush", "commit")
    )
    process.start()
    yield process
    process.end(signal.SIGKILL)


@pytest.fixture
def shop(log, tmp_path: Path) -> Shop:
    return own_shop(log, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_batch_happens_once_whatever_is_killed(seed, shop, log, tmp_path):
    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)
    masters, others, environ = SLOTS, OTHERS, {}
    if KIND == "stage-executor":
        masters, others, environ = CLUSTER, OF_A_CLUSTER, {"SPARK_HOME": str(spark_home(tmp_path))}
    began, found = time.monotonic(), {"all views": ["the seed did not come to its end"]}
    with driving(shop, tmp_path, APP, masters, **environ) as driver:
        life = Life(seed, shop, driver, log)
        try:
            if len(SEEDS) > 1:  # pays for itself after a few starts
                life.send()
                driver.train()
            life.run(plans(seed, others))
            driver.kill()
            found = faults(shop, life.sent)
        finally:
            tally(seed, life, began, found)

    assert found == {}


def tally(seed: int, life: Life, began: float, found: dict[str, list[str]]) -> None:
    if "CRASH_TALLY" in os.environ:
        line = {
            "seed": seed,
            "outcome": "failed" if found else "passed",
            "kills": len(life.killed),
            "killed": dict(sorted(Counter(life.killed).items())),
            "seconds": round(time.monotonic() - began),
            "of each": life.seconds,
        }
        with Path(os.environ["CRASH_TALLY"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


@pytest.mark.parametrize("others", [OTHERS, OF_A_CLUSTER])
def test_ten_seeds_meet_every_point_and_kill_the_driver_in_a_fifth_of_all_kills(others):
    plan = [each for seed in range(10) for each in plans(seed, others)]
    assert len(plan) == 100
    assert set(plan) == {*POINTS, "driver", JVM, *others} - {AT_A_POINT}
    assert sum(each in OF_DRIVER for each in plan) >= 20


@pytest.fixture
def driver(shop: Shop, tmp_path: Path):
    with driving(shop, tmp_path, APP) as driver:
        yield driver


def test_a_driver_that_slept_ends_when_it_wakes_and_its_successor_loses_nothing(shop, driver, tmp_path):
    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)

    def read() -> int:
        return min(sum(shop.committed(view).get("orders", {}).values()) for view in VIEWS)

    driver.keep()
    (tmp_path / "successor").mkdir()
    successor = Driver(shop, tmp_path / "successor", APP)
    successor.prepare()
    shop.send_to("orders", orders(100))
    wait_until(lambda: read() == 100, LIMIT_S, "the first batches")
    driver.signal(signal.SIGSTOP)
    try:
        successor.keep()
        shop.send_to("orders", orders(100, start=100))
        wait_until(lambda: successor.keep() or read() == 200, LIMIT_S, "the successor's batches")
        driver.signal(signal.SIGCONT)
        shop.send_to("orders", orders(100, start=200))
        wait_until(lambda: driver.process.poll() is not None, LIMIT_S, "the end of the one that slept")
        assert "run by another driver" in driver.log.read_text()
        wait_until(lambda: successor.keep() or read() == 300, LIMIT_S, "the successor's last batches")
    finally:
        successor.end()
    assert faults(shop, 300) == {}
