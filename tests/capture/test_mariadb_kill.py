"""Whatever is killed of a MariaDB capture, and whenever: the topics have every change of the database once, and their tables are its tables.

``CRASH_SEED`` and ``CRASH_ROUNDS`` ask for more kills than the few of an ordinary run; ten of them share a database.
"""

import os
import random
import signal

import pytest

from support.captured import CaptureProcess, events, once_in_order, table
from support.capturedb import Shop
from support.captureload import TABLES, MariaWorkload, kill_often
from support.databases import MariaDBProcess
from support.servers import wait_until

SEED = int(os.environ.get("CRASH_SEED", "0"))
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "3"))
PER_SEED = 10
UNSYNCED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")
"""What a killed server has written is there without a sync; only a power cut would show the difference."""


@pytest.fixture
def server():
    process = MariaDBProcess()
    process.start(*UNSYNCED)
    yield process
    process.end()


def made(server: MariaDBProcess) -> None:
    shop = Shop(server, "kills")
    shop.run(*(f"CREATE TABLE {each}(id int PRIMARY KEY, a text, n int)" for each in TABLES))
    shop.run("INSERT INTO plain SELECT seq, 'old', 0 FROM seq_1_to_20")
    shop.run("INSERT INTO fat SELECT seq, 'old', 0 FROM seq_1001_to_4000")
    shop.connection.close()


def asked(server: MariaDBProcess, query: str) -> list[dict]:
    with server.connect(database="kills") as connection, connection.cursor() as cursor:
        cursor.execute(query)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def same(log: str, name: str, server: MariaDBProcess) -> bool:
    found = events(log, name)
    once_in_order(found)
    for each in TABLES:
        source = {row["id"]: row for row in asked(server, f"SELECT * FROM {each}")}
        got = {row["id"]: row for row in table(found, f"{name}.kills.{each}").values()}
        # A column that was added is not in rows that were not written since.
        if got.keys() != source.keys() or any(
            got[key].get(column) != value for key, row in source.items() for column, value in row.items()
        ):
            return False
    return True


@pytest.mark.parametrize("seed", range(SEED, SEED + -(-ROUNDS // PER_SEED)))
def test_whatever_is_killed_the_topics_have_every_change_once(seed, server, bootstrap, tmp_path):
    name = f"killm{seed}x{os.getpid()}"
    made(server)
    capture = CaptureProcess(tmp_path, name, f"MariaDB({server.url!r}, ['kills.*'])", bootstrap)

    def connections() -> set[int]:
        query = "SELECT id FROM information_schema.processlist WHERE user = 'capture'"
        return {row["id"] for row in asked(server, query)}

    def again() -> None:
        server.kill()
        server.start(*UNSYNCED)

    with MariaWorkload(lambda: server.connect(database="kills", connect_timeout=5), seed) as workload:
        kills = min(PER_SEED, ROUNDS - (seed - SEED) * PER_SEED)
        kill_often(
            capture, workload, kills, random.Random(seed), connections=connections, kill_database=again
        )
    wait_until(lambda: same(bootstrap, name, server), 90, "the topics to have all of the database")
    assert capture.end(signal.SIGTERM) == 0, capture.log.read_text()[-3000:]
    assert same(bootstrap, name, server)
