"""Checks: everything that must agree once the day is over and all is drained. Each gives sentences; none at all is a day that passed."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet

import feed
import guests
from compare import accounts_differ, rows_differ, totals_differ
from expected import Expected, Rows, summed
from headwater.client.client import Client
from headwater.operate.log.ledger import TERMS
from headwater.sink.stores.tantivy import search
from installation import APP, Installation
from traffic import TOPICS

KEYS = {
    "revenue": ("window", "country"),
    "click_through": ("window",),
    "pages": ("window",),
    "answers": ("path", "status"),
    "members": ("country",),
    "shelves": ("shelf",),
    "large_orders": ("order_id", "country", "cents"),
}
NUMBERS = {
    "revenue": ("orders", "cents"),
    "click_through": ("searches", "clicks"),
    "pages": ("views", "products"),
    "answers": ("requests", "ms"),
    "members": ("customers", "points"),
    "shelves": ("articles", "quantity"),
    "large_orders": (),
}
APPENDS = "large_orders"
"""Of this view equal rows are counted."""
CHECKED = ("revenue", "large_orders", "members", "shelves")
"""Views whose inputs the log still holds, so that a batch can be made of them."""
NEVER_LATE = ("revenue", "click_through")
"""Their streams wait longer than any record of the traffic is late."""
SEARCHED_MAX = 100_000
EXPECTED_TRACEBACKS = (
    (
        "spark-",
        "headwater.pipeline.run.publisher.Stopping",
    ),  # a clean stop ends the batch in hand, and Spark logs that
    (
        "spark-",
        "headwater.errors.FencedError",
    ),  # a rebuild has taken the view over, and the driver follows it
)
"""Part of a log's name, and a text in the traceback, of those that an act of the day explains."""


