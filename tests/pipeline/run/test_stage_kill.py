"""Kill -9 at each named point of the batch protocol and at random: every batch happens once, whole, and state equals output.

CRASH_SEED is the first seed, CRASH_ROUNDS the number of kills; each seed is ten of them. CRASH_KIND is ``stage`` for streams of orders and
``joins`` for tables and streams that are joined, on the embedded log; ``-kafka`` at its end is for Apache Kafka, ``-executor`` for executors
that are processes of their own. Without it both loads are killed a few times. What was killed is written to the file CRASH_TALLY.
"""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from headwater.operate.log.ledger import accounts
from headwater.pipeline.kill_points import POINTS
from pipeline.driver import Driver, driving, own_shop, spark_home
from pipeline.lives import JVM, KILLS_PER_SEED, OF_DRIVER, Life, Load, plans
from pipeline.orderload import OrderLoad
from pipeline.tableload import Sale, TableLoad
from support.ordershop import Shop
from support.servers import BrokerProcess, KafkaProcess, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.own_spark, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("CRASH_ROUNDS", "10"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_SEED, 1))
LIMIT_S = 180
KIND = os.environ.get("CRASH_KIND", "")
KINDS = [(KIND, seed) for seed in SEEDS] if KIND else [("stage", FIRST_SEED), ("joins", FIRST_SEED)]
FEW = {
    "stage": ["state delta is written", "before commit", "broker", "worker", "after commit"],
    "joins": ["state delta is written", "before commit"],
}
"""What a load is killed by in the tests of every day; ``make test-faults`` kills it hundreds of times."""
SLOTS = ("local[2,4]", "local[1,4]", "local[3,4]")
"""Each start has another number of them."""
CLUSTER = ("local-cluster[2,1,1024]",)
AT_A_POINT = "worker at a point"
OTHERS = (AT_A_POINT, "broker", "worker", AT_A_POINT, "broker", AT_A_POINT, "worker", AT_A_POINT)
OF_A_CLUSTER = ("executor", AT_A_POINT, "executor", "worker", "executor", "broker", "executor", "executor")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[BrokerProcess | KafkaProcess]:
    """A log that a test may kill."""
    process = (
        KafkaProcess(tmp_path / "kafka")
        if KIND.endswith("-kafka")
        else BrokerProcess(tmp_path / "data", "--flush", "commit")
    )
    process.start()
    yield process
    process.end(signal.SIGKILL)


@pytest.fixture
def shop(log, tmp_path: Path) -> Shop:
    return own_shop(log, tmp_path)


@pytest.mark.parametrize(("kind", "seed"), KINDS)
def test_every_batch_happens_once_whatever_is_killed(kind, seed, shop, log, tmp_path):
    load: Load = TableLoad(shop) if kind.startswith("joins") else OrderLoad(shop)
    load.make()
    masters, others, environ = SLOTS, OTHERS, {}
    if kind.endswith("-executor"):
        masters, others, environ = CLUSTER, OF_A_CLUSTER, {"SPARK_HOME": str(spark_home(tmp_path))}
    began, found = time.monotonic(), {"all views": ["the seed did not come to its end"]}
    with driving(shop, tmp_path, load.app, masters, **environ) as driver:
        life = Life(seed, load, driver, log)
        try:
            life.run(plans(seed, others) if KIND else FEW[kind])
            driver.kill()
            found = load.faults() | ({} if kind.endswith("-executor") else unbalanced(shop))
        finally:
            tally(seed, life, began, found)

    assert found == {}


def unbalanced(shop: Shop) -> dict[str, list[str]]:
    """The faults of the account. The counts of an executor that is lost with a part of a batch remain, and the part is counted again."""
    said = [each.fault for each in accounts(shop.log) if each.fault]
    return {"the account": said} if said else {}


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


def test_the_load_of_tables_has_all_that_joins_can_get_wrong():
    """Rows that move, that go, that never were; a row that changes twice in a batch; versions that come after what they touch."""

    class Heard:
        changes: list[tuple[str, str, Any]]

        def send_records(self, records: Iterable[tuple[str, str, Any, datetime]]) -> None:
            self.changes = [(topic, key, event) for topic, key, event, _ in records]

    heard, chance = Heard(), random.Random(0)
    load = TableLoad(cast("Shop", heard))
    seen, rows, met = set(), dict[tuple[str, str], Any](), list[Sale]()
    for _ in range(30):
        load.send(chance)
        twice = Counter((topic, key) for topic, key, _ in heard.changes)
        seen |= {"twice" for times in twice.values() if times > 1}
        for topic, key, event in heard.changes:
            before = rows.get((topic, key))
            met += [event] if topic == "sales" else []
            seen |= {"never there"} if event is None and before is None else set()
            seen |= {"gone"} if event is None and before is not None else set()
            if topic == "orders" and event and before and event.customer_id != before.customer_id:
                seen |= {"moved"}
            if topic == "rates" and event and any(event.valid_from <= each.at for each in met):
                seen |= {"late version"}
            rows[topic, key] = event
    assert seen == {"gone", "late version", "moved", "never there", "twice"}
    answers = load.answers()
    assert len(answers["by_region"]) == 4
    assert any(row["click_id"] is None for row in answers["answers"].values())
    assert any(row["percent"] is not None for row in answers["taxed"].values())


@pytest.fixture
def driver(shop: Shop, tmp_path: Path):
    with driving(shop, tmp_path, OrderLoad.app) as driver:
        yield driver


def test_a_driver_that_slept_ends_when_it_wakes_and_its_successor_loses_nothing(shop, driver, tmp_path):
    load = OrderLoad(shop)
    load.make()
    driver.keep()
    (tmp_path / "successor").mkdir()
    successor = Driver(shop, tmp_path / "successor", OrderLoad.app)
    successor.prepare()
    load.send_many(100)
    wait_until(load.caught_up, LIMIT_S, "the first batches")
    driver.signal(signal.SIGSTOP)
    try:
        successor.keep()
        load.send_many(100)
        wait_until(lambda: successor.keep() or load.caught_up(), LIMIT_S, "the successor's batches")
        driver.signal(signal.SIGCONT)
        load.send_many(100)
        wait_until(lambda: driver.process.poll() is not None, LIMIT_S, "the end of the one that slept")
        assert "run by another driver" in driver.log.read_text()
        wait_until(lambda: successor.keep() or load.caught_up(), LIMIT_S, "the successor's last batches")
    finally:
        successor.end()
    assert load.faults() == {}
