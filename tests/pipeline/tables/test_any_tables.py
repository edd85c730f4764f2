"""Every join and every aggregate that takes back, through Spark: rows that come, change and go, in any interleaving and any cut, with a restart before every batch and batches that are run once more.

Each view says the same as plain SQL over what the tables and streams hold in the end; as of a time, over the versions. The seeds of a run are
key spaces of their own, and share it. TABLES_SEED is the first seed, TABLES_SEEDS their number.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.declare.schema import key_text
from headwater.pipeline.run.runner import Runner
from support.ordershop import Shop

FIRST = int(os.environ.get("TABLES_SEED", "0"))
SEEDS = int(os.environ.get("TABLES_SEEDS", "5"))
TOGETHER = 5
"""Seeds that share a run."""
BATCHES = 3
BEGIN = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=2)
"""Some days ago, since records say when they came and the log forgets old ones."""
MINUTE = timedelta(minutes=1)
LENGTH, WAIT = 120, 20
"""Minutes in which things happen, and after which an event has come; less than what streams wait for, so that none is late."""
PATIENCE = {"delay": "60 minutes"}
END = "end"


class Customer(hw.Row):
    customer_id: str
    name: str
    region: str | None


class Order(hw.Row):
    order_id: str
    customer_id: str | None
    zone: str | None
    cents: int | None
    kilos: float


class Rate(hw.Row):
    land: str
    percent: int
    valid_from: datetime


class Sale(hw.Event):
    sale_id: str
    land: str | None
    at: datetime


class Search(hw.Event):
    search_id: str
    query: str | None
    at: datetime


class Click(hw.Event):
    click_id: str
    query: str | None
    clicked_at: datetime


TABLES: dict[str, tuple[type[hw.Event], list[str]]] = {
    "customers": (Customer, ["customer_id"]),
    "orders": (Order, ["order_id"]),
    "rates": (Rate, ["land", "valid_from"]),
    "prices": (Rate, ["land"]),
}
STREAMS: dict[str, tuple[type[hw.Event], str, str]] = {
    "sales": (Sale, "sale_id", "at"),
    "searches": (Search, "search_id", "at"),
    "clicks": (Click, "click_id", "clicked_at"),
}


class Change(NamedTuple):
    """A record of a topic; without an event it deletes."""

    topic: str
    key: tuple[Any, ...]
    event: hw.Event | None
    at: datetime


# Views, each with its key, its options, and what SQL says of the final tables.

WITHIN = {"on": "query", "time": ("at", "clicked_at"), "before": "3 minutes", "after": "10 minutes"}
NEAR = "s.query = c.query AND c.clicked_at BETWEEN s.at - INTERVAL 3 MINUTES AND s.at + INTERVAL 10 MINUTES"


def all_aggregates() -> dict[str, Any]:
    return {
        "n": F.count("*"),
        "known": F.count("cents"),
        "cents": F.sum("cents"),
        "kilos": F.sum("kilos"),
        "mean": F.avg("cents"),
        "least": F.min("cents"),
        "most": F.max("order_id"),
        "last": hw.newest_of(["cents", "order_id"], order="cents", limit=2),
    }


ALL_SQL = """count(*) AS n, count(cents) AS known, sum(cents) AS cents, sum(kilos) AS kilos, avg(cents) AS mean, min(cents) AS least,
    max(order_id) AS most, slice(sort_array(collect_list(struct(cents, order_id)), false), 1, 2) AS last"""


def inner(orders: DataFrame, customers: DataFrame) -> DataFrame:
    return hw.join(orders.drop("customer_id"), customers, on={"zone": "region"})


def left(orders: DataFrame, customers: DataFrame) -> DataFrame:
    return hw.join(orders, customers, on="customer_id", how="left")


def right(orders: DataFrame, customers: DataFrame) -> DataFrame:
    return hw.join(orders, customers, on="customer_id", how="right")


def full(orders: DataFrame, customers: DataFrame) -> DataFrame:
    return hw.join(orders.drop("customer_id"), customers, on={"zone": "region"}, how="full")


def grouped(orders: DataFrame) -> DataFrame:
    return hw.group(orders, "zone", **all_aggregates())


def grouped_join(orders: DataFrame, customers: DataFrame) -> DataFrame:
    return hw.group(hw.join(orders, customers, on="customer_id", how="left"), "region", **all_aggregates())


def of_a_view(zones: DataFrame) -> DataFrame:
    return hw.group(zones, "n", zones=F.count("*"), cents=F.sum("cents"), most=F.max("most"))


def as_of_rows(sales: DataFrame, rates: DataFrame) -> DataFrame:
    return hw.enrich(sales, rates, on="land", as_of="at", valid="valid_from")


def as_of_changes(sales: DataFrame, prices: DataFrame) -> DataFrame:
    return hw.enrich(sales, prices, on="land", as_of="at", valid="valid_from")


def versions_of_rows(rates: DataFrame) -> DataFrame:
    return hw.versions(rates, "land", time="valid_from")


def versions_of_changes(prices: DataFrame) -> DataFrame:
    return hw.versions(prices, "land", time="valid_from")


def match_left(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    once = hw.distinct(searches, "search_id", time="at", within="1 day")
    return hw.match(once, hw.distinct(clicks, "click_id", time="clicked_at", within="1 day"), how="left", **WITHIN)  # fmt: skip


def match_full(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    both = hw.match(searches, clicks, how="full", **WITHIN)
    return hw.group(both, ["search_id", "click_id"], n=F.count("*"))


def unmatched(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    alone = hw.unmatched(searches, clicks, **WITHIN)
    return alone.groupBy("search_id").agg(F.count("*").alias("n"))


class Case(NamedTuple):
    function: Any
    """Or a query."""
    key: list[str]
    sql: str
    late: Any = None


KEPT = hw.late.correct("2 days")
GROUPED = f"SELECT zone, {ALL_SQL} FROM orders GROUP BY zone"
AS_OF = """SELECT sale_id, land, at, held.percent, held.valid_from, held.valid_from AS version FROM (
    SELECT s.sale_id, s.land, s.at, max_by(v.held, v.place) AS held FROM sales s LEFT JOIN (
        SELECT land, valid_from, struct(valid_from, n) AS place, if(gone, NULL, struct(percent, valid_from)) AS held FROM {}) v
    ON v.land = s.land AND v.valid_from <= s.at GROUP BY s.sale_id, s.land, s.at)"""
VERSIONS = """SELECT land, percent, valid_from, valid_to, valid_from AS version FROM (
    SELECT *, lead(valid_from) OVER (PARTITION BY land ORDER BY valid_from, n) AS valid_to FROM {})
    WHERE NOT gone AND (valid_to IS NULL OR valid_to > valid_from)"""
MATCHED = "FROM {} s {} JOIN {} c ON " + NEAR
NAMED = """SELECT o.order_id, upper(c.name) AS name, o.cents + 1 AS cents FROM orders o LEFT JOIN customers c
    ON o.customer_id = c.customer_id AND c.region IS NOT NULL WHERE o.cents > 50"""
PLACES = """SELECT coalesce(c.region, o.zone) AS place, count(*) AS n, sum(o.cents * 2) AS cents, avg(o.kilos) AS mean, max(c.name) AS last
    FROM orders o FULL JOIN customers c ON o.zone = c.region GROUP BY coalesce(c.region, o.zone) HAVING count(*) > 1"""
HELD = """SELECT s.sale_id, s.land, s.at, r.percent, r.valid_from, r.version
    FROM sales s LEFT JOIN rates FOR SYSTEM_TIME AS OF s.at AS r ON s.land = r.land"""
CASES = {
    "inner": Case(
        inner,
        ["order_id", "customer_id"],
        "SELECT o.order_id, o.zone, o.cents, o.kilos, c.* FROM orders o JOIN customers c ON o.zone = c.region",
    ),
    "left": Case(
        left,
        ["order_id"],
        "SELECT o.*, c.name, c.region FROM orders o LEFT JOIN customers c ON o.customer_id = c.customer_id",
    ),
    "right": Case(
        right,
        ["customer_id", "order_id"],
        "SELECT o.*, c.* FROM orders o RIGHT JOIN customers c ON o.customer_id = c.customer_id",
    ),
    "full": Case(
        full,
        ["order_id", "customer_id"],
        "SELECT o.order_id, o.zone, o.cents, o.kilos, c.* FROM orders o FULL JOIN customers c ON o.zone = c.region",
    ),
    "zones": Case(grouped, ["zone"], GROUPED),
    "grouped_join": Case(
        grouped_join,
        ["region"],
        f"SELECT region, {ALL_SQL} FROM orders o LEFT JOIN customers c ON o.customer_id = c.customer_id GROUP BY region",
    ),
    "of_a_view": Case(
        of_a_view,
        ["n"],
        f"SELECT n, count(*) AS zones, sum(cents) AS cents, max(most) AS most FROM ({GROUPED}) GROUP BY n",
    ),
    "as_of_rows": Case(as_of_rows, ["sale_id"], AS_OF.format("rates"), KEPT),
    "as_of_changes": Case(as_of_changes, ["sale_id"], AS_OF.format("prices"), KEPT),
    "versions_of_rows": Case(versions_of_rows, ["land", "valid_from"], VERSIONS.format("rates")),
    "versions_of_changes": Case(versions_of_changes, ["land", "valid_from"], VERSIONS.format("prices")),
    "sql_join": Case(NAMED, ["order_id"], NAMED),
    "sql_groups": Case(PLACES, ["place"], PLACES),
    "sql_as_of": Case(HELD, ["sale_id"], AS_OF.format("rates"), KEPT),
    "match_left": Case(
        match_left,
        ["search_id", "click_id"],
        "SELECT DISTINCT s.*, c.click_id, c.clicked_at " + MATCHED.format("searches", "LEFT", "clicks"),
    ),
    "match_full": Case(
        match_full,
        ["search_id", "click_id"],
        f"SELECT search_id, click_id, count(*) AS n {MATCHED.format('searches', 'FULL', 'clicks')} GROUP BY ALL",
    ),
    "unmatched": Case(
        unmatched,
        ["search_id"],
        f"SELECT search_id, count(*) AS n {MATCHED.format('searches', 'LEFT ANTI', 'clicks')} GROUP BY ALL",
    ),
}


def declared(shop: Shop, *views: str) -> hw.App:
    app = hw.App("shop")
    for name, (kind, key) in TABLES.items():
        app.table(name, kind, key=key, topic=shop.name(name))
    for name, (kind, key_field, time) in STREAMS.items():
        app.stream(name, kind, key=key_field, time=time, topic=shop.name(name), **PATIENCE)
    for name in views:
        case = CASES[name]
        if isinstance(case.function, str):
            app.sql(shop.name(name), case.function, key=case.key, late=case.late)
            continue
        inputs = {"zones": shop.name("zones")} if name == "of_a_view" else None
        app.view(key=case.key, name=shop.name(name), inputs=inputs, late=case.late)(case.function)
    return app


# What happens.


class Happening:
    """What one seed does to each topic, and when it comes: tables at any time, events soon after they happened."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.choose = random.Random(seed)
        self.arriving: list[tuple[float, Change]] = []
        places = [*self.names("r", 3), None]
        for topic, keys, count in (("customers", 4, 12), ("orders", 6, 20)):
            self.table(topic, [(name,) for name in self.names(topic[0], keys)], count, places)
        lands = self.names("l", 2)
        self.table("rates", [(land, self.time()) for land in lands for _ in range(4)], 14, [])
        self.table("prices", [(land,) for land in lands], 10, [])
        for topic in STREAMS:
            self.stream(topic, 10, [*lands, None])

    def names(self, kind: str, count: int) -> list[str]:
        return [f"{self.seed}.{kind}{n}" for n in range(count)]

    def time(self) -> datetime:
        """Few enough different times that some are equal, also in other topics."""
        return BEGIN + self.choose.randrange(0, LENGTH, 3) * MINUTE

    def table(self, topic: str, keys: list[tuple[Any, ...]], count: int, places: list[str | None]) -> None:
        """Inserts, updates, deletes (also of rows that are not there) and repetitions; those of a key come in this order."""
        choose, last = self.choose, dict[tuple[Any, ...], hw.Event]()
        self.delete(topic, tuple(f"{self.seed}.never" if isinstance(k, str) else k for k in keys[0]), 0.0)
        for when in sorted(choose.uniform(0, LENGTH + WAIT) for _ in range(count)):
            key = choose.choice(keys)
            kind = choose.choice(["row"] * 5 + ["delete"] * 3 + ["again"] * 2)
            if kind == "delete":
                self.delete(topic, key, when)
                continue
            if kind == "row" or key not in last:
                last[key] = self.row(topic, key, places)
            self.arriving.append((when, Change(topic, key, last[key], BEGIN)))

    def delete(self, topic: str, key: tuple[Any, ...], when: float) -> None:
        self.arriving.append((when, Change(topic, key, None, self.time())))

    def row(self, topic: str, key: tuple[Any, ...], places: list[str | None]) -> hw.Event:
        choose = self.choose
        if topic == "customers":
            return Customer(key[0], choose.choice(["ann", "bob", "cy"]), choose.choice(places))
        if topic == "orders":
            customer = choose.choice([*self.names("c", 5), None])
            cents = choose.choice([None, *range(0, 500, 50)])
            return Order(key[0], customer, choose.choice(places), cents, choose.randrange(40) / 8)
        return Rate(key[0], choose.randrange(30), key[1] if len(key) > 1 else self.time())

    def stream(self, topic: str, count: int, words: list[str | None]) -> None:
        kind = STREAMS[topic][0]
        for name in self.names(topic, count):
            at, word = self.time(), self.choose.choice(words)
            for _ in range(self.choose.choice([1] * 5 + [2]) if topic != "sales" else 1):
                when = (at - BEGIN) / MINUTE + self.choose.uniform(0, WAIT)
                self.arriving.append((when, Change(topic, (name,), kind(name, word, at), at)))


