"""Whatever is killed, and whenever: the topics have every change of the database once, and their tables are its tables.

``CRASH_SEED`` and ``CRASH_ROUNDS`` ask for more kills than the few of an ordinary run; ten of them share a database.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from captured import database, events, table
from captureload import TABLES, Workload, make
from databases import PostgresProcess
from headwater.capture.ledger import last_state
from servers import wait_until

SEED = int(os.environ.get("CRASH_SEED", "0"))
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "3"))
PER_SEED = 10
LARGE_ROWS = int(os.environ.get("CAPTURE_ROWS", "100000"))
"""How many rows the large transaction has; ``CAPTURE_ROWS=5000000`` for the whole promise."""
MEMORY_MB = 200
APP = """
import headwater as hw

app = hw.App("kills")
app.capture({name!r}, hw.capture.Postgres({url!r}, tables=["plain", "whole", "fat"]))
"""


class Capture:
    """``headwater capture run`` as a user runs it."""

    def __init__(self, folder: Path, name: str, url: str, log: str) -> None:
        self._app = folder / "app.py"
        self._app.write_text(APP.format(name=name, url=url))
        self._name = name
        self._environ = os.environ | {
            "HEADWATER_LOG": f"kafka://{log}",
            "HEADWATER_STORE": f"sqlite:{folder / 'views'}",
        }
        self.log = folder / "capture.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "headwater", "capture", "run", self._name, str(self._app)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environ)

    @property
    def peak_mb(self) -> float:
        """The most memory that it has had at a time."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        self._process.send_signal(number)
        return self._process.wait(30)


@pytest.fixture
def own_postgres():
    process = PostgresProcess()
    process.start()
    yield process
    process.end()


def source_rows(url: str, name: str) -> dict[int, dict]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(f"SELECT * FROM {name}")
        names = [column.name for column in cursor.description]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


def same(log: str, name: str, url: str) -> bool:
    found = events(log, name)
    for each in TABLES:
        source = source_rows(url, each)
        got = {row["id"]: row for row in table(found, f"{name}.public.{each}").values()}
        if got.keys() != source.keys():
            return False
        # A column that was added is not in rows that were not written since.
        if any(
            row.get(column) != value
            for key, known in source.items()
            for row in [got[key]]
            for column, value in known.items()
        ):
            return False
    return True


def at_work(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        return bool(connection.execute("SELECT FROM pg_stat_replication").fetchall())


def kills(seed: int) -> int:
    return min(PER_SEED, ROUNDS - (seed - SEED) * PER_SEED)


@pytest.mark.parametrize("seed", range(SEED, SEED + -(-ROUNDS // PER_SEED)))
def test_whatever_is_killed_the_topics_have_every_change_once(seed, own_postgres, broker, tmp_path):
    rng = random.Random(seed)
    url, name = database(own_postgres.url), f"kill{seed}x{os.getpid()}"
    make(url)
    capture = Capture(tmp_path, name, url, broker.bootstrap)
    with Workload(url, seed) as workload:
        for number in range(kills(seed)):
            capture.start()
            wait_until(lambda: at_work(url), 60, "the capture at work")
            wanted = workload.transactions + rng.randint(0, 60)
            wait_until(lambda most=wanted: workload.transactions >= most, 60, "transactions")
            if number % 5 == 2:
                own_postgres.kill()
                own_postgres.start()
                assert capture.end(signal.SIGTERM) == 0
            else:
                capture.end(signal.SIGKILL)
        capture.start()
    wait_until(lambda: same(broker.bootstrap, name, url), 90, "the topics to have all of the database")
    assert capture.end(signal.SIGTERM) == 0, capture.log.read_text()[-3000:]
    assert same(broker.bootstrap, name, url)


def test_memory_stays_flat_through_a_large_transaction(own_postgres, broker, tmp_path):
    url, name = database(own_postgres.url), f"large{os.getpid()}"
    make(url)
    capture = Capture(tmp_path, name, url, broker.bootstrap)
    capture.start()
    wait_until(lambda: at_work(url), 60, "the capture at work")
    with psycopg.connect(url) as connection:
        connection.execute(
            f"INSERT INTO plain SELECT i, 'row ' || i, i FROM generate_series(10001, {10000 + LARGE_ROWS}) i"
        )

    def arrived() -> bool:
        state = last_state(broker.bootstrap, name)
        return state is not None and state.rows >= LARGE_ROWS

    wait_until(arrived, 60 + LARGE_ROWS / 3_000, "the transaction in the log")
    peak = capture.peak_mb
    assert capture.end(signal.SIGTERM) == 0, capture.log.read_text()[-3000:]
    assert peak < MEMORY_MB
