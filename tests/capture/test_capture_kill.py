"""Whatever is killed, and whenever: the topics have every change of the database once, and their tables are its tables.

``CRASH_SEED`` and ``CRASH_ROUNDS`` ask for more kills than the few of an ordinary run; ten of them share a database.
"""

import os
import random
import signal
from pathlib import Path

import psycopg
import pytest

from support.captured import CaptureProcess, Unknown, database, events, once_in_order, table
from support.captureload import TABLES, Workload, kill_often, make
from support.databases import PostgresProcess
from support.servers import wait_until

SEED = int(os.environ.get("CRASH_SEED", "0"))
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "3"))
PER_SEED = 10


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
    once_in_order(found)
    for each in TABLES:
        source = source_rows(url, each)
        try:
            got = {row["id"]: row for row in table(found, f"{name}.public.{each}").values()}
        except Unknown:  # until a truncate has come that explains it
            return False
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


def captured_process(folder: Path, name: str, url: str, log: str) -> CaptureProcess:
    return CaptureProcess(folder, name, f"Postgres({url!r}, {list(TABLES)})", log)


def connections(url: str) -> set[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        return {pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_replication").fetchall()}


def kills(seed: int) -> int:
    return min(PER_SEED, ROUNDS - (seed - SEED) * PER_SEED)


@pytest.mark.parametrize("seed", range(SEED, SEED + -(-ROUNDS // PER_SEED)))
def test_whatever_is_killed_the_topics_have_every_change_once(seed, own_postgres, bootstrap, tmp_path):
    rng = random.Random(seed)
    url, name = database(own_postgres.url), f"kill{seed}x{os.getpid()}"
    make(url)
    capture = captured_process(tmp_path, name, url, bootstrap)

    def again() -> None:
        own_postgres.kill()
        own_postgres.start()

    with Workload(url, seed) as workload:
        kill_often(
            capture, workload, kills(seed), rng, connections=lambda: connections(url), kill_database=again
        )
    wait_until(lambda: same(bootstrap, name, url), 90, "the topics to have all of the database")
    assert capture.end(signal.SIGTERM) == 0, capture.log.read_text()[-3000:]
    assert same(bootstrap, name, url)
