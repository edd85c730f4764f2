"""Twelve different views under ``headwater up`` that is killed cold and warm, rebuilt, restarted and left in silence.

In the end each row is what plain Python makes of the records: no operator, no Spark, no SQL.
"""

import json
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from headwater.client.client import Client, producer
from support.upprocess import UpProcess, upping

pytestmark = [pytest.mark.own_spark, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("TWELVE_SEED", "0"))
PARTS = int(os.environ.get("TWELVE_PARTS", "2"))
"""How many parts of the records are sent, with kills before each."""
ORDERS = 300
"""The orders of a part."""
PROCESSES = ("broker", "console", "pipeline")
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
PART = timedelta(minutes=10)
"""Between two parts there is more time than they take to be sent, so that no record is late."""
COUNTRIES = ["de", "fr", "us", "at"]
APP = """
    from datetime import datetime

    import headwater as hw
    from pyspark.sql import functions as F

    app = hw.App("twelve")

    class Order(hw.Event):
        order_id: int
        customer: int
        country: str
        cents: int
        at: datetime

    class Customer(hw.Row):
        id: int
        name: str
        country: str

    class Country(hw.Row):
        code: str
        region: str

    class Rate(hw.Row):
        country: str
        percent: int
        valid_from: datetime

    app.stream("orders", Order, key="order_id", time="at", delay="5 seconds", idle="5 seconds")
    app.table("customers", Customer, key="id")
    app.table("countries", Country, key="code")
    app.table("rates", Rate, key=["country", "valid_from"])

    @app.view(key=["window", "country"])
    def per_window(orders):
        sums = F.sum("cents").alias("cents"), F.count("*").alias("n")
        return orders.groupBy(F.window("at", "10 seconds"), "country").agg(*sums)

    app.sql(
        "per_second",
        "SELECT window, count(*) AS n, max(cents) AS top FROM orders GROUP BY window(at, '5 seconds')",
        key="window",
    )
    app.sql(
        "people",
        "SELECT c.id, c.name, k.region FROM customers c JOIN countries k ON c.country = k.code",
        key="id",
    )

    @app.view(key="region")
    def regions(people):
        return people.group("region", n=F.count("*"))

    @app.view(key="order_id", late=hw.late.correct("1 day"))
    def taxed(orders, rates):
        rows = hw.enrich(orders, rates, on="country", as_of="at", valid="valid_from")
        return rows.select("order_id", "cents", "percent")

    @app.view(key=["customer", "window"])
    def visits(orders):
        return hw.sessions(orders, "customer", time="at", gap="7 seconds", n=F.count("*"), cents=F.sum("cents"))

    @app.view(key="window")
    def unique_orders(orders):
        once = hw.distinct(orders, "order_id", time="at", within="1 minute")
        return once.groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("n"))

    def label(country, cents):
        return f"{country.upper()}-{cents % 7}"

    @app.view(key="order_id")
    def labels(orders):
        return orders.select("order_id", F.udf(label, "string")("country", "cents").alias("label"))

    app.sql(
        "instant",
        "SELECT order_id, cents * 2 AS twice FROM orders WHERE cents >= 10",
        key="order_id",
        latency="realtime",
    )

    @app.view(key=["window", "country"], emit="ready")
    def settled(orders):
        return orders.groupBy(F.window("at", "10 seconds"), "country").agg(F.sum("cents").alias("cents"))

    app.sql("large", "SELECT order_id, cents FROM orders WHERE cents >= 80", key="order_id", append=True)

    @app.view(key="customer")
    def newest(orders):
        return hw.latest(orders, "customer", time="at")
"""
WITH_WINDOWS = ("per_window", "per_second", "visits", "unique_orders", "settled")


class Order(NamedTuple):
    order_id: int
    customer: int
    country: str
    cents: int
    at: datetime


Row = dict[str, Any]
Rows = dict[str, Row]


def iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Traffic:
    """What is sent, part by part, and the records of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.orders: list[Order] = []
        self.customers: dict[int, Row] = {}
        self.countries: dict[str, Row] = {}
        self.rates: dict[tuple[str, datetime], int] = {}
        self.part = 0

    def send(self, bootstrap: str) -> None:
        """The next part: changes of the tables, and orders of a minute, some of them twice."""
        out = producer(bootstrap)
        begin = BEGIN + self.part * PART
        for topic, key, value in self._changes(begin):
            out.produce(topic, None if value is None else json.dumps(value), key)
        for order in self._orders(begin):
            self.orders.append(order)
            value = order._asdict() | {"at": iso(order.at)}
            out.produce("orders", json.dumps(value), str(order.order_id))
        assert out.flush(120) == 0
        self.part += 1

    def _orders(self, begin: datetime) -> Iterator[Order]:
        """In about the order of their times: none is late."""
        for number in range(ORDERS):
            late = timedelta(milliseconds=self.random.randrange(2_000))
            at = begin + timedelta(milliseconds=number * 150, microseconds=number) + late
            country, cents = self.random.choice(COUNTRIES), self.random.randrange(100)
            order = Order(self.part * ORDERS + number, self.random.randrange(20), country, cents, at)
            yield order
            if number % 11 == 0:
                yield order

    def _changes(self, begin: datetime) -> Iterator[tuple[str, str, Row | None]]:
        for code in COUNTRIES:
            self.countries[code] = {"code": code, "region": self.random.choice(["north", "south"])}
            yield "countries", code, self.countries[code]
            since = begin + timedelta(seconds=self.random.randrange(60))
            self.rates[code, since] = self.random.randrange(1, 30)
            rate = {"country": code, "percent": self.rates[code, since], "valid_from": iso(since)}
            yield "rates", json.dumps([code, iso(since)]), rate
        for number in self.random.sample(range(20), 10):
            if number in self.customers and self.random.random() < 0.3:
                del self.customers[number]
                yield "customers", str(number), None
                continue
            row = {
                "id": number,
                "name": f"n{self.random.randrange(100)}",
                "country": self.random.choice(COUNTRIES),
            }
            self.customers[number] = row
            yield "customers", str(number), row


# ---- what it must be, in plain Python ----------------------------------------------------------------------


def window(at: datetime, seconds: int) -> Row:
    start = datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)
    return span(start, start + timedelta(seconds=seconds))


def span(start: datetime, end: datetime) -> Row:
    return {"start": iso(start), "end": iso(end)}


def grouped(orders: Iterable[Order], by: Callable[[Order], Row]) -> Iterator[tuple[Row, list[Order]]]:
    groups: dict[str, list[Order]] = defaultdict(list)
    for order in orders:
        groups[json.dumps(by(order))].append(order)
    for key, members in groups.items():
        yield json.loads(key), members


def of_windows(traffic: Traffic) -> dict[str, list[Row]]:
    orders = traffic.orders
    by_window = list(grouped(orders, lambda o: {"window": window(o.at, 10), "country": o.country}))
    return {
        "per_window": [
            key | {"cents": sum(o.cents for o in members), "n": len(members)} for key, members in by_window
        ],
        "settled": [key | {"cents": sum(o.cents for o in members)} for key, members in by_window],
        "per_second": [
            key | {"n": len(members), "top": max(o.cents for o in members)}
            for key, members in grouped(orders, lambda o: {"window": window(o.at, 5)})
        ],
        "unique_orders": [
            key | {"n": len(members)}
            for key, members in grouped(set(orders), lambda o: {"window": window(o.at, 10)})
        ],
        "visits": list(visits(orders)),
    }


def visits(orders: list[Order]) -> Iterator[Row]:
    gap = timedelta(seconds=7)
    for key, members in grouped(orders, lambda o: {"customer": o.customer}):
        members.sort(key=lambda o: o.at)
        session = members[:1]
        for order in [*members[1:], None]:
            if order is not None and order.at - session[-1].at <= gap:
                session.append(order)
                continue
            yield key | {
                "window": span(session[0].at, session[-1].at + gap),
                "n": len(session),
                "cents": sum(o.cents for o in session),
            }
            session = [order] if order is not None else []


def of_records(traffic: Traffic) -> dict[str, list[Row]]:
    orders = set(traffic.orders)
    newest: dict[int, Order] = {}
    for order in orders:
        if order.customer not in newest or order.at > newest[order.customer].at:
            newest[order.customer] = order
    return {
        "taxed": [{"order_id": o.order_id, "cents": o.cents, "percent": percent(traffic, o)} for o in orders],
        "labels": [{"order_id": o.order_id, "label": f"{o.country.upper()}-{o.cents % 7}"} for o in orders],
        "instant": [{"order_id": o.order_id, "twice": o.cents * 2} for o in orders if o.cents >= 10],
        "newest": [o._asdict() | {"at": iso(o.at)} for o in newest.values()],
    }


def percent(traffic: Traffic, order: Order) -> int | None:
    valid = [since for country, since in traffic.rates if country == order.country and since <= order.at]
    return traffic.rates[order.country, max(valid)] if valid else None


def of_tables(traffic: Traffic) -> dict[str, list[Row]]:
    people = [
        {"id": row["id"], "name": row["name"], "region": traffic.countries[row["country"]]["region"]}
        for row in traffic.customers.values()
    ]
    regions = Counter(row["region"] for row in people)
    return {"people": people, "regions": [{"region": name, "n": n} for name, n in regions.items()]}


def expected(traffic: Traffic) -> dict[str, list[Row]]:
    return of_windows(traffic) | of_records(traffic) | of_tables(traffic)


# ---- what it is --------------------------------------------------------------------------------------------


def rows(up: UpProcess, view: str) -> list[Row]:
    """The rows over HTTP, without what Headwater adds."""
    status, answer = up.get(f"/views/{view}?limit=100000")
    return answer["rows"] if status == 200 else []


def plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def sorted_rows(shown: Iterable[Row]) -> list[str]:
    return sorted(json.dumps(plain(row), sort_keys=True) for row in shown)


def differences(up: UpProcess, traffic: Traffic) -> dict[str, tuple[list[str], list[str]]]:
    """For each view that differs: a few rows that are wrong, and a few that are missing."""
    different = {}
    for view, right in expected(traffic).items():
        there, wanted = Counter(sorted_rows(rows(up, view))), Counter(sorted_rows(right))
        if there != wanted:
            different[view] = (
                sorted((there - wanted).elements())[:3],
                sorted((wanted - there).elements())[:3],
            )
    return different


def appended(up: UpProcess) -> Counter[tuple[int, int]]:
    """The records of the view that appends, each as often as it is there."""
    values = [json.loads(record.value()) for record in Client(up.bootstrap).read(["large"])]
    return Counter((value["order_id"], value["cents"]) for value in values)


def has_all(up: UpProcess, traffic: Traffic) -> bool:
    return differences(up, traffic).keys() <= {"settled"}


def all_ready(up: UpProcess) -> bool:
    shown = [row for view in WITH_WINDOWS for row in rows(up, view)]
    return bool(shown) and all(row["_ready"] for row in shown)


def until_right(up: UpProcess, traffic: Traffic, holds: Callable[[], bool], what: str) -> None:
    """Waits; what still differs in the end is the error."""
    try:
        up.until(holds, what, 180)
    except TimeoutError as error:
        raise AssertionError(f"{what}: {differences(up, traffic)}") from error


def kill(up: UpProcess, process: str) -> None:
    """Kills a process as soon as there is one, and waits for its successor."""
    up.until(lambda: process in up.processes(), f"the process {process}", 120)
    old = up.pid(process)
    os.kill(old, signal.SIGKILL)
    up.until(lambda: up.pid(process) != old, f"another process {process}", 120)


def kill_cold(up: UpProcess) -> None:
    """While it starts: the log has answered, and Spark has not."""
    up.until(lambda: "log  " in up.said(), "the log")
    for process in PROCESSES:
        kill(up, process)


def is_quiet(up: UpProcess) -> bool:
    return set(up.states().values()) == {"running"}


def kill_warm(up: UpProcess, chance: random.Random) -> None:
    """In the middle of its work, one after the other."""
    for process in chance.sample(PROCESSES, len(PROCESSES)):
        kill(up, process)


def restart(up: UpProcess, *, killed: bool) -> None:
    """Ends the application, cleanly or with Spark and ``headwater up`` itself killed at work, and starts it again."""
    if killed:
        os.kill(up.pid("pipeline"), signal.SIGKILL)
        up.kill()
    else:
        up.end()
    up.start()


def test_twelve_views_are_right_row_by_row_whatever_is_killed(tmp_path):
    traffic, chance = Traffic(SEED), random.Random(SEED)
    with upping(tmp_path, APP, kill_cold) as up:
        traffic.send(up.bootstrap)
        until_right(up, traffic, lambda: has_all(up, traffic), "the first part")
        for _ in range(PARTS - 2):
            kill_warm(up, chance)
            traffic.send(up.bootstrap)
            until_right(up, traffic, lambda: has_all(up, traffic), f"part {traffic.part}")
        rebuilt = up.command("view", "rebuild", chance.choice(["per_window", "visits", "regions"]), "app.py")
        assert rebuilt.returncode == 0, rebuilt.stderr
        for process in ("broker", "console"):
            kill(up, process)
        traffic.send(up.bootstrap)
        restart(up, killed=chance.random() < 0.8)
        done = lambda: all_ready(up) and not differences(up, traffic)  # noqa: E731
        until_right(up, traffic, done, "all rows, complete in silence")
        assert appended(up) == Counter((o.order_id, o.cents) for o in traffic.orders if o.cents >= 80)
        assert left_out(up, traffic) == []
        assert is_quiet(up)


def left_out(up: UpProcess, traffic: Traffic) -> list[str]:
    """The records that some view has left out: there should be none."""
    client = Client(up.bootstrap)
    names = [
        "orders.invalid",
        *(f"{view}.{kind}" for view in expected(traffic) for kind in ("late", "failed")),
    ]
    there = client.partitions()
    return [record.topic() for record in client.read([name for name in names if name in there])]
