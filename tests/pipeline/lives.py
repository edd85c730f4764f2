"""Lives: a pipeline under load whose parts are killed -9, one after the other.

A seed decides what is killed and when. Kills of workers, executors and the broker share a life of the driver; the wait after each is
for what it must lead to: all views have published all that was sent. What a kill at a named point ends is where the point is.
"""

import os
import random
import signal
import time
from typing import Protocol

from headwater.pipeline.kill_points import POINTS
from pipeline.driver import Driver
from support.servers import BrokerProcess, KafkaProcess, wait_until

__all__ = ["IN_DRIVER", "JVM", "KILLS_PER_SEED", "OF_DRIVER", "Life", "Load", "plans"]

KILLS_PER_SEED = 10
LIMIT_S = 180
IN_WORKERS = tuple(point for point in POINTS if point.startswith(("state", "shard")))
IN_DRIVER = tuple(point for point in POINTS if point not in IN_WORKERS)
LATE = "state files are merged"
"""Nothing is merged before a chain is long: it comes last."""
JVM = "driver's JVM"
"""Its Python half must not continue alone, nor its JVM: at a kill point Python is killed."""
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


class Load(Protocol):
    """What a life is about: an application, what is sent to it, and what it must have made of that in the end."""

    app: str
    views: tuple[str, ...]

    def make(self) -> None:
        """Makes the topics that are sent to."""
        ...

    def send(self, chance: random.Random) -> None:
        """Sends a little more."""
        ...

    def caught_up(self) -> bool:
        """Whether the views have published all that was sent."""
        ...

    def faults(self) -> dict[str, list[str]]:
        """What is wrong with each view; nothing is the aim."""
        ...


class Life:
    """Sends, kills, and waits until that is made up for."""

    def __init__(self, seed: int, load: Load, driver: Driver, broker: BrokerProcess | KafkaProcess) -> None:
        self.killed: list[str] = []
        self.seconds: list[float] = []
        """What each kill took, up to the point where it was made up for."""
        self._load = load
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
        self._load.send(self._chance)

    def catch_up(self, what: str) -> None:
        wait_until(
            lambda: self._driver.keep() or self._load.caught_up(), LIMIT_S, f"{what}; {self._driver.said()}"
        )

    def _kill_at(self, point: str) -> None:
        """The process that passes a point ends itself there; records are sent until one does."""
        times = 1 if point == LATE else self._chance.randint(1, len(self._load.views))
        part = self._driver.crash_file.with_suffix(".part")
        part.write_text(f"{point}#{times}")
        part.rename(self._driver.crash_file)

        def killed() -> bool:
            if self._load.caught_up() and self._driver.crash_file.exists():
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
