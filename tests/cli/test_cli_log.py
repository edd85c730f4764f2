"""The commands that look after a log, as a person types them, against the embedded log and Apache Kafka."""

import io
import json
import sys
import time
import uuid
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headwater.cli.main import main
from support.resultlog import Driver
from support.servers import both_logs

pytestmark = both_logs

BASE_MS = (time.time_ns() // 10**9 - 3600) * 1000
"""An hour ago: retention would take records that are older than a week."""


def moment(seconds):
    return datetime.fromtimestamp(BASE_MS / 1000 + seconds, UTC).isoformat()


@pytest.fixture
def topic():
    return f"cli-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def headwater(bootstrap, monkeypatch, capfd):
    """Runs a command; returns what it printed, or fails with what it complained about."""

    def run(*arguments, text="", fails=False):
        monkeypatch.setattr(sys, "argv", ["headwater", *arguments, "--log", bootstrap])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        said, complaint = capfd.readouterr()
        assert (ended.value.code not in {0, None}) == fails, complaint
        return complaint if fails else said

    return run


def lines(topic_size):
    return "".join(f"k{i}:value {i}\n" for i in range(topic_size))


def test_topics_are_made_listed_shown_with_their_skew_and_deleted(headwater, topic):
    headwater("topic", "create", topic, "--partitions", "2", "--config", "cleanup.policy=compact")
    headwater("produce", topic, "--key-separator", ":", text="same:1\nsame:2\nsame:3\n")

    assert topic in headwater("topic", "list")
    shown = headwater("topic", "show", topic)
    assert "2 partitions, 3 records, cleanup.policy=compact" in shown
    assert "2.00 times the mean" in shown
    headwater("topic", "delete", topic, "--yes")
    assert topic not in headwater("topic", "list")
    assert "there is no topic" in headwater("topic", "show", topic, fails=True)


def test_lines_go_in_and_come_out_with_keys_in_order(headwater, topic):
    headwater("topic", "create", topic)
    headwater("produce", topic, "--key-separator", ":", text=lines(100))

    assert headwater("consume", topic, "--from", "earliest", "--end").splitlines() == [
        f"k{i} value {i}" for i in range(100)
    ]
    assert headwater("consume", topic, "--from", "97", "--count", "2").splitlines() == [
        "k97 value 97",
        "k98 value 98",
    ]
    record = json.loads(headwater("consume", topic, "--from", "5", "--count", "1", "--json"))
    assert (record["key"], record["value"], record["offset"]) == ("k5", "value 5", 5)


def test_a_line_without_a_key_is_refused_by_its_number(headwater, topic):
    headwater("topic", "create", topic)

    assert "line 2 has no ':'" in headwater(
        "produce", topic, "--key-separator", ":", text="a:1\nb\n", fails=True
    )


def test_produce_keeps_to_a_limit_and_refuses_a_wrong_one(headwater, topic):
    begun = time.monotonic()
    headwater("produce", topic, "--limit", "50/s burst 5", text="x\n" * 30)
    assert time.monotonic() - begun >= 0.5
    headwater("produce", topic, "--limit", "much", text="x\n", fails=True)


def test_produce_tells_the_position_and_wait_ends_when_the_view_has_come_so_far(headwater, bootstrap, topic):
    headwater("topic", "create", topic)
    assert headwater("produce", topic, text="a\n") == ""  # nothing that would break a pipe
    position = headwater("produce", topic, "--position", text="b\nc\n").strip()
    assert position == f"0~{topic}:0=3"
    assert json.loads(headwater("produce", topic, "--json", text="d\n")) == {
        "records": 1,
        "position": f"0~{topic}:0=4",
        "offsets": {topic: {"0": 4}},
    }

    view = f"{topic}-view"
    waiting = ("wait", view, "--at-least", position, "--timeout", "0.2")
    assert f"there is no view '{view}' with results" in headwater(*waiting, fails=True)
    driver = Driver(bootstrap, view)
    driver.publish({topic: {0: 1}}, {"k": b"{}"})
    assert f"got 0~{topic}:0=1; expected {position}" in headwater(*waiting, fails=True)
    driver.publish({topic: {0: 3}}, {"k": b"{}"})
    assert headwater(*waiting) == f"0~{view}:0={driver.outputs[0]}\n"
    assert "this is not a position" in headwater("wait", view, "--at-least", "soon", fails=True)


def test_a_stretch_of_a_topic_is_replayed_with_keys_headers_and_times(headwater, bootstrap, topic):
    headwater("topic", "create", topic, "--partitions", "2")
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(20):
        producer.produce(
            topic, f"v{i}", f"k{i}", i % 2, timestamp=BASE_MS + i * 1000, headers=[("n", str(i).encode())]
        )
    assert producer.flush(60) == 0

    said = headwater(
        "replay",
        topic,
        "--from",
        moment(5),
        "--to",
        moment(15),
        "--into",
        topic + "-again",
    )
    assert "10 records" in said
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    reader.assign([TopicPartition(topic + "-again", p, 0) for p in (0, 1)])
    found = {}
    while len(found) < 10:
        message = reader.poll(10)
        found[message.key().decode()] = (message.partition(), message.timestamp()[1], message.headers())
    reader.close()
    assert found == {f"k{i}": (i % 2, BASE_MS + i * 1000, [("n", str(i).encode())]) for i in range(5, 15)}
    assert "exists" in headwater("replay", topic, "--into", topic + "-again", fails=True)


def test_a_group_is_moved_only_when_it_is_not_a_dry_run(headwater, bootstrap, topic):
    headwater("topic", "create", topic)
    headwater("produce", topic, text="a\nb\nc\n")
    group = f"{topic}-group"
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    reader.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    reset = ("group", "reset", group, "--topic", topic, "--to", "earliest")

    assert "nothing was changed" in headwater(*reset, "--dry-run")
    assert reader.committed([TopicPartition(topic, 0)], 10)[0].offset == 2
    headwater(*reset)
    assert reader.committed([TopicPartition(topic, 0)], 10)[0].offset == 0
    reader.close()
    assert group in headwater("group", "list")
    headwater("group", "delete", group)
    assert group not in headwater("group", "list")
    assert "not a position in a topic" in headwater(
        "group", "reset", group, "--topic", topic, "--to", "soon", fails=True
    )


def test_lag_is_shown_in_records_and_seconds_with_the_time_until_retention(headwater, bootstrap, topic):
    headwater("topic", "create", topic)
    headwater("produce", topic, text="a\nb\nc\n")
    group = f"{topic}-group"
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    reader.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    reader.close()

    (found,) = [json.loads(line) for line in headwater("lag", group, "--json").splitlines()]
    assert (found["committed"], found["end"]) == (1, 3)
    assert 0 <= found["seconds"] < 60
    assert 600_000 < found["lost_in_seconds"] <= 604_800
    assert "lost in" in headwater("lag", group)
