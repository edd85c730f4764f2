"""One probe of make bench-commits: CPU-seconds of the code that PYTHONPATH names, as one line of JSON.

log      of the broker: millions of records in and out, in small batches, in transactions, into a compacted topic
stage    of Spark and its workers: words counted by an operator of ours, and windows, both published once
capture  of the capturing process: rows of PostgreSQL and MariaDB, from their logs and as snapshots
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import capture
import load
import stage
from beside import Ours, cpu_seconds
from embedded import embedded, write
from headwater.client.client import Client
from headwater.pipeline.build import inputs
from support.servers import BrokerProcess

RECORDS = 5_000_000
KEYED = 500_000
ROWS = 300_000
WORDS = 500_000
CAPTURED = {"PostgreSQL": capture.Postgres, "MariaDB": capture.MariaDB}


def log() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "data")
        broker.start()
        try:
            return _log(broker)
        finally:
            broker.end(signal.SIGTERM)


def _log(broker: BrokerProcess) -> dict[str, float]:
    where, found = broker.bootstrap, {}

    def cost(what: str, work: Callable[[], object]) -> None:
        before = cpu_seconds([broker.pid])
        work()
        found[what] = cpu_seconds([broker.pid]) - before

    topic = load.new_topic(where)
    load.produce(where, topic, RECORDS // 5)
    cost("5 million records in", lambda: load.produce(where, topic, RECORDS))
    cost("5 million records out", lambda: load.consume(where, topic, RECORDS))
    cost("5,000 records one by one, in and out", lambda: load.latencies(where, 5_000))
    cost("2,000 transactions of 100 records", lambda: load.transactions(where, 2_000))
    name = "compacted"
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
    Client(where).ensure_topics([name], 1, settings)
    rows = [(b"key-%d" % (n % 1000), b'{"n":%d,"text":"%s"}' % (n, b"x" * 60)) for n in range(KEYED)]
    cost("1.5 million records into a compacted topic", lambda: [write(where, name, rows) for _ in range(3)])
    return found


def staged() -> dict[str, float]:
    found: dict[str, float] = {}
    with embedded() as (broker, settings):
        ours = Ours(settings)
        stage.fill(broker.bootstrap, "words", (n * 7_919 % WORDS for n in range(WORDS)))
        stage.fill(broker.bootstrap, "timed", (n * 7_919 % WORDS for n in range(WORDS)), seconds=True)
        inputs.BATCH_RECORDS_MAX = 100_000
        ways: dict[str, Callable[[], object]] = {
            "500,000 words counted": lambda: stage.ours(settings, "words", stage.tier_two),
            "500,000 rows in windows": lambda: stage.ours(
                settings, "timed", stage.windows, key=("window", "word")
            ),
        }
        for number in range(3):
            for what, way in ways.items():
                before = cpu_seconds([os.getpid(), *ours.processes])
                way()
                spent = cpu_seconds([os.getpid(), *ours.processes]) - before
                if number:  # the first one is for the compiler of the JVM
                    found[what] = found.get(what, 0) + spent
    return found


def captured() -> dict[str, float]:
    found = {}
    for name, kind in CAPTURED.items():
        server = kind()
        with tempfile.TemporaryDirectory() as folder:
            broker = BrokerProcess(Path(folder) / "data", "--flush", "commit")
            broker.start()
            try:
                server.prepare(ROWS, 1_000, 1)
                server.begin("stream0", broker.bootstrap)
                for what in ("stream", "snapshot"):
                    before = capture.used_s()
                    capture.published(server, f"{what}0", broker.bootstrap, ROWS)
                    found[f"300,000 rows of {name}, {what}"] = capture.used_s() - before
            finally:
                broker.end()
                server.end()
    return found


PROBES = {"log": log, "stage": staged, "capture": captured}


if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]]()))
