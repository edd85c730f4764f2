"""A transaction of very many rows: it is in the log once, wherever its capture is killed, and never in memory.

``CAPTURE_ROWS=5000000`` for the whole promise about memory; ``make test-faults KIND=capture-large`` kills within a million rows.
"""

import json
import logging
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from headwater.client.client import Client
from support.captured import CaptureProcess, committed, database, execute
from support.capturedb import Shop
from support.databases import PostgresProcess
from support.servers import wait_until

SEED = int(os.environ.get("CRASH_SEED", "0"))
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "2"))
PER_SEED = 5
ROWS = int(os.environ.get("CAPTURE_ROWS", "100000"))
MEMORY_MB = 200

logger = logging.getLogger(__name__)


class Database:
    """A table ``plain`` in a database, and its capture."""

    insert: str

    def __init__(self, declared: str, topic: str, folder: Path, log: str) -> None:
        self.log, self.name = log, f"large{os.urandom(4).hex()}"
        self.topic = f"{self.name}.{topic}"
        self.capture = CaptureProcess(folder, self.name, declared, log)

    def run(self, *statements: str) -> None:
        raise NotImplementedError

    def rows(self) -> int:
        """How many records were committed, the table's schema among them; less than none before the capture is at work."""
        state = committed(self.log, self.name)
        return -1 if state is None else state.rows


class InPostgres(Database):
    insert = "INSERT INTO plain SELECT i, 'row ' || i, i FROM generate_series(1, {rows}) i"

    def __init__(self, server: PostgresProcess, folder: Path, log: str) -> None:
        self._url = database(server.url)
        self.run("CREATE TABLE plain (id int PRIMARY KEY, a text, n int)")
        super().__init__(f"Postgres({self._url!r}, ['plain'])", "public.plain", folder, log)

    def run(self, *statements: str) -> None:
        execute(self._url, *statements)


class InMariaDB(Database):
    insert = "INSERT INTO plain SELECT seq, concat('row ', seq), seq FROM seq_1_to_{rows}"

    def __init__(self, server, folder: Path, log: str) -> None:
        self._shop = Shop(server, "large")
        self.run("CREATE TABLE plain (id int PRIMARY KEY, a varchar(40), n int)")
        super().__init__(f"MariaDB({server.url!r}, ['large.plain'])", "large.plain", folder, log)

    def run(self, *statements: str) -> None:
        self._shop.run(*statements)


@pytest.fixture(params=["postgres", "mariadb"])
def captured(request, broker, tmp_path):
    server = request.getfixturevalue(request.param)
    made = {"postgres": InPostgres, "mariadb": InMariaDB}[request.param](server, tmp_path, broker.bootstrap)
    made.capture.start()
    wait_until(lambda: made.rows() >= 0, 60, "the capture at work")
    yield made
    made.capture.end(signal.SIGKILL)


def test_memory_stays_flat_through_a_large_transaction(captured):
    captured.run(captured.insert.format(rows=ROWS))

    wait_until(lambda: captured.rows() >= ROWS, 60 + ROWS / 3_000, "the transaction in the log")
    peak = captured.capture.peak_mb
    logger.info("%s: %d rows, %.0f MB at most", type(captured).__name__, ROWS, peak)
    assert peak < MEMORY_MB


@pytest.mark.parametrize("seed", range(SEED, SEED + -(-ROUNDS // PER_SEED)))
def test_whatever_part_of_it_is_there_when_it_is_killed_all_of_it_comes_once(captured, seed):
    rng, client = random.Random(seed), Client(captured.log)
    records = ROWS + ROWS // 10

    def written() -> int:
        there = captured.topic in client.partitions()
        return sum(client.end_offsets([captured.topic], uncommitted=True).values()) if there else 0

    captured.run(
        "BEGIN",
        captured.insert.format(rows=ROWS),
        "SAVEPOINT half",
        f"UPDATE plain SET n = -1 WHERE id % 10 = 3 AND id > {ROWS // 2}",
        "ROLLBACK TO SAVEPOINT half",
        "UPDATE plain SET n = n + 1 WHERE id % 10 = 7",
        "COMMIT",
    )
    for _ in range(min(PER_SEED, ROUNDS - (seed - SEED) * PER_SEED)):
        before = written()
        least = before + rng.random() * records
        wait_until(
            lambda least=least: written() >= least or captured.rows() >= records,
            60 + ROWS / 3_000,
            "a part of the transaction",
        )
        logger.info("killed with %d records more than %d in the log", written() - before, before)
        captured.capture.end(signal.SIGKILL)
        captured.capture.start()
    wait_until(lambda: captured.rows() >= records, 60 + ROWS / 3_000, "the transaction in the log")

    found, rows = Counter[str](), {}
    for message in client.read([captured.topic]):
        event = json.loads(message.value())
        found[event["op"]] += 1
        rows[event["after"]["id"]] = event["after"]["n"]
    client.close()
    assert found == {"c": ROWS, "u": ROWS // 10}
    assert rows == {key: key + (key % 10 == 7) for key in range(1, ROWS + 1)}
