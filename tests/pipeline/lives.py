"""Lives: a pipeline under load whose parts are killed -9, one after the other, and what it has left behind in the end.

A seed decides what is killed and when. Kills of workers, executors and the broker share a life of the driver; the wait after each is
for what it must lead to: all views have published all that was sent. What a kill at a named point ends is where the point is.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headwater.client import Client
from headwater.pipeline.points import POINTS
from headwater.pipeline.state import Place, Shard
from headwater.result import Chain, Result
from ordershop import Order, Shop, orders
from pipeline.driver import Driver
from pipeline.told import Published, complaints
from servers import BrokerProcess, KafkaProcess, wait_until

__all__ = [
    "APP",
    "IN_DRIVER",
    "KILLS_PER_SEED",
    "VIEWS",
    "Life",
    "answer",
    "faults",
    "left",
    "plans",
    "run_folder",
]

KILLS_PER_SEED = 10
LIMIT_S = 180
VIEWS = ("by_country", "by_order", "counted")
APP = """
    import headwater as hw
    from ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("by_order", "SELECT order_id, country, cents FROM orders", key="order_id")


    @app.view(key="country")
    def by_country(orders):
        found = hw.latest(orders, "order_id", time="at").groupBy("country")
        return found.agg({"cents": "sum", "*": "count"}).toDF("country", "cents", "n")


    @app.view(key="customer_id")
    def counted(orders):
        return hw.count(orders, "customer_id", column="n")
"""
IN_WORKERS = tuple(point for point in POINTS if point.startswith(("state", "shard")))
IN_DRIVER = tuple(point for point in POINTS if point not in IN_WORKERS)
LATE = "state files are merged"
"""Nothing is merged before a chain is long: it comes last."""
JVM = "driver's JVM"
"""Its Python half must not go on alone, nor the other way round: at a point it is Python that is killed."""
OF_DRIVER = {"driver", JVM, *IN_DRIVER}
DRIVER_KILLS = (2, 3)
"""Of the ten of a seed, in turn: each costs a start of Spark."""


def plans(seed: int, others: tuple[str, ...], kills: int = KILLS_PER_SEED) -> list[str]:
    """What a seed kills, in order: a point's name, or driver, its JVM, worker, executor, broker at a moment of its own.

    Points take turns from seed to seed, so that ten seeds meet each of them.
    """
    chance = random.Random(seed)
    turns = ["driver", *IN_DRIVER[:4], JVM, *IN_DRIVER[4:]]
    before = sum(DRIVER_KILLS) * (seed // 2) + DRIVER_KILLS[0] * (seed % 2)
    of_driver = [turns[(before + n) % len(turns)] for n in range(DRIVER_KILLS[seed % 2])]
    rest = [
        others[n % len(others)]
        if others[n % len(others)] != "worker at a point"
        else IN_WORKERS[(seed + n) % len(IN_WORKERS)]
        for n in range(kills - len(of_driver))
    ]
    chosen = [*of_driver, *rest]
    chance.shuffle(chosen)
    return sorted(chosen, key=LATE.__eq__)


class Life:
    """Sends, kills, and waits until that is made up for."""

    def __init__(self, seed: int, shop: Shop, driver: Driver, broker: BrokerProcess | KafkaProcess) -> None:
        self.sent = 0
        self.killed: list[str] = []
        self.seconds: list[float] = []
        """What each kill took, up to the point where it was made up for."""
        self._shop = shop
        self._driver = driver
        self._broker = broker
        self._chance = random.Random(seed)

    def run(self, plan: list[str]) -> None:
        restarts = sum(each in OF_DRIVER for each in plan)
        for each in plan:
            began = time.monotonic()
            if self._driver.starts <= restarts:
                self._driver.prepare()
            self._driver.keep()
            if each in POINTS:
                self._kill_at(each)
            else:
                self._kill(each)
            self.killed.append(each)
            self.catch_up(f"what was sent before a kill: {each}")
            self.seconds.append(round(time.monotonic() - began, 1))

    def send(self) -> None:
        count = self._chance.randint(1, 40)
        self._shop.send_to("orders", orders(count, start=self.sent))
        self.sent += count

    def catch_up(self, what: str) -> None:
        wait_until(
            lambda: self._driver.keep() or self._caught_up(), LIMIT_S, f"{what}; {self._driver.said()}"
        )

    def _caught_up(self) -> bool:
        return all(sum(self._shop.committed(view).get("orders", {}).values()) == self.sent for view in VIEWS)

    def _kill_at(self, point: str) -> None:
        """The process that passes a point ends itself there; records are sent until one does."""
        times = 1 if point == LATE else self._chance.randint(1, len(VIEWS))
        part = self._driver.crash_file.with_suffix(".part")
        part.write_text(f"{point}#{times}")
        part.rename(self._driver.crash_file)

        def killed() -> bool:
            if self._caught_up() and self._driver.crash_file.exists():
                self.send()
            self._driver.keep()
            return not self._driver.crash_file.exists()

        self.send()
        wait_until(killed, LIMIT_S, f"a kill at {point!r}")

    def _kill(self, target: str) -> None:
        """At a moment of the seed's own while batches run."""
        if target in {"worker", "executor"}:
            self.send()
            self.catch_up("the first batches")
        for _ in range(self._chance.randint(1, 3)):
            self.send()
            time.sleep(self._chance.uniform(0, 0.4))
        if target == "broker":
            self._broker.end(signal.SIGKILL)
            self._broker.start()
        elif target == "driver":
            self._driver.kill()
        elif target == JVM:
            self._kill_jvm()
        else:
            found = self._driver.workers() if target == "worker" else self._driver.executors()
            os.kill(self._chance.choice(found), signal.SIGKILL)

    def _kill_jvm(self) -> None:
        assert self._driver.process is not None
        rest = self._driver.process
        wait_until(self._driver.java, LIMIT_S, "the driver's JVM")
        os.kill(self._driver.java()[0], signal.SIGKILL)
        wait_until(lambda: rest.poll() is not None, LIMIT_S, "the driver's end after that of its JVM")


