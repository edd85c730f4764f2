"""make bench-joins: as-of enrichment and the join of two tables, by themselves and through a whole pipeline from the embedded log into a topic.

By themselves: the operators inside Spark with their state (``operators.py``). The pipelines beside Flink SQL's temporal join and regular join on the same topics, and beside the same logic in transformWithState, on a part of them: all in one
run, and all say the same. CPU-seconds are those of all processes but the log's. EVENTS= and ROUNDS= say how much.
"""

import os
import statistics
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import headwater as hw
import operators
from beside import Flink, Ours
from embedded import embedded
from headwater.client.client import Client, producer
from headwater.pipeline.spark import session
from nexmark import EVENTS, ROUNDS, content, measured
from nexmark_queries import JSON, Query, app
from results import Figure, save
from support.servers import BrokerProcess

PART = 20
"""transformWithState gets one record for so many that ours and Flink get."""
END = "-part"
"""What the topics with this part end in."""
GOAL_ROWS, GOAL_STATEFUL, GOAL_FLINK = 300_000, 8, 1.0
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
Record = tuple[str, int, bytes | None]
"""Topic, key and value."""


class Trade(hw.Event):
    trade_id: int
    account: int
    cents: int
    at: datetime


class Rate(hw.Row):
    account: int
    rate: int
    since: datetime


class Order(hw.Row):
    order_id: int
    customer_id: int
    cents: int
    status: str


class Customer(hw.Row):
    customer_id: int
    name: str
    city: str


# ---- the records ---------------------------------------------------------------------------------------


