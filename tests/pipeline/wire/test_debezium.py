"""Tables of captures through Spark: rows come out of Debezium's envelope, deletes are deletes, and what is not a row is found invalid."""

import json
from datetime import date, datetime
from decimal import Decimal

import pytest

import headwater as hw
from headwater.capture.loop.feed import Feed
from headwater.capture.postgres.source import PostgresSource
from headwater.client.client import producer
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.run.runner import Runner
from support.captured import by_key, database, drop_slots, events, execute, running
from support.servers import wait_until

pytestmark = pytest.mark.spark


class Line(hw.Row):
    order_id: int
    line: str
    cents: int
    price: Decimal | None = None
    day: date | None = None
    at: datetime | None = None


def event(op: str, after: dict | None) -> bytes:
    source = {"version": "1", "connector": "postgresql", "ts_ms": 1}
    return json.dumps({"before": None, "after": after, "source": source, "op": op, "ts_ms": 2}).encode()


def row(order: int, line: str, cents: int) -> dict:
    moment = "2026-01-05T09:00:00.000001Z"
    return {"order_id": order, "line": line, "cents": cents, "price": "1.50", "day": 20454, "at": moment}


def test_a_captured_table_is_a_table(shop):
    topic, view = shop.name("line"), shop.name("lines")
    app = hw.App("shop")
    app.table("line", Line, key=["order_id", "line"], topic=topic, envelope="debezium")
    app.sql(view, "SELECT * FROM line WHERE cents > 0", key=["order_id", "line"])
    send = producer(shop.log)

    def capture(order: int, line: str, value: bytes | None) -> None:
        send.produce(topic, value, json.dumps({"line": line, "order_id": order}), 0)

    shop.make("line")
    capture(1, "a", event("r", row(1, "a", 100)))
    capture(1, "b", event("c", row(1, "b", 200)))
    capture(2, "a", event("c", row(2, "a", 300)))
    send.flush()
    Runner(app, shop.settings).once()
    capture(1, "a", event("u", row(1, "a", 101)))
    capture(1, "b", event("d", None))
    capture(1, "b", None)
    capture(3, "x", b'{"no": "envelope"}')
    capture(4, "x", event("c", {"order_id": 4, "line": "x"}))
    send.produce(topic, event("t", None), None, 0)
    send.flush()
    Runner(app, shop.settings).once()

    assert shop.table(view) == rows(app, shop.settings)[view]
    assert {key: found["cents"] for key, found in shop.table(view).items()} == {
        '[1,"a"]': 101,
        '[2,"a"]': 300,
    }
    assert shop.table(view)['[2,"a"]'] == {
        "order_id": 2,
        "line": "a",
        "cents": 300,
        "price": "1.500000000",
        "day": "2026-01-01",
        "at": "2026-01-05T09:00:00.000001Z",
    }
    assert len(shop.records(f"{topic}.invalid")) == 3


class Product(hw.Row):
    id: int
    price: int
    description: str
    marks: list[int]


class Stock(hw.Row):
    product: int
    pieces: int


def test_large_values_that_an_update_does_not_touch_stay_in_tables_of_captures(shop, postgres):
    url, name = database(postgres.url), shop.name("base").replace("-", "_")
    topic, view, mean = f"{name}.public.product", shop.name("shelf"), shop.name("mean")
    app = hw.App("shop")
    app.table("product", Product, key="id", topic=topic, envelope="debezium")
    app.table("stock", Stock, key="product", topic=f"{name}.public.stock", envelope="debezium")
    joined = (
        "SELECT id, price, description, marks, pieces FROM product JOIN stock ON product.id = stock.product"
    )
    app.sql(view, joined, key="id")
    app.sql(
        mean, "SELECT description, sum(price) AS price FROM product GROUP BY description", key="description"
    )
    long = "string_agg(md5(i::text), '')"
    execute(
        url,
        "CREATE TABLE product (id int PRIMARY KEY, price int, description text, marks int[])",
        "ALTER TABLE product ALTER marks SET STORAGE EXTERNAL",
        "CREATE TABLE stock (product int PRIMARY KEY, pieces int)",
        f"INSERT INTO product SELECT 1, 10, {long}, array_agg(i) FROM generate_series(1, 2000) i",
        "INSERT INTO stock VALUES (1, 5)",
    )

    def price() -> list[int]:
        return [row["price"] for row in by_key(events(shop.log, name), topic).values()]

    with running(Feed(name, PostgresSource(name, url, ("product", "stock")), shop.log)):
        wait_until(lambda: price() == [10], 30, "the row")
        Runner(app, shop.settings).once()
        execute(url, "UPDATE product SET price = 11")
        wait_until(lambda: price() == [11], 30, "the update")
        Runner(app, shop.settings).once()
    drop_slots(url)

    (row,) = shop.table(view).values()
    assert (row["price"], len(row["description"]), row["marks"]) == (11, 64_000, [*range(1, 2001)])
    assert [(len(row["description"]), row["price"]) for row in shop.table(mean).values()] == [(64_000, 11)]
    assert shop.table(view) == rows(app, shop.settings)[view]


