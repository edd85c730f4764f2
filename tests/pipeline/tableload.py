"""A load of tables and streams that are joined: rows are inserted, updated and deleted on both sides, versions come late, and a view reads a view."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import headwater as hw
from headwater.declare.schema import key_text
from headwater.errors import NotReachedError, UsageError
from headwater.follow.follower import wait
from headwater.pipeline.topics import Topics
from headwater.position import Position
from pipeline.promises import complaints
from pipeline.published import published
from support.ordershop import Shop

__all__ = ["TableLoad"]

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
JITTER = 15
"""Minutes by which an event may come after others that are later; less than what streams wait for, so that none is late."""
BEFORE, AFTER = 3 * MINUTE, 10 * MINUTE
WAIT_S = 2.0
DELETED = 0.2
"""The share of changes of tables that are deletions."""
END = "sizes"
"""The view at the end of the chain."""


class Customer(hw.Row):
    customer_id: str
    region: str | None


class Order(hw.Row):
    order_id: str
    customer_id: str | None
    cents: int


class Rate(hw.Row):
    land: str
    percent: int
    valid_from: datetime


class Sale(hw.Event):
    sale_id: int
    land: str
    at: datetime


class Search(hw.Event):
    search_id: int
    query: str
    at: datetime


class Click(hw.Event):
    click_id: int
    query: str
    clicked_at: datetime


TABLES = ("customers", "orders", "rates")
STREAMS = ("sales", "searches", "clicks")
INPUTS = {
    "by_region": ("orders", "customers"),
    "taxed": ("sales", "rates"),
    "answers": ("searches", "clicks"),
}
CHAIN = INPUTS["by_region"]

Row = dict[str, Any]


class TableLoad:
    """Changes on both sides of three joins, a few at a time."""

    app = """
    from pyspark.sql import functions as F

    import headwater as hw
    from pipeline.tableload import Click, Customer, Order, Rate, Sale, Search

    app = hw.App("tables")
    app.table("customers", Customer, key="customer_id")
    app.table("orders", Order, key="order_id")
    app.table("rates", Rate, key=["land", "valid_from"])
    app.stream("sales", Sale, key="sale_id", time="at", delay="1 hour")
    app.stream("searches", Search, key="search_id", time="at", delay="1 hour")
    app.stream("clicks", Click, key="click_id", time="clicked_at", delay="1 hour")


    @app.view(key="region")
    def by_region(orders, customers):
        both = hw.join(orders, customers, on="customer_id", how="left")
        last = hw.newest_of(["cents", "order_id"], order="cents", limit=2)
        return hw.group(both, "region", n=F.count("*"), cents=F.sum("cents"), last=last)


    @app.view(key="n")
    def sizes(by_region):
        return hw.group(by_region, "n", regions=F.count("*"), cents=F.sum("cents"))


    @app.view(key="sale_id", late=hw.late.correct("2 days"))
    def taxed(sales, rates):
        found = hw.enrich(sales, rates, on="land", as_of="at", valid="valid_from")
        return found.select("sale_id", "land", "percent")


    @app.view(key=["search_id", "click_id"])
    def answers(searches, clicks):
        near = {"time": ("at", "clicked_at"), "before": "3 minutes", "after": "10 minutes"}
        return hw.match(searches, clicks, on="query", how="left", **near).select("search_id", "query", "click_id")
    """
    views = (*INPUTS, END)

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._sent: Counter[str] = Counter()
        self._numbers = count()
        self._rows: dict[str, dict[tuple[Any, ...], Any]] = {topic: {} for topic in (*TABLES, *STREAMS)}
        """What the topics say in the end."""
        self._early: list[str] = []
        """What stood wrong at the end of the chain although a wait had returned."""

    def make(self) -> None:
        Topics(self._shop.bootstrap).ensure(TABLES, 2, compact=True)
        Topics(self._shop.bootstrap).ensure(STREAMS, 2, compact=False)

    def send(self, chance: random.Random) -> None:
        changes = [self._change(chance) for _ in range(chance.randint(1, 40))]
        for topic, key, event in changes:
            self._sent[topic] += 1
            self._rows[topic][key] = event
            if event is None:
                del self._rows[topic][key]
        now = datetime.now(UTC)
        self._shop.send_records((topic, key_text(key), event, now) for topic, key, event in changes)

    def _change(self, chance: random.Random) -> tuple[str, tuple[Any, ...], hw.Event | None]:
        """Of a table: a row that comes or changes, or the deletion of one that may not be there. Of a stream: an event."""
        topic = chance.choice([*TABLES, "orders", *STREAMS])
        number = next(self._numbers)
        at = BEGIN + number / 4 * MINUTE - chance.randrange(JITTER) * MINUTE
        land = chance.choice(["de", "fr", "us"])
        if topic in STREAMS:
            kind: Callable[..., hw.Event] = {"sales": Sale, "searches": Search, "clicks": Click}[topic]
            return topic, (number,), kind(number, land, at)
        customer = f"c{chance.randrange(8)}"
        row: hw.Event
        if topic == "customers":
            row = Customer(customer, chance.choice([land, land, land, None]))
            key: tuple[Any, ...] = (customer,)
        elif topic == "orders":
            known = chance.choice([customer] * 4 + ["unknown", None])
            row = Order(f"o{chance.randrange(60)}", known, chance.randrange(50))
            key = (row.order_id,)
        else:
            row = Rate(land, number, BEGIN + 15 * chance.randrange(-1, 12) * MINUTE)
            key = (land, row.valid_from)
        return topic, key, None if chance.random() < DELETED else row

    def caught_up(self) -> bool:
        if not all(self._taken(view, topic) for view, topics in INPUTS.items() for topic in topics):
            return False
        ends = Topics(self._shop.bootstrap).ends(CHAIN)
        try:
            wait(END, Position(ends), WAIT_S, log=self._shop.settings)
        except (NotReachedError, UsageError):  # or there are no results yet
            return False
        if self._shop.table(END) != (right := self.answers()[END]):
            self._early.append(f"after {dict(self._sent)}: {self._shop.table(END)} instead of {right}")
        return True

    def _taken(self, view: str, topic: str) -> bool:
        return sum(self._shop.committed(view, topic).get(topic, {}).values()) == self._sent[topic]

    def faults(self) -> dict[str, list[str]]:
        answers, inner = self.answers(), {"by_region": self._entries()}
        found = {
            view: complaints(
                published(self._shop, view, answers[view], LOOKS.get(view, {}), inner.get(view, {}))
            )
            for view in self.views
        }
        found["at the end of the chain"] = self._early
        return {view: said for view, said in found.items() if said}

    def _entries(self) -> dict[str, Row]:
        """How much the operators of the join must keep: each row of both tables, once. Orders without a customer are rows of it too."""
        every = len(self._rows["orders"]) + len(self._rows["customers"])
        return {name: {"entries": every} for name in JOIN}

    def answers(self) -> dict[str, dict[str, Row]]:
        """The batch answers, in plain Python."""
        regions = self._by_region()
        return {
            "by_region": _by_key(regions, "region"),
            "sizes": _by_key(_sizes(regions), "n"),
            "taxed": _by_key(self._taxed(), "sale_id"),
            "answers": _by_key(self._matched(), "search_id", "click_id"),
        }

    def _by_region(self) -> list[Row]:
        of = {row.customer_id: row.region for row in self._rows["customers"].values()}
        groups: dict[str | None, list[Order]] = {}
        for order in self._rows["orders"].values():
            groups.setdefault(of.get(order.customer_id), []).append(order)
        return [
            {"region": region, "n": len(rows), "cents": sum(row.cents for row in rows), "last": _last(rows)}
            for region, rows in groups.items()
        ]

    def _taxed(self) -> list[Row]:
        made = []
        for sale in self._rows["sales"].values():
            held = [
                (rate.valid_from, rate.percent)
                for rate in self._rows["rates"].values()
                if rate.land == sale.land and rate.valid_from <= sale.at
            ]
            percent = max(held)[1] if held else None
            made.append({"sale_id": sale.sale_id, "land": sale.land, "percent": percent})
        return made

    def _matched(self) -> list[Row]:
        made = []
        for search in self._rows["searches"].values():
            met: list[int | None] = [
                click.click_id
                for click in self._rows["clicks"].values()
                if click.query == search.query and -BEFORE <= click.clicked_at - search.at <= AFTER
            ]
            made += [
                {"search_id": search.search_id, "query": search.query, "click_id": click}
                for click in met or [None]
            ]
        return made


def _entry_count(state: dict[bytes, bytes]) -> Row:
    return {"entries": len(state)}


JOIN = ("route3", "join4")
"""The operators of the join of by_region."""
LOOKS = {"by_region": dict.fromkeys(JOIN, _entry_count)}


def _last(rows: list[Order]) -> list[Row]:
    newest = sorted(((row.cents, row.order_id) for row in rows), reverse=True)[:2]
    return [{"cents": cents, "order_id": order} for cents, order in newest]


def _sizes(regions: list[Row]) -> list[Row]:
    found: dict[int, list[int]] = {}
    for row in regions:
        found.setdefault(row["n"], []).append(row["cents"])
    return [{"n": n, "regions": len(cents), "cents": sum(cents)} for n, cents in found.items()]


def _by_key(rows: list[Row], *key: str) -> dict[str, Row]:
    return {key_text([row[name] for name in key]): row for row in rows}