def trades(count: int, *, deletes: bool = True) -> Iterator[Record]:  # noqa: ARG001 (rates are never deleted)
    """Of twenty records one is a new rate of an account, the others are trades; there are a hundred for each account."""
    accounts = max(count // 100, 1)
    for n in range(count):
        at = (BEGIN + timedelta(milliseconds=n)).isoformat(timespec="milliseconds")[:-6].encode() + b"Z"
        account = (n // 20 if n % 20 == 0 else n) * 7_919 % accounts
        if n % 20 == 0:
            yield "rates", account, b'{"account":%d,"rate":%d,"since":"%b"}' % (account, n, at)
        else:
            value = b'{"trade_id":%d,"account":%d,"cents":%d,"at":"%b"}' % (n, account, n % 9973, at)
            yield "trades", account, value


def orders(count: int, *, deletes: bool = True) -> Iterator[Record]:
    """Of ten records one is a customer's, who has nine orders and moves once; an order comes and changes, and one of fifty goes."""
    customers, every = max(count // 20, 1), max(count * 9 // 20, 1)
    order = 0
    for n in range(count):
        if n % 10 == 0:
            number = n // 10 % customers
            value = b'{"customer_id":%d,"name":"customer %d","city":"city %d"}' % (number, number, n % 97)
            yield "customers", number, value
            continue
        number, again = order % every, order >= every
        order += 1
        if deletes and again and number % 50 == 0:
            yield "orders", number, None
            continue
        about = (number, number * 7_919 % customers, n % 9973, b"paid" if again else b"open")
        yield "orders", number, b'{"order_id":%d,"customer_id":%d,"cents":%d,"status":"%b"}' % about


def fill(bootstrap: str, records: Iterator[Record], end: str = "") -> None:
    out = producer(bootstrap, **{"queue.buffering.max.messages": 1_000_000})
    parts: dict[str, list[dict[str, bytes | None]]] = {}
    for topic, key, value in records:
        if topic not in parts:
            Client(bootstrap).ensure_topics([topic + end], 2)
        part = parts.setdefault(topic, [])
        part.append({"key": b"%d" % key, "value": value})
        if len(part) == 20_000:
            out.produce_batch(topic + end, part)
            out.poll(0)
            part.clear()
    for topic, part in parts.items():
        out.produce_batch(topic + end, part)
    if out.flush(120):
        raise RuntimeError("records were not acknowledged")


# ---- ours ----------------------------------------------------------------------------------------------


def enriched(trades: Any, rates: Any) -> Any:
    found = hw.enrich(trades, rates, "account", as_of="at", valid="since")
    return found.select("trade_id", "account", "cents", "at", "rate")


def joined(orders: Any, customers: Any) -> Any:
    return hw.join(orders, customers, on="customer_id")


def reads_trades(declared: hw.App) -> None:
    declared.stream("trades", Trade, key="account", time="at", delay="4 seconds")
    declared.table("rates", Rate, key="account", time="since", delay="4 seconds")


def reads_orders(declared: hw.App) -> None:
    declared.table("orders", Order, key="order_id")
    declared.table("customers", Customer, key="customer_id")


# ---- the same in transformWithState --------------------------------------------------------------------


class Enriching(StatefulProcessor):
    """Keeps the rates of an account, and its trades, which a rate may change that comes late."""

    def init(self, handle: Any) -> None:
        self._rates = handle.getListState("rates", "since long, rate long")
        self._trades = handle.getListState("trades", "trade_id long, cents long, at long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002
        came = pd.concat(list(rows))
        is_rate = came["rate"].notna()
        fresh = list(came.loc[is_rate, ["at", "rate"]].astype("int64").itertuples(index=False, name=None))
        new = list(
            came.loc[~is_rate, ["trade_id", "cents", "at"]].astype("int64").itertuples(index=False, name=None)
        )
        rates = sorted([*map(tuple, self._rates.get()), *fresh])
        if fresh:
            self._rates.appendList(fresh)
        first = min((since for since, _ in fresh), default=None)
        again = [tuple(each) for each in self._trades.get() if each[2] >= first] if fresh else []
        if new:
            self._trades.appendList(new)
        out = [(trade, key[0], cents, at, _held(rates, at)) for trade, cents, at in (*again, *new)]
        yield pd.DataFrame(out, columns=["trade_id", "account", "cents", "at", "rate"]).astype(
            {"rate": "Int64"}
        )

    def close(self) -> None:
        pass


def _held(rates: list[tuple[int, int]], at: int) -> int | None:
    place = bisect_right(rates, (at, 1 << 62))
    return rates[place - 1][1] if place else None


class Joining(StatefulProcessor):
    """Keeps a customer and its orders, which never change to another customer."""

    def init(self, handle: Any) -> None:
        self._customer = handle.getValueState("customer", "name string, city string")
        self._orders = handle.getMapState("orders", "order_id long", "cents long, status string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002
        came = pd.concat(list(rows))
        customers = came[came["name"].notna()]
        new = came[came["name"].isna()]
        for order, cents, status in zip(new["order_id"], new["cents"], new["status"], strict=True):
            self._orders.updateValue((int(order),), (int(cents), status))
        touched = {int(each) for each in new["order_id"]}
        if len(customers):
            last = customers.iloc[-1]
            self._customer.update((last["name"], last["city"]))
        customer = self._customer.get()
        if customer is None:
            return
        shown = (
            [(order[0], *about) for order, about in self._orders.iterator()]
            if len(customers)
            else [(order, *self._orders.getValue((order,))) for order in touched]
        )
        out = [(order, key[0], cents, status, *customer) for order, cents, status in shown]
        names = ["order_id", "customer_id", "cents", "status", "name", "city"]
        yield pd.DataFrame(out, columns=names)

    def close(self) -> None:
        pass


def enriching(trades: Any, rates: Any) -> Any:
    both = trades.selectExpr(
        "account", "trade_id", "cents", "unix_micros(at) AS at", "CAST(NULL AS BIGINT) AS rate"
    ).union(
        rates.selectExpr(
            "account", "CAST(NULL AS BIGINT)", "CAST(NULL AS BIGINT)", "unix_micros(since)", "rate"
        )
    )
    kind = "trade_id long, account long, cents long, at long, rate long"
    out = both.groupBy("account").transformWithStateInPandas(Enriching(), kind, "Update", "None")
    return out.withColumn("at", F.timestamp_micros("at"))


def joining(orders: Any, customers: Any) -> Any:
    nothing = "CAST(NULL AS STRING)"
    both = orders.selectExpr(
        "customer_id", "order_id", "cents", "status", f"{nothing} AS name", f"{nothing} AS city"
    ).union(
        customers.selectExpr(
            "customer_id", "CAST(NULL AS BIGINT)", "CAST(NULL AS BIGINT)", nothing, "name", "city"
        )
    )
    kind = "order_id long, customer_id long, cents long, status string, name string, city string"
    return both.groupBy("customer_id").transformWithStateInPandas(Joining(), kind, "Update", "None")


# ---- both ----------------------------------------------------------------------------------------------


def part(tables: bool) -> Any:
    """Declares the topics with a part of the records, of which the changing ones are tables, or streams of changes."""

    def reads(declared: hw.App) -> None:
        changing = declared.table if tables else declared.stream
        declared.stream("trades", Trade, key="account", time="at", delay="4 seconds", topic=f"trades{END}")
        changing("rates", Rate, key="account", time="since", delay="4 seconds", topic=f"rates{END}")
        timed = {} if tables else {"time": hw.ARRIVAL}
        changing("orders", Order, key="order_id", topic=f"orders{END}", **timed)
        changing("customers", Customer, key="customer_id", topic=f"customers{END}", **timed)

    return reads


TIME = "TIMESTAMP_LTZ(3)"
CASES = {
    "as-of enrichment": Query(
        "enriched",
        f"trade_id BIGINT, account BIGINT, cents BIGINT, `at` {TIME}, rate BIGINT",
        ("trade_id",),
        enriched,
        """SELECT T.trade_id, T.account, T.cents, T.`at`, R.rate FROM trades T
        LEFT JOIN rates FOR SYSTEM_TIME AS OF T.`at` AS R ON T.account = R.account""",
        closed=True,
        reads=reads_trades,
    ),
    "join of two tables": Query(
        "joined",
        "order_id BIGINT, customer_id BIGINT, cents BIGINT, status STRING, name STRING, city STRING",
        ("order_id",),
        joined,
        """SELECT O.order_id, O.customer_id, O.cents, O.status, C.name, C.city
        FROM orders O JOIN customers C ON O.customer_id = C.customer_id ON CONFLICT DO DEDUPLICATE""",
        reads=reads_orders,
    ),
}
STATEFUL = {"as-of enrichment": enriching, "join of two tables": joining}
FLINKS = {"as-of enrichment": "temporal join", "join of two tables": "regular join"}


def tables(bootstrap: str) -> list[str]:
    """The four topics as Flink reads them."""
    where = f"'properties.bootstrap.servers' = '{bootstrap}', 'scan.bounded.mode' = 'latest-offset'"
    changing = (
        f"'connector' = 'upsert-kafka', {where}, 'key.format' = 'csv', {JSON.format('value.', 'value.')}"
    )
    late = "- INTERVAL '4' SECOND"
    return [
        f"""CREATE TABLE trades (trade_id BIGINT, account BIGINT, cents BIGINT, `at` {TIME}, WATERMARK FOR `at` AS `at` {late})
        WITH ('connector' = 'kafka', 'topic' = 'trades', {where}, 'scan.startup.mode' = 'earliest-offset', {JSON.format("", "")})""",
        f"""CREATE TABLE rates (account BIGINT, rate BIGINT, since {TIME}, PRIMARY KEY (account) NOT ENFORCED,
        WATERMARK FOR since AS since {late}) WITH ('topic' = 'rates', {changing})""",
        f"""CREATE TABLE orders (order_id BIGINT, customer_id BIGINT, cents BIGINT, status STRING,
        PRIMARY KEY (order_id) NOT ENFORCED) WITH ('topic' = 'orders', {changing})""",
        f"""CREATE TABLE customers (customer_id BIGINT, name STRING, city STRING,
        PRIMARY KEY (customer_id) NOT ENFORCED) WITH ('topic' = 'customers', {changing})""",
    ]


# ---- runs ----------------------------------------------------------------------------------------------


def stateful(what: str, ours: Ours, broker: BrokerProcess) -> float:
    """Records a second of transformWithState; its second run counts. It must say what ours does."""
    query = CASES[what]
    found = {}
    for name, function, is_ours in (
        ("warm", STATEFUL[what], False),
        ("it", STATEFUL[what], False),
        ("ours", query.ours, True),
    ):
        topic = f"{query.name}-{name}-{os.getpid()}"
        asked = replace(query, ours=function, reads=part(tables=is_ours))
        seconds = ours.run(app(asked, topic), topic)
        found[name] = (EVENTS // PART / seconds, content(broker.bootstrap, asked, topic, append=False)[:2])
        print(f"{what} in a part: {name:5} {found[name][0]:12,.0f} rows/s", flush=True)
    if found["it"][1] != found["ours"][1]:
        raise RuntimeError(
            f"{what}: {found['it'][1][0]:,} rows of transformWithState, {found['ours'][1][0]:,} of ours, and they differ"
        )
    return found["it"][0]


def figures(what: str, alone: float, runs: dict[str, Any], slow: float) -> list[Figure]:
    rows = EVENTS / runs["ours"]["job_s"]
    about = f"{what}, {EVENTS / 1e6:g} million records"
    flink = f"Flink SQL 2.3.0, {FLINKS[what]}"
    found = [
        Figure(
            f"{about}, the operators alone, in batches of a million",
            alone,
            GOAL_ROWS,
            "the goal",
            "rows/s",
            1.0,
        ),
        Figure(
            f"{about}, from topics into a topic",
            rows,
            slow,
            f"transformWithState in Python, {EVENTS // PART:,} records",
            "rows/s",
            GOAL_STATEFUL,
        ),
    ]
    for part_, unit in (("cpu_s", "CPU-s"), ("job_s", "s")):
        mine, theirs = runs["ours"][part_], runs["flink"][part_]
        found.append(
            Figure(
                f"{about}, {unit}, {ROUNDS} rounds",
                mine,
                theirs,
                flink,
                unit,
                GOAL_FLINK,
                higher_is_better=False,
            )
        )
    return found


def main() -> None:
    found: list[Figure] = []
    with embedded(partitions=2) as (broker, settings), tempfile.TemporaryDirectory() as folder:
        for made in (trades, orders):
            fill(broker.bootstrap, made(EVENTS))
            fill(broker.bootstrap, made(EVENTS // PART, deletes=False), END)
        flink = Flink(Path(folder), tables(broker.bootstrap))
        ours = Ours(settings)
        try:
            runs = {what: measured(query, ours, flink, broker) for what, query in CASES.items()}
            for what, medians in runs.items():
                spark, place = session.start(settings), Path(folder) / what
                alone = statistics.median(operators.measured(what, spark, place, ROUNDS, settings.partitions))
                found += figures(what, alone, medians, stateful(what, ours, broker))
        finally:
            flink.end()
            session.start(settings).stop()
    save("joins", found)


if __name__ == "__main__":
    main()
