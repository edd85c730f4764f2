"""A seeded workload of all kinds of changes, in a thread, which goes on through kills of its database."""

import random
import threading
from typing import Self

import psycopg

__all__ = ["TABLES", "Workload", "make"]

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


class Workload:
    """Transactions of inserts, updates, deletes, key changes, savepoints that are rolled back, rollbacks, large ones and DDL."""

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
                with psycopg.connect(self._url, connect_timeout=5) as connection:
                    while not self._over.is_set():
                        self._transaction(connection)
                        self.transactions += 1
                        self._over.wait(PAUSE_S)
            except psycopg.OperationalError:
                self._over.wait(0.1)

    def _transaction(self, connection: psycopg.Connection) -> None:
        rng = self._random
        for _ in range(rng.randint(1, 6)):
            self._change(connection)
        if rng.random() < 0.3:
            connection.execute("SAVEPOINT s")
            for _ in range(rng.randint(1, 3)):
                self._change(connection)
            if rng.random() < 0.6:
                connection.execute("ROLLBACK TO s")
        if rng.random() < 0.1:
            self._large(connection)
        if rng.random() < 0.02:
            self._columns += 1
            connection.execute(
                f"ALTER TABLE {rng.choice(TABLES)} ADD c{self._columns}_{rng.randrange(10**6)} int"
            )
        if rng.random() < 0.15:
            connection.rollback()
        else:
            connection.commit()

    def _change(self, connection: psycopg.Connection) -> None:
        rng, table = self._random, self._random.choice(TABLES[:2])
        key = rng.randint(1, KEYS)
        match rng.choice("iiuuudk"):
            case "i":
                connection.execute(f"INSERT INTO {table} VALUES ({key}, 'é😀', 0) ON CONFLICT DO NOTHING")
            case "u":
                connection.execute(f"UPDATE {table} SET n = n + 1, a = '{rng.random()}' WHERE id = {key}")
            case "d":
                connection.execute(f"DELETE FROM {table} WHERE id = {key}")
            case _:
                other = rng.randint(1, KEYS)
                connection.execute(
                    f"UPDATE {table} SET id = {other} WHERE id = {key} AND NOT EXISTS (SELECT FROM {table} WHERE id = {other})"
                )

    def _large(self, connection: psycopg.Connection) -> None:
        low = self._random.randint(1001, 3000)
        connection.execute(f"UPDATE fat SET n = n + 1 WHERE id BETWEEN {low} AND {low + 999}")
        connection.execute("SAVEPOINT large")
        connection.execute(f"UPDATE fat SET n = -1 WHERE id BETWEEN {low} AND {low + 499}")
        connection.execute("ROLLBACK TO large")
