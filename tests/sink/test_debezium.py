"""Rows of captured tables, whatever they are wrapped in."""

import json

import msgspec
import pytest

from headwater.sink.debezium import envelope_reader
from headwater.sink.store import SinkFeed

COLUMNS = {"id": "BIGINT", "day": "DATE", "name": "STRING"}


def opened(key, value, names=("id",), columns=COLUMNS):
    of = envelope_reader(SinkFeed("s", "t", names, columns, enveloped=True))
    text, row = of(None if key is None else json.dumps(key).encode(), value)
    return text.decode(), None if row is None else json.loads(row)


def event(op, after):
    return json.dumps({"before": None, "after": after, "source": {"ts_ms": 1}, "op": op}).encode()


@pytest.mark.parametrize("op", ["r", "c", "u"])
def test_a_row_is_what_the_change_leaves(op):
    assert opened({"id": 7}, event(op, {"id": 7, "name": "ä", "day": 20454, "more": 1})) == (
        "7",
        {"id": 7, "name": "ä", "day": "2026-01-01", "more": 1},
    )


def test_a_delete_and_its_tombstone_take_the_row_out():
    assert opened({"id": 7}, event("d", None)) == opened({"id": 7}, None) == ("7", None)


def test_a_key_of_several_columns_is_written_in_the_order_of_the_table():
    key = {"b": 1, "a": "x", "c": None}
    assert opened(key, None, ("a", "b")) == ('["x",1]', None)


def test_without_dates_a_row_stays_byte_by_byte():
    raw = b'{"op":"c","after":{"id":1,  "price":1.10}}'
    of = envelope_reader(SinkFeed("s", "t", ("id",), {"id": "BIGINT"}, enveloped=True))
    assert of(b'{"id":1}', raw) == (b"1", b'{"id":1,  "price":1.10}')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, event("t", None)),
        ({"other": 1}, event("c", {"id": 1})),
        ({"id": 1}, b"[1]"),
        ({"id": 1}, b"{"),
        ({"id": 1}, b'{"id": 1}'),
    ],
)
def test_what_is_not_a_row_is_refused(key, value):
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        opened(key, value)
