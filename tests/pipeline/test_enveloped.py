"""Tables of captures through Spark: rows come out of Debezium's envelope, deletes are deletes, and what is no row is found invalid."""

import json
from datetime import date, datetime
from decimal import Decimal

import pytest

import headwater as hw
from headwater.client import producer
from headwater.pipeline.batch import rows
from headwater.pipeline.runner import Runner

pytestmark = pytest.mark.spark


class Line(hw.Event):
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

    def told(order: int, line: str, value: bytes | None) -> None:
        send.produce(topic, value, json.dumps({"line": line, "order_id": order}), 0)

    shop.make("line")
    told(1, "a", event("r", row(1, "a", 100)))
    told(1, "b", event("c", row(1, "b", 200)))
    told(2, "a", event("c", row(2, "a", 300)))
    send.flush()
    Runner(app, shop.settings).once()
    told(1, "a", event("u", row(1, "a", 101)))
    told(1, "b", event("d", None))
    told(1, "b", None)
    told(3, "x", b'{"no": "envelope"}')
    told(4, "x", event("c", {"order_id": 4, "line": "x"}))
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
