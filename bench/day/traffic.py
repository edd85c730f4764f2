"""Traffic: everything that happens to the shop in its day, in order, from one seed.

The demo's traffic, and beside it two tables that change all the time: customers, written to the log by key, and
stock, written to a SQLite file. Two runs with the same plan hand out the same steps.
"""

import heapq
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.demo.traffic import COUNTRIES, Emission
from headwater.demo.traffic import Traffic as Demo
from plan import Plan

TOPICS = ("searches", "clicks", "orders", "page_views", "requests", "customers")
CUSTOMERS = 300
CUSTOMERS_PER_S = 2.0
ARTICLES = 200
STOCK_PER_S = 1.0
SHELVES = 12
DELETED_SHARE = 0.15
ROWS_PER_TRANSACTION = 3


class StockChange(NamedTuple):
    """One transaction in the captured database: new rows by id, None deletes."""

    wall: float
    rows: dict[int, tuple[str, int] | None]


Step = Emission | StockChange


def steps(plan: Plan) -> Iterator[Step]:
    """All of the day in the order of arrival. Read once, at any pace."""
    demo = Demo(seed=plan.seed, seconds=plan.seconds, rate=plan.rate, speed=plan.speed)
    streams = (demo.events(), _customers(plan), _stock(plan))
    return heapq.merge(*streams, key=lambda step: step.wall)


def _customers(plan: Plan) -> Iterator[Emission]:
    draw, wall = random.Random(plan.seed + 1), 0.0
    while (wall := wall + draw.expovariate(CUSTOMERS_PER_S)) < plan.seconds:
        number = draw.randrange(CUSTOMERS)
        row = {"id": number, "country": draw.choice(tuple(COUNTRIES)), "points": draw.randrange(1_000)}
        value = None if draw.random() < DELETED_SHARE else msgspec.json.encode(row)
        yield Emission(wall, "customers", str(number).encode(), value)


def _stock(plan: Plan) -> Iterator[StockChange]:
    draw, wall = random.Random(plan.seed + 2), 0.0
    while (wall := wall + draw.expovariate(STOCK_PER_S)) < plan.seconds:
        yield StockChange(
            wall, {draw.randrange(ARTICLES): _article(draw) for _ in range(ROWS_PER_TRANSACTION)}
        )


def _article(draw: random.Random) -> tuple[str, int] | None:
    row = f"shelf {draw.randrange(SHELVES)}", draw.randrange(1_000)
    return None if draw.random() < DELETED_SHARE else row


def create(database: Path) -> None:
    """The file that is captured, with the rows of the evening before."""
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, shelf TEXT, quantity INTEGER)")
        rows = [(number, f"shelf {number % SHELVES}", 100) for number in range(ARTICLES // 2)]
        connection.executemany("INSERT INTO stock VALUES (?, ?, ?)", rows)
    connection.close()


def change(connection: sqlite3.Connection, rows: dict[int, tuple[str, int] | None]) -> None:
    """One transaction."""
    upsert = "INSERT INTO stock VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET shelf = excluded.shelf, quantity = excluded.quantity"
    with connection:
        for number, row in rows.items():
            if row is None:
                connection.execute("DELETE FROM stock WHERE id = ?", (number,))
            else:
                connection.execute(upsert, (number, *row))
