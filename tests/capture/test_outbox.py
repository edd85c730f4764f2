"""Rows of an outbox become the events that they are, in order for each aggregate."""

import sqlite3
import uuid

import pytest

from headwater.capture import MariaDB, Sqlite
from headwater.capture.loop.feed import Feed
from headwater.capture.outbox_router import outbox_record
from headwater.capture.source import Record
from headwater.client.client import Client
from headwater.errors import CaptureError, UsageError
from support.captured import running
from support.capturedb import Shop
from support.servers import wait_until

ROW = {"id": 7, "aggregatetype": "order", "aggregateid": 42, "type": "Paid", "payload": '{"total": 3}'}


def test_a_row_goes_to_the_topic_of_its_kind_under_its_aggregate():
    assert outbox_record(ROW, "shop", 5) == Record("shop.order", b"42", b'{"total": 3}', 5)


@pytest.mark.parametrize(
    ("payload", "value"), [({"a": 1}, b'{"a":1}'), (None, None), ("", b""), ("é", "é".encode())]
)
def test_the_value_is_the_payload_alone(payload, value):
    assert outbox_record({**ROW, "payload": payload}, "shop", 5).value == value


def test_a_table_that_is_not_an_outbox_is_refused():
    with pytest.raises(CaptureError, match="aggregatetype"):
        outbox_record({"id": 1}, "shop", 5)
    with pytest.raises(CaptureError, match="names the topic"):
        outbox_record({**ROW, "aggregatetype": ""}, "shop", 5)


@pytest.mark.parametrize("kind", ["sqlite", "mariadb"])
def test_an_outbox_that_is_declared_becomes_topics_by_kind_and_may_be_emptied_at_once(
    kind, request, bootstrap, tmp_path
):
    if kind == "sqlite":
        database = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
        tables, run = ["outbox", "orders"], database.execute
        declared = Sqlite(tmp_path / "shop.db", tables, outbox="outbox")
    else:
        shop = Shop(request.getfixturevalue("mariadb"), "outboxed")
        database, run = shop.connection, shop.run
        declared = MariaDB(shop.server.url, ["outboxed.*"], outbox="outboxed.outbox")
    name = f"c{uuid.uuid4().hex[:8]}"
    declared.check(name)
    text = "varchar(20)"
    run(
        f"CREATE TABLE outbox(id INTEGER PRIMARY KEY, aggregatetype {text}, aggregateid int, type {text}, payload {text})"
    )
    run("CREATE TABLE orders(id INTEGER PRIMARY KEY)")
    run("INSERT INTO outbox VALUES (99, 'order', 0, 'Made', 'before')")

    def found() -> list[tuple[str, bytes | None]]:
        client = Client(bootstrap)
        topics = [each for each in client.partitions() if each.startswith(f"{name}.")]
        own = {f"{name}.{each}" for each in ("capture", "schema", "control", "notifications")}
        messages = list(client.read([each for each in topics if each not in own]))
        client.close()
        return [(m.topic().removeprefix(f"{name}."), m.key(), m.value()) for m in messages]

    with running(Feed(name, declared.open(name, tmp_path), bootstrap, outbox=declared.outbox_router(name))):
        wait_until(lambda: len(found()) == 1, 30, "the row that was there")
        for number in range(3):
            run("BEGIN")
            run(f"INSERT INTO orders VALUES ({number})")
            run(f"INSERT INTO outbox VALUES ({number}, 'order', {number % 2}, 'Made', 'n{number}')")
            run("DELETE FROM outbox")
            run("COMMIT")
        wait_until(lambda: len(found()) == 7, 30, "the events and the orders")

    events = [each[1:] for each in found() if each[0] == "event.order"]
    assert events == [(b"0", b"before"), (b"0", b"n0"), (b"1", b"n1"), (b"0", b"n2")]
    assert sum(each[0].endswith("orders") for each in found()) == 3
    database.close()


def test_an_outbox_that_is_not_captured_is_refused(tmp_path):
    for declared in (
        Sqlite(tmp_path / "shop.db", ["orders"], outbox="outbox"),
        MariaDB("mysql://shop@db", ["shop.orders"], outbox="shop.outbox"),
    ):
        with pytest.raises(UsageError, match="is not one of its tables"):
            declared.check("shop")