class Checks:
    """Reads everything through the doors that users have. For an installation at rest."""

    def __init__(self, installation: Installation, expected: Expected) -> None:
        self._installation = installation
        self._expected = expected
        self._client: Client = installation.client
        self._folder = installation.folder
        self.late = 0
        self.lines: list[str] = []

    def run(self) -> list[str]:
        """All faults; ``lines`` then say what was looked at."""
        wanted = self._expected.rows(self._late("pages")) | {"shelves": self._shelves()}
        faults = self._topics_and_tables(wanted)
        faults += self._stores(wanted)
        faults += self._captured()
        faults += self._counts()
        faults += self._invalid()
        faults += accounts_differ(self._accounts(), TERMS)
        for view in CHECKED:
            done = self._installation.command("view", "check", view, str(APP))
            self.lines.append(done.stdout.strip())
            if done.returncode:
                faults.append(f"headwater view check {view}: {done.stdout}{done.stderr[-2000:]}")
        return faults

    def _topics_and_tables(self, wanted: Mapping[str, Rows]) -> list[str]:
        faults = []
        for view, rows in wanted.items():
            topic = numbers(view, self._newest(view))
            table = numbers(view, self._table(view))
            faults += rows_differ(f"topic {view}", topic, rows)
            by_key = (
                dict.fromkeys(rows, (1,)) if view == APPENDS else rows
            )  # the console has one row of a key
            faults += rows_differ(f"table {view}", table, by_key)
            sums = [sum(values) for values in zip(*rows.values(), strict=True)]
            self.lines.append(f"{view}: {len(rows):,} rows, sums {', '.join(f'{each:,}' for each in sums)}")
        for view in NEVER_LATE:
            faults += [f"{view}: a record counts as late: {value}" for value in self._late(view)][:3]
        return faults

    def _stores(self, wanted: Mapping[str, Rows]) -> list[str]:
        stores = self._folder / "stores"
        revenue = sqlite_rows(
            stores / "revenue.db", "revenue", ("window_start", "country", "orders", "cents")
        )
        stock = sqlite_rows(stores / "stock.db", '"warehouse.stock"', ("id", "shelf", "quantity"))
        found = search(stores / "search" / "customers", "*", SEARCHED_MAX)
        lake = Counter(lake_rows(stores / "lake" / "large_orders"))
        customers = {(number,): row for number, row in self._expected.customers.items()}
        return [
            *rows_differ("store revenue.db", {row[:2]: row[2:] for row in revenue}, wanted["revenue"]),
            *rows_differ("store stock.db", {row[:1]: row[1:] for row in stock}, self._stock()),
            *rows_differ(
                "store search", {(row["id"],): (row["country"], row["points"]) for row in found}, customers
            ),
            *rows_differ(
                "store lake", {key: (count,) for key, count in lake.items()}, wanted["large_orders"]
            ),
        ]

    def _captured(self) -> list[str]:
        """The newest record of each key against the rows of the captured table."""
        shown = {}
        for row in self._newest("warehouse.stock"):
            after = row.get("after")
            if after is not None:
                shown[(after["id"],)] = (after["shelf"], after["quantity"])
        return rows_differ("topic warehouse.stock", shown, self._stock())

    def _counts(self) -> list[str]:
        sent, seen = feed.read(self._folder), guests.read(self._folder, "count")
        visits = guests.read(self._folder, "visit")
        counted = {name: seen.records.get(name, 0) for name in TOPICS}
        sums = {name: seen.checksums.get(name, 0) for name in TOPICS}
        self.lines.append(f"{sum(counted.values()):,} records sent, acknowledged and read back")
        there = seen.records.get(guests.VISITS, 0)
        bounds = visits.committed, visits.committed + visits.failed
        faults = [*sent.lost[:3], *seen.faults[:3], *visits.faults[:3]]
        if not bounds[0] <= there <= bounds[1]:
            faults.append(
                f"visits: {there:,} committed records read, {bounds[0]:,} to {bounds[1]:,} committed"
            )
        return [
            *faults,
            *totals_differ("acknowledged", sent.acknowledged, dict(self._expected.records)),
            *totals_differ("read back", counted, sent.acknowledged),
            *totals_differ("checksum", sums, sent.checksums),
        ]

    def _invalid(self) -> list[str]:
        """Each record that no view can use is in the topic of the invalid ones, once."""
        topics = [f"{name}.invalid" for name in self._expected.broken]
        places = {(record.topic(), record.key()) for record in self._client.read(topics)}
        found = Counter(topic.removesuffix(".invalid") for topic, _ in places)
        return totals_differ("invalid", found, self._expected.broken)

    def _accounts(self) -> list[dict]:
        """Those of the application; guests leave when they like."""
        consumers = {*KEYS, "revenue.sqlite", "stock.sqlite", "customers.tantivy", "large_orders.parquet"}
        found = [each for each in self._installation.accounts() if each["consumer"] in consumers]
        self.lines.append(
            f"ledger: {len(found)} accounts, {sum(each['produced'] for each in found):,} records"
        )
        return found

    def _late(self, view: str) -> list[str]:
        values = [
            msgspec.json.decode(record.value())["value"] for record in self._client.read([f"{view}.late"])
        ]
        self.lines.append(f"{view}: {len(values):,} late records in {view}.late")
        return values

    def _newest(self, topic: str) -> list[dict[str, Any]]:
        """The rows that a reader of committed records has in the end; of a view that appends, all."""
        rows: dict[Any, bytes | None] = {}
        for number, record in enumerate(self._client.read([topic])):
            key = number if topic == APPENDS else record.key()
            rows[key] = record.value()
        return [msgspec.json.decode(value) for value in rows.values() if value is not None]

    def _table(self, view: str) -> list[dict[str, Any]]:
        done = self._installation.command("view", "rows", view, "--json")
        return [msgspec.json.decode(line) for line in done.stdout.splitlines()]

    def _stock(self) -> dict[Any, tuple[Any, ...]]:
        rows = sqlite_rows(self._folder / "warehouse.db", "stock", ("id", "shelf", "quantity"))
        return {row[:1]: row[1:] for row in rows}

    def _shelves(self) -> Rows:
        return summed((shelf, (1, quantity)) for shelf, quantity in self._stock().values())


def numbers(view: str, rows: list[dict[str, Any]]) -> Rows:
    """Rows as JSON objects to keys and numbers."""
    named = [(tuple(_start(row[column]) for column in KEYS[view]), row) for row in rows]
    if not NUMBERS[view]:
        return {key: (count,) for key, count in Counter(key for key, _ in named).items()}
    return {key: tuple(row[column] for column in NUMBERS[view]) for key, row in named}


def sqlite_rows(file: Path, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()


def lake_rows(folder: Path) -> Iterator[tuple[int, str, int]]:
    for file in sorted(folder.glob("part-*.parquet")):
        for row in pyarrow.parquet.ParquetFile(file).read(columns=list(KEYS["large_orders"])).to_pylist():
            yield row["order_id"], row["country"], row["cents"]


def tracebacks(folder: Path) -> list[str]:
    """Those in the logs that no fault of the day explains."""
    faults = []
    for log in sorted(folder.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if "Traceback (most recent call last)" not in line:
                continue
            end = next(
                (each for each in lines[number + 1 :] if each and not each.startswith((" ", "\t"))), ""
            )
            text = "\n".join(lines[max(0, number - 1) : number + 40])
            if not any(part in log.name and reason in text for part, reason in EXPECTED_TRACEBACKS):
                faults.append(f"{log.name}, line {number + 1}: {end}")
    return faults


def _start(value: Any) -> Any:
    return value["start"] if isinstance(value, dict) else value
