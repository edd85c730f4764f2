"""A seeded workload of all kinds of changes, in a thread, which continues through kills of its database."""

import random
import signal
import threading
from collections.abc import Callable
from typing import Any, Self

import psycopg
import pymysql

from support.captured import CaptureProcess
from support.servers import wait_until

__all__ = ["TABLES", "MariaWorkload", "Workload", "kill_often", "make"]

TABLES = ("plain", "whole", "fat")
KEYS = 60
PAUSE_S = 0.01


def make(url: str) -> None:
    base = url.rsplit("/", 1)[1]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE plain (id int PRIMARY KEY, a text, n int)")
        connection.execute("CREATE TABLE whole (id int PRIMARY KEY, a text, n int)")
        connection.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
        connection.execute("CREATE TABLE fat (id int PRIMARY KEY, a text, n int)")
        connection.execute("INSERT INTO plain SELECT i, 'old', 0 FROM generate_series(1, 20) i")
        connection.execute("INSERT INTO fat SELECT i, 'old', 0 FROM generate_series(1001, 4000) i")
        connection.execute(f"ALTER DATABASE {base} SET logical_decoding_work_mem = '64kB'")


def kill_often(
    capture: CaptureProcess,
    workload: "Workload",
    times: int,
    rng: random.Random,
    *,
    connections: Callable[[], set[int]],
    kill_database: Callable[[], None],
) -> None:
    """Kills the capture, and now and then its database, somewhere in the workload; leaves it at work.

    ``connections`` are those that the database has with captures, those of killed ones among them for a while.
    """

    def start() -> None:
        before = connections()
        capture.start()
        wait_until(lambda: connections() - before, 60, "the capture at work")

    for number in range(times):
        start()
        wanted = workload.transactions + rng.randint(0, 60)
        wait_until(lambda most=wanted: workload.transactions >= most, 60, "transactions")
        if number % 5 == 2:
            kill_database()
            assert capture.end(signal.SIGTERM) == 0
        else:
            capture.end(signal.SIGKILL)
    start()


class Workload:
    """Transactions of inserts, updates, deletes, key changes, savepoints that are rolled back, rollbacks, large ones, TRUNCATE and DDL."""

    insert = "INSERT INTO {table} VALUES ({key}, 'é😀', 0) ON CONFLICT DO NOTHING"
    move = (
        "UPDATE {table} SET id = {other} WHERE id = {key}"
        " AND NOT EXISTS (SELECT FROM {table} WHERE id = {other})"
    )
    away: tuple[type[Exception], ...] = (psycopg.OperationalError,)

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.transactions = 0
        self._columns = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._connect() as connection:
                    while not self._over.is_set():
                        self._transaction(connection)
                        self.transactions += 1
                        self._over.wait(PAUSE_S)
            except self.away:
                self._over.wait(0.1)

    def _connect(self) -> Any:
        return psycopg.connect(self._url, connect_timeout=5)

    def _execute(self, connection: Any, statement: str) -> None:
        connection.execute(statement)

    def _transaction(self, connection: Any) -> None:
        rng = self._random
        for _ in range(rng.randint(1, 6)):
            self._change(connection)
        if rng.random() < 0.3:
            self._execute(connection, "SAVEPOINT s")
            for _ in range(rng.randint(1, 3)):
                self._change(connection)
            if rng.random() < 0.6:
                self._execute(connection, "ROLLBACK TO s")
        if rng.random() < 0.1:
            self._large(connection)
        if rng.random() < 0.02:
            self._execute(connection, f"TRUNCATE {rng.choice(TABLES[:2])}")
        if rng.random() < 0.02:
            self._columns += 1
            self._execute(
                connection,
                f"ALTER TABLE {rng.choice(TABLES)} ADD c{self._columns}_{rng.randrange(10**6)} int",
            )
        if rng.random() < 0.15:
            connection.rollback()
        else:
            connection.commit()

    def _change(self, connection: Any) -> None:
        rng, table = self._random, self._random.choice(TABLES[:2])
        key = rng.randint(1, KEYS)
        match rng.choice("iiuuudk"):
            case "i":
                self._execute(connection, self.insert.format(table=table, key=key))
            case "u":
                self._execute(
                    connection, f"UPDATE {table} SET n = n + 1, a = '{rng.random()}' WHERE id = {key}"
                )
            case "d":
                self._execute(connection, f"DELETE FROM {table} WHERE id = {key}")
            case _:
                other = rng.randint(1, KEYS)
                self._execute(connection, self.move.format(table=table, key=key, other=other))

    def _large(self, connection: Any) -> None:
        low = self._random.randint(1001, 3000)
        self._execute(connection, f"UPDATE fat SET n = n + 1 WHERE id BETWEEN {low} AND {low + 999}")
        self._execute(connection, "SAVEPOINT large")
        self._execute(connection, f"UPDATE fat SET n = -1 WHERE id BETWEEN {low} AND {low + 499}")
        self._execute(connection, "ROLLBACK TO large")


class MariaWorkload(Workload):
    """The same on a database of MariaDB."""

    insert = "INSERT IGNORE INTO {table} VALUES ({key}, 'é😀', 0)"
    move = "UPDATE IGNORE {table} SET id = {other} WHERE id = {key}"
    away = (pymysql.err.OperationalError, pymysql.err.InterfaceError, pymysql.err.InternalError)

    def __init__(self, connect: Callable[[], Any], seed: int) -> None:
        super().__init__("", seed)
        self._opened = connect

    def _connect(self) -> Any:
        return self._opened()

    def _execute(self, connection: Any, statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)
