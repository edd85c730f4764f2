"""On three brokers and two workers, each loss made up for: every row in the sinks is what a batch over the log says.

CLUSTER_SEED is the first seed, CLUSTER_LOSSES the number of losses; each seed is four of them, in an order of its own.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from headwater.client.client import Client, admin, producer
from headwater.config import Settings, load
from headwater.declare.schema import encode, key_text
from headwater.node.processes import end_marked
from support.ordershop import orders
from support.servers import wait_until

FIRST_SEED = int(os.environ.get("CLUSTER_SEED", "0"))
LOSSES_PER_SEED = 4
LOSSES = int(os.environ.get("CLUSTER_LOSSES", str(LOSSES_PER_SEED)))
SEEDS = range(FIRST_SEED, FIRST_SEED + max(LOSSES // LOSSES_PER_SEED, 1))
COMMAND = Path(__file__).parents[2] / "deploy" / "cluster"
LIMIT_S = 240
REFUSED_S = 5.0
"""How long a write is watched that must not be acknowledged."""
ORDERS_A_TIME = 20

pytestmark = [
    pytest.mark.skipif(
        not {"TEST_CLUSTER", "CLUSTER_LOSSES"} & os.environ.keys(),
        reason="a cluster and four losses take six minutes and more, root, and the memory of nine JVMs: TEST_CLUSTER=1",
    ),
    pytest.mark.timeout(3600),
]

APP = """
from pathlib import Path

import headwater as hw
from pyspark.sql import functions as F

from order import Order, upper

app = hw.App("shop")
app.stream("orders", Order, key="customer_id", time="at", topic="{topic}")


@app.view(key="customer_id", name="{topic}.counted")
def counted(orders):
    return hw.count(orders, "customer_id", column="n")


@app.view(key="country", name="{topic}.by_country")
def by_country(orders):
    country = F.udf(upper)("country").alias("country")
    return orders.groupBy(country).agg(F.count("*").alias("n"), F.sum("cents").alias("cents"))


store = Path(__file__).with_name("shop.db")
app.sink("{topic}.counted", hw.sink.Sqlite(store, table="counted"))
app.sink("{topic}.by_country", hw.sink.Sqlite(store, table="by_country"))
"""
BESIDE = """
from datetime import datetime

import headwater as hw


class Order(hw.Event):
    order_id: int
    customer_id: int
    country: str
    cents: int
    at: datetime


def upper(name):
    return name.upper()
"""
"""A module beside the application file: executors run its function."""
TABLES = {"counted": ("customer_id", "n"), "by_country": ("country", "n", "cents")}
QUESTIONS_S = 30
"""What a pipeline's question to the log may take, whichever broker leads its partitions."""


class Cluster:
    """What ``deploy/cluster`` has started, and the settings that it gives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.call("up")
        self.settings: Settings = load(folder / "headwater.toml", {})
        self.log = self.settings.access

    def call(self, what: str, *part: str) -> str:
        done = subprocess.run(
            [COMMAND, what, self.folder, *part], capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr + self._said(part)
        return done.stdout

    def _said(self, parts: tuple[str, ...]) -> str:
        logs = [self.folder / "logs" / f"{part}.log" for part in parts]
        return "\n".join(f"{log.name}: … {log.read_text()[-3000:]}" for log in logs if log.exists())

    def out_of_sync(self) -> list[str]:
        """The partitions that lack a replica."""
        topics = admin(self.log).list_topics(timeout=10).topics.values()
        return [
            f"{topic.topic}-{number}"
            for topic in topics
            for number, partition in topic.partitions.items()
            if len(partition.isrs) < 3 or partition.leader < 0
        ]

    def complete(self) -> bool:
        try:
            return not self.out_of_sync() and "is away" not in self.call("status")
        except KafkaException:
            return False


class Traffic:
    """Orders a few at a time until the end; each is written once, however long the log is away."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self.sent = self.acknowledged = 0
        self._producer = producer(cluster.log, **{"message.timeout.ms": 900_000})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def next(self) -> int:
        """How many there are once more of them were sent."""
        return self.sent + ORDERS_A_TIME

    def end(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert self._producer.flush(LIMIT_S) == 0
        assert self.acknowledged == self.sent

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            for order in orders(ORDERS_A_TIME, start=self.sent):
                key = key_text([order.customer_id])
                self._producer.produce(self.topic, encode(order), key, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: object, _: object) -> None:
        self.acknowledged += error is None


class Shop:
    """The application as a user runs it: ``headwater up``, with the settings of the cluster."""

    def __init__(self, cluster: Cluster, folder: Path, topic: str) -> None:
        self.app = write_app(folder, topic)
        self.log = folder / "up.log"
        self.environ = os.environ | cluster.settings.environ() | {"HEADWATER_CONSOLE_PORT": "0"}
        self._cluster = cluster
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headwater", "up", str(self.app)],
                env=self.environ,
                stdout=out,
                stderr=out,
                cwd=folder,
            )
        self._alive_until(lambda: "console" in self.log.read_text(), "the application")

    def rows(self, table: str) -> list[tuple]:
        columns = ", ".join(TABLES[table])
        with contextlib.closing(sqlite3.connect(self.app.with_name("shop.db"))) as connection:
            try:
                return sorted(connection.execute(f"SELECT {columns} FROM {table}"))
            except sqlite3.OperationalError:
                return []

    def counts(self) -> list[int]:
        """How many orders each table has taken in."""
        return [sum(row[1] for row in self.rows(table)) for table in TABLES]

    def reach(self, count: int, what: str) -> None:
        """Waits until the tables have so many orders."""
        self._alive_until(lambda: min(self.counts()) >= count, f"{count} orders after {what}")

    def kill_driver(self) -> None:
        """The driver's Python, its JVM, and what they have started on this machine."""
        end_marked(f"{self._cluster.settings.data}/pipeline")

    def batch(self, folder: Path) -> dict[str, dict[str, dict]]:
        """The answer of a batch over the whole log, on this machine's own Spark."""
        out = folder / "batch.json"
        local = {"HEADWATER_SPARK": "local[2]", "HEADWATER_VIEW_TABLES": f"sqlite:{folder}/views"}
        local |= {"HEADWATER_SPARK_OPTIONS": "{}"}
        command = [sys.executable, "-m", "headwater", "batch", str(self.app), str(out)]
        subprocess.run(command, env=self.environ | local, check=True, timeout=LIMIT_S, capture_output=True)
        return json.loads(out.read_text())

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)

    def _alive_until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or self._process.poll() is not None, LIMIT_S, what)
        assert self._process.poll() is None, self.log.read_text()