def batches(first: int) -> list[list[Change]]:
    """What some seeds do together, in the batches in which it comes; at the end time advances in every stream and partition."""
    arriving = [each for seed in range(first, first + TOGETHER) for each in Happening(seed).arriving]
    arriving.sort(key=lambda each: each[0])
    cuts = [
        0,
        *sorted(random.Random(first).sample(range(50, len(arriving) - 50), BATCHES - 1)),
        len(arriving),
    ]
    parts = [[change for _, change in arriving[start:end]] for start, end in pairwise(cuts)]
    day = BEGIN + timedelta(days=1)
    for topic, (kind, _, _) in STREAMS.items():
        for n in range(8):
            parts[-1].append(Change(topic, (f"{END}{n}",), kind(f"{END}{n}", None, day), day))
    return parts


# What is expected.


TYPES = {
    "text": pa.string(),
    "number": pa.int64(),
    "double": pa.float64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us", "UTC"),
}
COLUMNS = {
    "customers": "customer_id text, name text, region text",
    "orders": "order_id text, customer_id text, zone text, cents number, kilos double",
    "rates": "land text, percent number, valid_from time, n number, gone flag",
    "prices": "land text, percent number, valid_from time, n number, gone flag",
    "sales": "sale_id text, land text, at time",
    "searches": "search_id text, query text, at time",
    "clicks": "click_id text, query text, clicked_at time",
}
COSTLY = ("spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled")
"""What helps with many rows and costs much with few."""