def faults(shop: Shop, sent: int) -> dict[str, list[str]]:
    """What is wrong with each view; nothing is the aim."""
    found = {view: complaints(left(shop, view, orders(sent))) for view in VIEWS}
    return {view: said for view, said in found.items() if said}


def run_folder(shop: Shop, view: str, run: str) -> Path:
    """Where a run of a view has its checkpoint and its state files."""
    folder = shop.settings.data.absolute() / "checkpoints" / view
    return folder / run if (folder / run).exists() else folder


def left(shop: Shop, view: str, sent: list[Order]) -> Published:
    """Everything that a view has left in the log and on the disk, beside what it should be."""
    client = Client(shop.bootstrap)
    records = [
        (m.partition(), m.offset(), m.key().decode(), msgspec.json.decode(m.value() or b"null"))
        for m in client.read([view])
    ]
    results = [msgspec.json.decode(message.value()) for message in client.read([f"{view}.progress"])]
    last = msgspec.convert(results[-1], Result, strict=False)
    folder = run_folder(shop, view, last.run)

    def state(operator: str, decode: Callable[[bytes], Any]) -> dict[str, Any]:
        return {key.decode(): decode(value) for key, value in _items(folder, operator, last.state[operator])}

    inner = {name: state(name, DECODERS[name]) for name in last.state if name != "publish"}
    return Published(
        records,
        results,
        state("publish", msgspec.json.decode),
        answer(view, sent),
        inner,
        {name: table for name, table in inner_answer(sent).items() if name in inner},
    )


def _items(folder: Path, operator: str, chains: list[Chain]) -> list[tuple[bytes, bytes]]:
    """Read from the files alone, which are checked on the way: a copy of its own is made."""
    place = Place(str(folder / "shards" / operator), str(folder / "check" / operator))
    return [item for number, chain in enumerate(chains) for item in Shard(place, number, chain).items()]


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "count1": int.from_bytes,
    "latest1": lambda value: msgspec.msgpack.decode(value)[1:5],
}


def answer(view: str, sent: list[Order]) -> dict[str, dict[str, Any]]:
    """The batch answer, in plain Python."""
    table: dict[str, dict[str, Any]] = {}
    for order in sent:
        if view == "by_order":
            row = {"order_id": order.order_id, "country": order.country, "cents": order.cents}
            table[str(order.order_id)] = row
        elif view == "by_country":
            row = table.setdefault(order.country, {"country": order.country, "cents": 0, "n": 0})
            row["cents"] += order.cents
            row["n"] += 1
        else:
            row = table.setdefault(str(order.customer_id), {"customer_id": order.customer_id, "n": 0})
            row["n"] += 1
    return table


def inner_answer(sent: list[Order]) -> dict[str, dict[str, Any]]:
    """What the state of the operators inside the views must be, by operator and key."""
    rows = {str(each.order_id): [each.order_id, each.customer_id, each.country, each.cents] for each in sent}
    return {"count1": {key: row["n"] for key, row in answer("counted", sent).items()}, "latest1": rows}
