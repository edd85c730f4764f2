"""Sinks of streams and tables judge records as views do: what a view finds invalid is not a row of a store."""

from datetime import datetime
from typing import NamedTuple

import headwater as hw
from headwater.declare.graph import Graph
from headwater.declare.judge import Judge
from headwater.declare.spec import Sink
from headwater.sink.changes import judged, parse_messages
from headwater.sink.debezium import envelope_reader
from headwater.sink.loop.feeds import sink_feed


class Order(hw.Event):
    order_id: int
    price: hw.Decimal(6, 2)
    at: datetime


class Product(hw.Row):
    id: int
    price: hw.Decimal(6, 2)


class Message(NamedTuple):
    """A consumer's message."""

    at: int
    text: bytes | None
    name: bytes | None = b"1"

    def key(self):
        return self.name

    def value(self):
        return self.text

    def topic(self):
        return "orders"

    def partition(self):
        return 0

    def offset(self):
        return self.at

    def timestamp(self):
        return (1, 0)


def feed_of(source: str):
    app = hw.App("shop")
    app.stream("orders", Order, key="order_id", time="at")
    app.table("product", Product, key="id", topic="shop.product", envelope="debezium")
    app.sql("prices", "SELECT order_id, price FROM orders", key="order_id")
    graph: Graph = app.graph()
    return sink_feed(graph, Sink("s", source, hw.sink.Sqlite("rows.db", columns={"id": "BIGINT"})), None)


def test_a_record_that_views_find_invalid_is_refused_with_the_field():
    reader = judged(Judge(feed_of("orders").type), None)
    right = b'{"order_id":1,"price":"1.50","at":"2026-01-05T09:00:00Z"}'
    messages = [Message(0, right), Message(1, right.replace(b"1.50", b"1.505")), Message(2, b"[]")]
    changes, offsets, refused = parse_messages(messages, reader=reader)
    assert [change.offset for change in changes] == [0]
    assert offsets == {0: 3}
    assert [reason.partition(";")[0] for _, reason in refused] == [
        "not a row: field 'price': got \"1.505\"",
        'not a row: the value is "[]"',
    ]


def test_a_row_inside_an_envelope_is_judged_and_a_delete_is_not():
    feed = feed_of("product")
    reader = judged(Judge(feed.type), envelope_reader(feed))
    wrong = b'{"op":"c","after":{"id":1,"price":"12345.00"}}'
    gone = b'{"op":"d","before":{"id":1},"after":null}'
    key = b'{"id":1}'
    changes, _, refused = parse_messages([Message(0, wrong, key), Message(1, gone, key)], reader=reader)
    assert [(change.offset, change.value) for change in changes] == [(1, None)]
    assert "field 'price'" in refused[0][1]


def test_rows_of_views_are_not_judged():
    assert feed_of("prices").type is None