class Reading(hw.Row):
    number: int
    name: str
    on: bool
    day: date
    at: datetime
    price: Decimal
    raw: bytes
    v: int


class Closed(hw.Row):
    day: date
    v: int


def test_a_deleted_row_is_taken_out_whatever_the_types_of_its_key_are(shop, postgres):
    url, name = database(postgres.url), shop.name("keys").replace("-", "_")
    readings, closed = shop.name("readings"), shop.name("closed")
    key = ["number", "name", "on", "day", "at", "price", "raw"]
    app = hw.App("shop")
    app.table("reading", Reading, key=key, topic=f"{name}.public.reading", envelope="debezium")
    app.table("closing", Closed, key="day", topic=f"{name}.public.closing", envelope="debezium")
    app.sql(readings, "SELECT * FROM reading", key=key)
    app.sql(closed, "SELECT * FROM closing", key="day")
    execute(
        url,
        'CREATE TABLE reading (number bigint, name text, "on" boolean, day date, at timestamptz, price numeric(20, 4),'
        ' raw bytea, v int, PRIMARY KEY (number, name, "on", day, at, price, raw))',
        "CREATE TABLE closing (day date PRIMARY KEY, v int)",
        *(
            f"INSERT INTO reading VALUES ({number}, {text}, {flag}, '{day}', '{at}', {price}, '{raw}', {v})"
            for v, (number, text, flag, day, at, price, raw) in enumerate(KEYS)
        ),
        *(f"INSERT INTO closing VALUES ('{values[3]}', {v})" for v, values in enumerate(KEYS)),
    )

    def left(table: str) -> list[int]:
        return sorted(row["v"] for row in by_key(events(shop.log, name), f"{name}.public.{table}").values())

    def shown(view: str) -> list[int]:
        return sorted(row["v"] for row in shop.table(view).values())

    source = PostgresSource(name, url, ("reading", "closing"), decimals="string")
    with running(Feed(name, source, shop.log)):
        wait_until(lambda: left("closing") == [0, 1, 2, 3], 30, "the rows")
        Runner(app, shop.settings).once()
        assert (shown(readings), shown(closed)) == ([0, 1, 2, 3], [0, 1, 2, 3])
        execute(url, "DELETE FROM reading WHERE v <> 1", "DELETE FROM closing WHERE v <> 1")
        wait_until(lambda: left("closing") == [1], 30, "the deletes")
        Runner(app, shop.settings).once()
    drop_slots(url)

    assert (shown(readings), shown(closed)) == ([1], [1])


KEYS = [
    (1, "'a'", True, "2020-01-01", "2020-01-01 00:00:00Z", "1.5", "\\x00ff"),
    (
        -9223372036854775808,
        "'it''s \"é\" []'",
        False,
        "1969-12-31",
        "1969-12-31 23:59:59.999999Z",
        "-0.0001",
        "",
    ),
    (0, "''", True, "1000-01-01", "1000-01-01 00:00:00Z", "0", "\\x22"),
    (
        9223372036854775807,
        "E'\\\\n'",
        False,
        "9999-12-31",
        "9999-12-31 23:59:59Z",
        "9999999999999999",
        "\\x5b",
    ),
]
"""Values of a key: one of everyday, and the edges of each type."""
