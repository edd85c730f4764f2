"""Who follows a view's rows, and with how much lag, without Spark: groups and offsets in a real log."""

import os
import subprocess
import sys
import uuid
from datetime import datetime

import pytest
from confluent_kafka import TopicPartition

import headwater as hw
from headwater.client.client import Client, consumer, producer
from headwater.declare.drawing import drawing
from headwater.follow.pace import Pace, Trailing, batch_records
from headwater.sink import Sqlite
from support.servers import both_logs


class Order(hw.Event):
    id: str
    n: int
    at: datetime


def declared(view: str, **options) -> hw.App:
    app = hw.App("shop", **options)
    app.stream("orders", Order, key="id", time="at")
    app.sql(view, "SELECT id, sum(n) AS n FROM orders GROUP BY id", key="id")
    return app


@pytest.fixture
def view(bootstrap) -> str:
    """A view whose topic has thirty records in each of two partitions."""
    name = f"pace-{uuid.uuid4().hex[:8]}"
    client = Client(bootstrap)
    client.ensure_topics([name], 2)
    out = producer(bootstrap)
    for n in range(60):
        out.produce(name, b"%d" % n, partition=n % 2)
    assert out.flush(60) == 0
    return name


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    committing = consumer(bootstrap, group=group)
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    committing.commit(offsets=places, asynchronous=False)
    committing.close()


@both_logs
def test_the_slowest_follower_of_a_view_decides(bootstrap, view):
    app = declared(view, pace="sink")
    app.sink(view, Sqlite("a.db"), name=f"{view}.fast")
    app.sink(view, Sqlite("b.db"), name=f"{view}.slow")
    app.sql(f"{view}-next", f"SELECT id, n FROM `{view}`", key="id", inputs={view: view})
    app.sql(f"{view}-free", f"SELECT id, n FROM `{view}`", key="id", inputs={view: view}, pace="")
    commit(bootstrap, f"headwater.sink.{view}.fast", view, {0: 30, 1: 30})
    commit(bootstrap, f"headwater.sink.{view}.slow", view, {0: 12})
    commit(bootstrap, f"headwater.{view}-next", view, {0: 30, 1: 20})
    client, graph = Client(bootstrap), app.graph()

    assert Pace(client, graph, view, 100).trailing() == [
        Trailing(f"sink {view}.slow", 48),
        Trailing(f"view {view}-next", 10),
        Trailing(f"sink {view}.fast", 0),
    ]
    assert Pace(client, graph, view, 100).too_far() == Trailing(f"sink {view}.slow", 48)
    assert Pace(client, graph, view, 192).too_far() is None
    assert Pace(client, graph, f"{view}-free", 100).trailing() == []
    client.close()


def test_a_batch_and_what_waits_already_fit_into_the_bound():
    for bound, inputs in ((1_000, 1), (1_001, 3), (100_000, 2)):
        assert inputs * batch_records(bound, inputs) + bound // 4 <= bound * 3 / 4


def test_the_app_says_the_pace_of_its_views_and_a_view_may_say_otherwise():
    app = declared("totals", pace="sink")
    app.sql("free", "SELECT id, sum(n) AS n FROM orders GROUP BY id", key="id", pace="")
    app.sql("fast", "SELECT id, n FROM orders", key="id", latency="realtime")
    paces = {name: view.pace for name, view in app.graph().views.items()}
    assert paces == {"totals": "sink", "free": "", "fast": ""}
    assert "pace of its sinks" in drawing(app.graph())


def test_a_wrong_pace_is_refused():
    app = declared("totals")
    app.sql("odd", "SELECT id, n FROM orders", key="id", pace="slow")
    with pytest.raises(
        hw.UsageError, match="view 'odd': pace= is wrong; got 'slow'; expected 'sink', or no pace="
    ):
        app.graph()
    app = declared("totals")
    app.sql("fast", "SELECT id, n FROM orders", key="id", latency="realtime", pace="sink")
    with pytest.raises(hw.UsageError, match="runs in real time and cannot wait for its sinks"):
        app.graph()


APP = """
from datetime import datetime
import headwater as hw
app = hw.App("shop", pace="sink")
class Order(hw.Event):
    id: str
    n: int
    at: datetime
app.stream("orders", Order, key="id", time="at")
app.sql("{view}", "SELECT id, sum(n) AS n FROM orders GROUP BY id", key="id")
app.sink("{view}", hw.sink.Sqlite("a.db"), name="{view}.file")
"""


def test_the_status_of_a_view_says_for_whom_it_waits(bootstrap, view, tmp_path):
    out = producer(bootstrap)
    for _ in range(300):
        out.produce(view, b"x", partition=0)
    assert out.flush(60) == 0
    file = tmp_path / "app.py"
    file.write_text(APP.format(view=view))
    settings = {"HEADWATER_LOG": f"kafka://{bootstrap}", "HEADWATER_PACE_RECORDS": "1000"}

    def status() -> list[str]:
        command = [sys.executable, "-m", "headwater", "view", "status", str(file)]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[1].split()

    assert status() == [view, "sink", f"{view}.file", "360", "waits"]
    commit(bootstrap, f"headwater.sink.{view}.file", view, {0: 330, 1: 20})
    assert status() == [view, "sink", f"{view}.file", "10", "sink"]
