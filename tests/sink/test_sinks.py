"""Sinks of an application: from the declaration to the table, with the commands that look after them."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from datetime import datetime

import msgspec
import psycopg
import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.config import Settings
from headwater.declare.drawing import drawing
from headwater.declare.spec import Sink
from headwater.errors import UsageError
from headwater.node.gate import Gate
from headwater.node.node import Node
from headwater.result import Result
from headwater.sink import Call, Delta, Kafka, OpenSearch, Parquet, Postgres, Redis, Sqlite, Tantivy
from headwater.sink.loop import feeds
from headwater.sink.loop.loop import Loop
from headwater.sink.loop.sinks import Sinks
from headwater.sink.loop.status import PartitionStatus, partition_statuses
from headwater.sink.store import SinkFeed
from sink.proxy import Proxy
from support.servers import wait_until

APP = """
from datetime import datetime
import headwater as hw
app = hw.App("shop")
class Order(hw.Event):
    id: str
    n: int
    at: datetime
class Product(hw.Row):
    id: str
    n: int
    at: datetime
app.stream("orders", Order, key="id", time="at", topic="{topic}")
app.table("products", Product, key="id", topic="{topic}-products")
app.sink("orders", hw.sink.Sqlite("{folder}/orders.db", table="orders"), name="{topic}.file")
app.sink("orders", hw.sink.Sqlite("{folder}/none.db", table="orders"), name="{topic}.second")
bad = hw.sink.Sqlite("{folder}/none.db", table="products", columns={{"id": "NOTHING"}})
app.sink("products", bad, name="{topic}.bad")
"""


class Order(hw.Event):
    id: str
    n: int
    at: datetime


class Product(hw.Row):
    id: str
    n: int
    at: datetime


def declared(**options) -> hw.App:
    app = hw.App("shop")
    app.stream("orders", Order, key="id", time="at")
    app.table("products", Product, key="id")
    app.sql("totals", "SELECT id, sum(n) AS n FROM orders GROUP BY id", key="id", **options)
    return app


def test_columns_come_from_the_type_or_from_the_newest_result(log):
    app = declared()
    view = log.name("totals")
    app.sql(view, "SELECT id, sum(n) AS n FROM orders GROUP BY id", key="id")
    for name in ("orders", "products", view):
        app.sink(name, Sqlite("x.db"))
    graph, client = app.graph(), Client(log.log)
    found = {sink.source: feeds.sink_feed(graph, sink, client) for sink in graph.sinks.values()}
    assert found["orders"].append
    assert not found["products"].append
    assert dict(found["products"].columns) == {"id": "STRING", "n": "BIGINT", "at": "TIMESTAMP"}
    assert found[view] is None

    log.create(f"{view}.progress", partitions=1, policy="delete")
    result = Result(run="r", batch=0, inputs={}, partitions=2, columns={"id": "STRING", "n": "BIGINT"})
    log.producer.produce(f"{view}.progress", value=msgspec.json.encode(result))
    log.producer.flush(60)
    found = feeds.sink_feed(graph, graph.sinks[f"{view}.sqlite"], client)
    assert found == SinkFeed(f"{view}.sqlite", view, ("id",), {"id": "STRING", "n": "BIGINT"})
    client.close()


def test_the_sink_of_a_real_time_view_must_declare_its_columns():
    app = declared(latency="realtime")
    app.sink("totals", Sqlite("x.db"))
    graph = app.graph()
    with pytest.raises(UsageError, match="no result that names its columns"):
        feeds.check_sink(graph, graph.sinks["totals.sqlite"])

    totals = Sink("s", "totals", Sqlite("x.db", columns={"id": "STRING", "n": "BIGINT"}))
    feeds.check_sink(graph, totals)
    assert feeds.sink_feed(graph, totals, None).versioned
    assert "totals.sqlite  sink · totals ─► sqlite" in drawing(graph)


@pytest.fixture
def application(log, tmp_path):
    topic = log.name("orders")
    file = tmp_path / "app.py"
    file.write_text(APP.format(topic=topic, folder=tmp_path))
    settings = {"HEADWATER_LOG": f"kafka://{log.log}", "HEADWATER_VIEW_TABLES": f"sqlite:{tmp_path}/views"}
    return topic, file, os.environ | settings | {"COLUMNS": "200"}


def order(key: str, n: int) -> dict:
    return {"id": key, "n": n, "at": "2026-01-31T10:00:00.000000Z"}


def headwater(environ: dict, *arguments: object) -> str:
    command = [sys.executable, "-m", "headwater", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=True, env=environ
    ).stdout


def stored(path) -> list:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        try:
            return connection.execute("SELECT id, n FROM orders ORDER BY _partition, _offset").fetchall()
        except sqlite3.OperationalError:
            return []


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        (Sqlite("x.db"), Sqlite("./x.db", table="Orders"), "x.db, table orders"),
        (
            Postgres("postgresql://a:s3cret@db/shop"),
            Postgres("host=db port=5432 dbname=shop user=b"),
            "postgresql://db:5432/shop, table public.orders",
        ),
        (Delta("lake"), Delta("./lake/", compact_every=0), "lake/orders"),
        (Parquet("lake"), Parquet("./lake"), "lake/orders"),
        (Tantivy("find"), Tantivy("./find", text=["id"]), "find/orders"),
        (
            Redis("redis://a:s3cret@cache"),
            Redis("redis://cache", prefix="orders:"),
            "redis://cache, keys orders:*",
        ),
        (Kafka("other:9092"), Kafka("other:9092", topic="orders"), "other:9092, topic orders"),
        (
            OpenSearch("http://u:s3cret@find:9200"),
            OpenSearch("http://find:9200", index="orders"),
            "http://find:9200, index orders",
        ),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_two_sinks_in_one_place_are_refused_and_others_are_not(first, second, place):
    def graph(*targets):
        app = hw.App("shop")
        app.stream("orders", Order, key="id", time="at")
        app.stream("returns", Order, key="id", time="at")
        app.sink("returns", first, name="elsewhere")
        for name, target in zip("ab", targets, strict=False):
            app.sink("orders", target, name=name)
        return app.graph()

    assert set(graph(first).sinks) == {"elsewhere", "a"}
    with pytest.raises(UsageError, match=r"sinks 'a' and 'b' write to one place") as caught:
        graph(first, second)
    assert f"{place};" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_two_effects_of_one_topic_have_no_place_to_share():
    app = hw.App("shop")
    app.stream("orders", Order, key="id", time="at")
    app.sink("orders", Call(print), name="a")
    app.sink("orders", Call(print), name="b")

    assert set(app.graph().sinks) == {"a", "b"}


def test_the_commands_run_show_and_pause_sinks(log, application, tmp_path):
    topic, file, environ = application
    log.create(topic, partitions=1, policy="delete")
    log.create(f"{topic}-products", partitions=1)
    log.put(topic, {"a": order("a", 1), "b": order("b", 2), "c": b"[]"})
    with (tmp_path / "log").open("wb") as out:
        command = [sys.executable, "-m", "headwater", "sink", "run", str(file)]
        running = subprocess.Popen(command, stdout=out, stderr=out, env=environ)
    try:
        wait_until(lambda: stored(tmp_path / "orders.db") == [("a", 1), ("b", 2)], 30, "the rows")
        wait_until(lambda: stored(tmp_path / "none.db") == [("a", 1), ("b", 2)], 30, "the second sink's")
        assert "bad cannot run: sink" in (tmp_path / "log").read_text()

        graph = hw.App.load(str(file)).graph()

        def standing() -> PartitionStatus:
            return next(each for each in partition_statuses(log.log, graph) if each.sink == f"{topic}.file")

        wait_until(lambda: standing().position == 3, 20, "the position")
        assert (standing().lag, standing().dead) == (0, 1)
        assert standing().holder.endswith(f":{running.pid}")
        headwater(environ, "sink", "pause", f"{topic}.file")
        shown = headwater(environ, "sink", "status", file).splitlines()
        line = next(each.split() for each in shown if each.startswith(f"{topic}.file"))
        assert line[1:] == ["0", "3", "0", "1", "paused"]
        headwater(environ, "sink", "resume", f"{topic}.file")
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) == 0


def test_the_node_runs_the_sinks_of_its_application(log, application, tmp_path):
    topic, file, _ = application
    log.create(topic, partitions=1, policy="delete")
    log.put(topic, {"a": order("a", 1)})
    settings = Settings(log=f"kafka://{log.log}", view_tables=f"sqlite:{tmp_path}/views", console_port=0)
    with Node(settings, file, hw.App.load(str(file)).graph()) as node:
        Gate(node.folder).open()  # as the pipeline does
        node.supervisor.start(node._sinks())
        wait_until(lambda: stored(tmp_path / "orders.db") == [("a", 1)], 30, "the row")
        node.supervisor.check()
    assert (tmp_path / "logs" / "sinks.log").exists()


def test_a_sink_without_any_that_can_run_ends_with_the_reason(log, application, tmp_path):
    topic, file, _ = application
    graph = hw.App.load(str(file)).graph()
    with pytest.raises(UsageError, match="type that no table has"):
        Sinks(log.log, graph, tmp_path, [f"{topic}.bad"]).run(threading.Event())
    with pytest.raises(UsageError, match="has no sink 'nothing'"):
        Sinks(log.log, graph, tmp_path, ["nothing"])


def test_a_cut_between_sink_and_database_is_ridden_through(log, postgres):
    schema, topic = f"s{uuid.uuid4().hex[:8]}", log.create(partitions=2)
    proxy = Proxy(postgres.port)
    proxy.join()
    url = postgres.url.replace(str(postgres.port), str(proxy.port))
    feed = SinkFeed(f"{topic}.out", topic, ("id",), {"id": "STRING", "n": "BIGINT"})
    loop = Loop(log.log, feed.sink, topic, Postgres(url, schema=schema), lambda: feed)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()

    def rows() -> dict:
        with psycopg.connect(postgres.url) as connection:
            try:
                return dict(connection.execute(f'SELECT id, n FROM {schema}."{topic}"').fetchall())
            except psycopg.errors.UndefinedTable:
                return {}

    expected = {}
    for part in range(3):
        new = {f"k{n}": part * 1000 + n for n in range(200)}
        expected.update(new)
        log.put(topic, {key: {"id": key, "n": n} for key, n in new.items()})
        wait_until(lambda: rows() == expected, 30, "the rows")
        proxy.cut()
        log.put(topic, {f"cut{part}": {"id": f"cut{part}", "n": part}})
        expected[f"cut{part}"] = part
        wait_until(lambda: loop._patience.waiting, 20, "that the cut is noticed")
        proxy.join()
    wait_until(lambda: rows() == expected, 30, "the rows")
    loop.stop()
    thread.join(120)
    proxy.cut()
    assert loop._patience.waits >= 3