def last_rows(changes: list[Change], topic: str) -> Iterator[hw.Event]:
    """A table in the end: the last change of each key."""
    last = {change.key: change.event for change in changes if change.topic == topic}
    return (event for event in last.values() if event is not None)


def fields(event: hw.Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def contents(changes: list[Change]) -> dict[str, list[dict[str, Any]]]:
    """What SQL is asked about: tables as they are in the end, the versions of prices, streams."""
    prices = [change for change in changes if change.topic == "prices"]
    return {
        "customers": [fields(event) for event in last_rows(changes, "customers")],
        "orders": [fields(event) for event in last_rows(changes, "orders")],
        "rates": [fields(event) | {"n": 0, "gone": False} for event in last_rows(changes, "rates")],
        "prices": [
            {"land": each.key[0], "valid_from": each.at, "n": n, "gone": True}
            if each.event is None
            else fields(each.event) | {"n": n, "gone": False}
            for n, each in enumerate(prices)
        ],
        **{name: [fields(each.event) for each in changes if each.topic == name] for name in STREAMS},
    }


def expected(spark: SparkSession, changes: list[Change]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each view by plain SQL."""
    for name, rows in contents(changes).items():
        columns = [field.split() for field in COLUMNS[name].split(", ")]
        table = pa.Table.from_pylist(rows, pa.schema([(column, TYPES[kind]) for column, kind in columns]))
        spark.createDataFrame(table).createOrReplaceTempView(name)
    known = {setting: spark.conf.get(setting) for setting in COSTLY}
    try:
        for setting in COSTLY:
            spark.conf.set(setting, "false")
        return {
            name: [row.asDict(recursive=True) for row in spark.sql(case.sql).collect()]
            for name, case in CASES.items()
        }
    finally:
        for setting, value in known.items():
            spark.conf.set(setting, value)


def plain(value: Any) -> Any:
    """A value without what differs between JSON and Spark: times as datetimes, an id of a version without its place in the log."""
    if isinstance(value, dict):
        return tuple((name, plain(each)) for name, each in sorted(value.items()))
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value):
        return datetime.fromisoformat(value.partition("#")[0])
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def differences(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[str]:
    """Rows that one has more often than the other."""
    there, right_ones = Counter(map(plain, found)), Counter(map(plain, wanted))
    return sorted([f"too many: {row}" for row in there - right_ones] + [f"missing: {row}" for row in right_ones - there])  # fmt: skip


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, TOGETHER))
def test_a_view_of_tables_is_what_sql_says_of_them_in_the_end(shop, spark, first):
    parts, choose = batches(first), random.Random(first)
    shop.make(*TABLES, *STREAMS)
    app = declared(shop, *CASES)
    for part in parts:
        shop.send_records((topic, key_text(key), event, at) for topic, key, event, at in part)
        Runner(app, shop.settings).once()
        for name in choose.sample(list(CASES), len(CASES) // 2):
            shop.lose_commit(shop.name(name))
    Runner(declared(shop, "unmatched"), shop.settings).once()  # which waits for the time

    answers = expected(spark, [change for part in parts for change in part])
    found = {name: list(shop.table(shop.name(name)).values()) for name in CASES}
    wrong = {name: differences(found[name], answers[name])[:5] for name in CASES}
    assert {name: each for name, each in wrong.items() if each} == {}, f"seeds {first} and following"
    assert all(found.values())


@pytest.mark.spark
def test_a_table_that_ignores_deletes_would_be_seen_in_each_view_of_tables(spark):
    changes = [change for part in batches(0) for change in part]
    answers = expected(spark, changes)
    faulty = expected(spark, [change for change in changes if change.event is not None])
    seen = {name for name in CASES if differences(faulty[name], answers[name])}
    assert seen == CASES.keys() - {"match_left", "match_full", "unmatched"}


def test_a_row_that_is_missing_or_other_or_there_twice_is_a_difference():
    row = {"key": "a", "rows": [{"n": 1}], "at": BEGIN, "version": None}
    shown = row | {"at": BEGIN.isoformat()}
    assert differences([shown], [row]) == []
    for wrong in ([], [shown, shown], [shown | {"rows": [{"n": 2}]}], [shown | {"version": "x"}]):
        assert differences(wrong, [row]) != []