def write_app(folder: Path, topic: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "order.py").write_text(BESIDE)
    (folder / "app.py").write_text(APP.format(topic=topic))
    return folder / "app.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Below a folder that every user can reach; pytest's own are closed to the workers."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-cluster-"))
    folder.chmod(0o755)
    try:
        yield Cluster(folder)
    finally:
        subprocess.run([COMMAND, "down", folder], check=True, timeout=LIMIT_S)
        shutil.rmtree(folder)


def lose_broker(cluster: Cluster, shop: Shop, traffic: Traffic, chance: random.Random) -> None:
    part = f"broker-{chance.randint(1, 3)}"
    cluster.call("kill", part)
    shop.reach(traffic.next, f"the loss of {part}")
    cluster.call("start", part)


def lose_insync_replicas(cluster: Cluster, shop: Shop, traffic: Traffic, chance: random.Random) -> None:
    """Two of three brokers are away: nothing is acknowledged, and nothing is lost."""
    parts = chance.sample(["broker-1", "broker-2", "broker-3"], 2)
    cluster.call("kill", *parts)
    probe = producer(cluster.log)
    probe.produce("refused", b"a record for which there are too few replicas")
    assert probe.flush(REFUSED_S) == 1
    probe.purge()
    cluster.call("start", *parts)
    shop.reach(traffic.next, f"the loss of {parts}")


def lose_worker(cluster: Cluster, shop: Shop, traffic: Traffic, chance: random.Random) -> None:
    part = f"worker-{chance.randint(1, 2)}"
    cluster.call("kill", part)
    shop.reach(traffic.next, f"the loss of {part}")
    cluster.call("start", part)


def lose_driver(cluster: Cluster, shop: Shop, traffic: Traffic, chance: random.Random) -> None:
    shop.kill_driver()
    shop.reach(traffic.next, "the loss of the driver")


def test_a_question_is_answered_by_the_brokers_that_lead_now(cluster):
    client = Client(cluster.log, timeout_s=QUESTIONS_S)
    client.ensure_topics(["asked"], 6)
    before = client.end_offsets(["asked"])
    cluster.call("kill", "broker-2")
    assert client.end_offsets(["asked"]) == before
    client.close()
    cluster.call("start", "broker-2")
    wait_until(cluster.complete, LIMIT_S, "all replicas")


def test_a_folder_of_the_driver_alone_is_refused(cluster, tmp_path):
    app = write_app(tmp_path / "app", "refused")
    settings = cluster.settings.environ() | {"HEADWATER_VIEW_TABLES": f"sqlite:{tmp_path}/views"}
    command = [sys.executable, "-m", "headwater", "run", str(app), "--once"]
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "do not share the driver's folder of checkpoints" in done.stderr
    assert "may not be written, for user " in done.stderr


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_the_batch_answer_whatever_the_cluster_loses(cluster, tmp_path, seed):
    chance = random.Random(seed)
    losses = [lose_broker, lose_insync_replicas, lose_worker, lose_driver]
    chance.shuffle(losses)
    topic = f"orders-{seed}"
    Client(cluster.log).ensure_topics([topic, "refused"], 2)
    shop = Shop(cluster, tmp_path / "app", topic)
    traffic = Traffic(cluster, topic)
    try:
        shop.reach(ORDERS_A_TIME, "the start")
        wait_until(lambda: private_copies(cluster) == {"worker-1", "worker-2"}, LIMIT_S, "copies of state")
        for lose in losses:
            lose(cluster, shop, traffic, chance)
            wait_until(
                cluster.complete, LIMIT_S, f"seed {seed}: all parts and replicas after {lose.__name__}"
            )
        traffic.end()
        shop.reach(traffic.sent, "the end")
    finally:
        code = shop.end()
    assert code == 0, shop.log.read_text()

    sent = orders(traffic.sent)
    by_customer = Counter(order.customer_id for order in sent)
    assert shop.rows("counted") == sorted(by_customer.items()), f"seed {seed}"
    answers = shop.batch(tmp_path)
    for table, columns in TABLES.items():
        answer = sorted(
            tuple(row[column] for column in columns) for row in answers[f"{topic}.{table}"].values()
        )
        assert shop.rows(table) == answer, f"seed {seed}: {table}"


def private_copies(cluster: Cluster) -> set[str]:
    """The workers in whose own folders there are copies of state; the driver must have none."""
    assert not (cluster.settings.data / "copies").exists()
    found = cluster.folder.glob("worker-*/scratch/**/headwater-copies")
    return {path.relative_to(cluster.folder).parts[0] for path in found}
