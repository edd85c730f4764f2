"""Rows of an outbox become the events that they are, in order for each aggregate."""

import json
import sqlite3

import pytest

from capturedb import until
from headwater.capture.outbox import Outbox, outbox_record
from headwater.capture.source import Record
from headwater.capture.sqlite import SqliteSource
from headwater.errors import CaptureError

ROW = {"id": 7, "aggregatetype": "order", "aggregateid": 42, "type": "Paid", "payload": '{"total": 3}'}


def test_a_row_goes_to_the_topic_of_its_kind_under_its_aggregate():
    assert outbox_record(ROW, "shop", 5) == Record("shop.order", b"42", b'{"total": 3}', 5)


@pytest.mark.parametrize(
    ("payload", "value"), [({"a": 1}, b'{"a":1}'), (None, None), ("", b""), ("é", "é".encode())]
)
def test_the_value_is_the_payload_alone(payload, value):
    assert outbox_record({**ROW, "payload": payload}, "shop", 5).value == value


def test_a_table_that_is_no_outbox_is_refused():
    with pytest.raises(CaptureError, match="aggregatetype"):
        outbox_record({"id": 1}, "shop", 5)
    with pytest.raises(CaptureError, match="names the topic"):
        outbox_record({**ROW, "aggregatetype": ""}, "shop", 5)


def test_an_outbox_is_read_through_any_source_and_may_be_emptied_at_once(tmp_path):
    db = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    db.execute("CREATE TABLE outbox(id INTEGER PRIMARY KEY, aggregatetype, aggregateid, type, payload)")
    db.execute("CREATE TABLE orders(id INTEGER PRIMARY KEY)")
    source = Outbox(
        SqliteSource("shop", tmp_path / "shop.db", ["outbox", "orders"]), "shop.outbox", prefix="events"
    )
    parts = source.read(None)
    until(parts, "0")
    for number in range(3):
        db.execute("BEGIN")
        db.execute("INSERT INTO orders DEFAULT VALUES")
        db.execute(
            "INSERT INTO outbox VALUES (NULL, 'order', ?, 'Made', ?)", (number % 2, json.dumps({"n": number}))
        )
        db.execute("DELETE FROM outbox")
        db.execute("COMMIT")
    found = [r for part in until(parts, "9") for r in part.records]

    assert [(r.key, r.value) for r in found if r.topic == "events.order"] == [
        (b"0", b'{"n": 0}'),
        (b"1", b'{"n": 1}'),
        (b"0", b'{"n": 2}'),
    ]
    assert sum(r.topic == "shop.orders" for r in found) == 3
    assert not any(r.topic == "shop.outbox" for r in found)
    source.close()
    db.close()
