"""Feed: the generator as a program of its own. It sends the day's records to the log, and its rows to the SQLite file.

    python feed.py BOOTSTRAP FOLDER MINUTES RATE SEED

``FOLDER/feed.json`` says every second how far it is: what was sent, and what the log has acknowledged, by topic, with the sum of
the CRCs of the values. A log that is away slows nothing down: the client keeps the records and sends them later, in order.
"""

import sqlite3
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

import msgspec

from headwater.client.client import producer
from plan import Plan
from traffic import StockChange, change, steps

PATIENCE_MS = 3_600_000
"""How long a record waits for a log that is away. No check may depend on the speed of a machine."""
PAUSE_S = 0.05
REPORT_S = 1.0


class Report(msgspec.Struct):
    """What is known at one moment."""

    sent: int = 0
    ended: bool = False
    acknowledged: dict[str, int] = {}
    checksums: dict[str, int] = {}
    """By topic, the sum of the CRC-32 of the acknowledged values."""
    lost: list[str] = []
    transactions: int = 0
    """Of the SQLite file."""


class Feed:
    """One run of the generator."""

    def __init__(self, bootstrap: str, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self._file = folder / "feed.json"
        self._database = sqlite3.connect(folder / "warehouse.db", timeout=600, isolation_level="IMMEDIATE")
        self._counts: Counter[str] = Counter()
        self._checksums: Counter[str] = Counter()
        self._report = Report()
        self._said = 0.0
        self._producer = producer(
            bootstrap,
            **{"on_delivery": self._delivered, "message.timeout.ms": PATIENCE_MS, "linger.ms": 50},
        )

    def run(self) -> None:
        begun = time.monotonic()
        for step in steps(self._plan):
            while (ahead := step.wall - (time.monotonic() - begun)) > 0:
                self._producer.poll(min(ahead, PAUSE_S))
                self._tell()
            if isinstance(step, StockChange):
                change(self._database, step.rows)
                self._report.transactions += 1
            else:
                self._send(step.topic, step.key, step.value)
        while self._producer.flush(1):
            self._tell()
        self._report.ended = True
        self._tell(now=True)

    def _send(self, topic: str, key: bytes, value: bytes | None) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key)
            except BufferError:
                self._producer.poll(PAUSE_S)
            else:
                self._report.sent += 1
                return

    def _delivered(self, error, message) -> None:
        if error is not None:
            self._report.lost.append(f"{message.topic()}: {error.str()}")
            return
        self._counts[message.topic()] += 1
        self._checksums[message.topic()] += zlib.crc32(message.value() or b"")

    def _tell(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._said < REPORT_S:
            return
        self._said = time.monotonic()
        self._report.acknowledged, self._report.checksums = dict(self._counts), dict(self._checksums)
        fresh = self._file.with_suffix(".part")
        fresh.write_bytes(msgspec.json.encode(self._report))
        fresh.replace(self._file)


def read(folder: Path) -> Report:
    """The last report; an empty one before the first."""
    file = folder / "feed.json"
    return msgspec.json.decode(file.read_bytes(), type=Report) if file.exists() else Report()


if __name__ == "__main__":
    address, place, minutes, rate, seed = sys.argv[1:]
    Feed(address, Path(place), Plan(float(minutes), float(rate), int(seed))).run()
