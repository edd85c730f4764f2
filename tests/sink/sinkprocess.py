"""Sinks in processes of their own, that tests kill and suspend; and what a sink must have done, from the log itself."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from headwater.client import Client

PROGRAM = """
import logging, signal, sys
from headwater.sink import Postgres, Sqlite, loop
from headwater.sink.store import Feed
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
loop.BATCH_RECORDS = 200
bootstrap, topic, where, append = sys.argv[1:]
target = Postgres(where) if where.startswith("postgresql") else Sqlite(where)
feed = Feed(topic + ".out", topic, ("id",), {"id": "STRING", "n": "BIGINT"}, append=append == "append")
running = loop.Loop(bootstrap, feed.sink, topic, target, lambda: feed, session_ms=1500)
signal.signal(signal.SIGTERM, lambda *_: running.stop())
running.run()
"""


class SinkProcess:
    """One process that runs a sink; members of one group share its partitions."""

    def __init__(self, bootstrap: str, topic: str, where: str, folder: Path, *, append: bool = False) -> None:
        self._arguments = [bootstrap, topic, where, "append" if append else "keyed"]
        self.log = folder / "sink.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-c", PROGRAM, *self._arguments]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(20)

    def end(self) -> int:
        """As an operator ends it; one that is suspended or gone is killed."""
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
            try:
                return self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait(20)


def faults(expected: Counter, found: Counter) -> list[str]:
    """What was lost and what is there too often, of rows that may occur several times; empty when all is well."""
    lost, doubled = expected - found, found - expected
    return [f"lost {row} {n}x" for row, n in lost.items()] + [
        f"{'doubled' if row in expected else 'invented'} {row} {n}x" for row, n in doubled.items()
    ]


def appended(bootstrap: str, topic: str) -> Counter:
    """Every record of a topic by its place and value: what an append sink must hold, once each."""
    return Counter(
        (record.partition(), record.offset(), record.value()) for record in Client(bootstrap).read([topic])
    )
