"""Buyers and clerks of a shop that writes twice: first into its database, then into a cache and a warehouse, as many shops do.

Nothing is wrong with any line of it. But between two writes another's may come, a transaction may be rolled back after the cache has heard of it, and
a process may end: the second store then says something that the database has never said, or no longer says, without an error.
"""

import json
import random
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import redis

PRODUCTS = 40
Rows = dict[int, dict[str, Any]]
TITLES = ("lamp", "chair", "table", "clock", "mirror", "shelf")
WRITE = "INSERT INTO product VALUES (:id, :title, :cents, :stock) ON CONFLICT (id) DO UPDATE SET title = :title, cents = :cents, stock = :stock"


def create(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE product (id int PRIMARY KEY, title text, cents int, stock int)")
        for number in range(PRODUCTS):
            row = (number, f"{TITLES[number % len(TITLES)]} {number}", 1000 + number, 100)
            connection.execute("INSERT INTO product VALUES (%s, %s, %s, %s)", row)


class Writer(threading.Thread):
    """Changes random products, each change in the database and then in the two stores."""

    def __init__(self, database: str, cache: str, warehouse: Path, changes: int, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)  # noqa: S311  the same shop each time
        self._changes = changes
        self._addresses = database, cache, warehouse

    def run(self) -> None:
        database, cache, warehouse = self._addresses
        with (
            psycopg.connect(database, autocommit=True) as self._database,
            redis.from_url(cache) as self._cache,
        ):
            self._warehouse = sqlite3.connect(warehouse, isolation_level=None, timeout=60)
            for _ in range(self._changes):
                self._change(self._chance.randrange(PRODUCTS))
            self._warehouse.close()

    def _change(self, number: int) -> None:
        what = self._chance.random()
        if what < 0.05:
            self._database.execute("DELETE FROM product WHERE id = %s", (number,))
            self._tell(number, None)
        elif what < 0.15:
            self._change_of_mind(number)
        else:
            row = self._put(number)
            self._tell(number, row)

    def _put(self, number: int) -> dict[str, Any]:
        title, cents = f"{self._chance.choice(TITLES)} {number}", self._chance.randrange(100, 9999)
        found = self._database.execute(
            "INSERT INTO product VALUES (%s, %s, %s, 100) ON CONFLICT (id) DO UPDATE "
            "SET title = excluded.title, cents = excluded.cents, stock = product.stock - 1 RETURNING title, cents, stock",
            (number, title, cents),
        ).fetchone()
        assert found is not None  # noqa: S101
        return dict(zip(("id", "title", "cents", "stock"), (number, *found), strict=True))

    def _change_of_mind(self, number: int) -> None:
        """The cache is changed inside the transaction, which is then rolled back."""
        with self._database.transaction():
            self._tell(number, self._put(number))
            raise psycopg.Rollback

    def _tell(self, number: int, row: Mapping[str, Any] | None) -> None:
        if row is None:
            self._cache.delete(f"twice:{number}")
            self._warehouse.execute("DELETE FROM product WHERE id = ?", (number,))
        else:
            self._cache.set(f"twice:{number}", json.dumps(row))
            self._warehouse.execute(WRITE, row)


def trade(database: str, cache: str, warehouse: Path, *, writers: int = 8, changes: int = 200) -> None:
    """A day in the shop. The stores of the second kind begin as copies of the database."""
    with sqlite3.connect(warehouse) as copy, redis.from_url(cache) as copied:
        copy.execute("CREATE TABLE product (id INTEGER PRIMARY KEY, title TEXT, cents INT, stock INT)")
        for number, row in rows(database).items():
            copy.execute(WRITE, row)
            copied.set(f"twice:{number}", json.dumps(row))
    threads = [Writer(database, cache, warehouse, changes, seed) for seed in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rows(database: str) -> Rows:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT id, title, cents, stock FROM product").fetchall()
    return {row[0]: dict(zip(("id", "title", "cents", "stock"), row, strict=True)) for row in found}


def cached(cache: str, prefix: str) -> Rows:
    """What a cache says, whichever way it was written."""
    with redis.from_url(cache) as client:
        keys = [key for key in client.scan_iter(f"{prefix}*") if key.removeprefix(prefix.encode()).isdigit()]
        values = client.mget(keys) if keys else []
    found = [json.loads(value) for value in values if value is not None]  # one may have gone since
    return {row["id"]: _plain(row) for row in found}


def warehoused(file: Path) -> Rows:
    with sqlite3.connect(file) as connection:
        connection.row_factory = sqlite3.Row
        return {row["id"]: dict(row) for row in connection.execute("SELECT * FROM product")}


def delta(folder: str) -> Rows:
    from deltalake import DeltaTable  # noqa: PLC0415  slow to load, and needed at the end only

    return {row["id"]: _plain(row) for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}


def indexed(folder: str) -> Rows:
    from headwater.sink.stores.tantivy import search  # noqa: PLC0415  the same

    return {row["id"]: _plain(row) for row in search(Path(folder), "*", limit=10 * PRODUCTS)}


def differing(truth: Rows, store: Rows) -> list[int]:
    """The products of which a store says something else than the database."""
    return sorted(number for number in truth.keys() | store.keys() if truth.get(number) != store.get(number))


def report(truth: Rows, stores: Mapping[str, Rows]) -> str:
    lines = [f"{len(truth)} products in the database"]
    for name, store in stores.items():
        wrong = differing(truth, store)
        lines.append(f"{name:<24} {len(store):>4} rows  {len(wrong):>4} wrong")
    return "\n".join(lines)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "title", "cents", "stock")}
