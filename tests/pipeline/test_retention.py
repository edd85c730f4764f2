"""Declared streams are kept for ever, or as long as they say; the drawing, the doctor and the log agree."""

import logging
import uuid
from datetime import datetime

import pytest

import headwater as hw
from headwater.config import Settings
from headwater.declare.drawing import drawing
from headwater.declare.spec import Stream
from headwater.operate.machine import doctor
from headwater.pipeline.retention import keep_streams
from headwater.pipeline.topics import Topics

WEEK_MS = 7 * 86_400_000


class Order(hw.Event):
    order_id: int
    at: datetime


@pytest.fixture
def graph():
    app, prefix = hw.App("shop"), uuid.uuid4().hex[:8]
    app.stream("orders", Order, key="order_id", time="at", topic=f"{prefix}.orders")
    app.stream("clicks", Order, key="order_id", time="at", topic=f"{prefix}.clicks", retention="30 days")
    app.stream("regions", Order, key="order_id", time="at", pattern=rf"{prefix}\.region\..*")
    return app.graph()


def declared(graph) -> list[Stream]:
    """The streams with a topic of their own."""
    return [stream for stream in graph.streams.values() if stream.pattern is None]


def kept(bootstrap: str, graph) -> dict[str, int]:
    topics = Topics(bootstrap)
    return {stream.name: int(topics.config(stream.topic)["retention.ms"]) for stream in declared(graph)}


def embedded(bootstrap: str) -> Settings:
    host, _, port = bootstrap.rpartition(":")
    return Settings(log="embedded:data", host=host, broker_port=int(port))


def test_new_topics_are_kept_as_declared(bootstrap, graph):
    keep_streams(Topics(bootstrap), declared(graph), embedded(bootstrap))
    assert kept(bootstrap, graph) == {"orders": -1, "clicks": 30 * 86_400_000}


def test_a_topic_that_was_there_before_is_kept_as_declared_in_an_embedded_log(bootstrap, graph):
    stream = graph.streams["orders"]
    Topics(bootstrap).ensure_topics([stream.topic], 1, {"retention.ms": str(WEEK_MS)})
    keep_streams(Topics(bootstrap), [stream], embedded(bootstrap))
    assert int(Topics(bootstrap).config(stream.topic)["retention.ms"]) == -1


def test_a_topic_of_a_kafka_keeps_its_settings_and_a_warning_says_so(bootstrap, graph, caplog):
    stream = graph.streams["orders"]
    Topics(bootstrap).ensure_topics([stream.topic], 1, {"retention.ms": str(WEEK_MS)})
    with caplog.at_level(logging.WARNING):
        keep_streams(Topics(bootstrap), [stream], Settings(log=f"kafka://{bootstrap}"))
    assert int(Topics(bootstrap).config(stream.topic)["retention.ms"]) == WEEK_MS
    assert "stream orders is to be kept for ever, and topic" in caplog.text


def test_the_doctor_compares_streams_with_the_log(bootstrap, graph):
    for stream in declared(graph):
        Topics(bootstrap).ensure_topics([stream.topic], 1, {"retention.ms": str(30 * 86_400_000)})
    found = {one.name: (one.ok, one.found) for one in doctor._retention(graph, embedded(bootstrap))}
    assert found == {"stream orders": (False, "kept 30 days"), "stream clicks": (True, "kept 30 days")}


def test_the_doctor_shows_how_long_each_topic_of_a_pattern_is_kept(bootstrap, graph):
    prefix = graph.streams["orders"].topic.partition(".")[0]
    names = [f"{prefix}.region.{number:02}" for number in range(12)]
    Topics(bootstrap).ensure_topics(names[:1], 1, {"retention.ms": str(WEEK_MS)})
    Topics(bootstrap).ensure_topics(names[1:], 1, {"retention.ms": "-1"})
    found = list(doctor._retention(graph, embedded(bootstrap)))
    assert all(one.ok and one.name == "stream regions" for one in found)
    kept_days = [
        f"topic {names[0]} is kept 7 days",
        *(f"topic {name} is kept for ever" for name in names[1:10]),
    ]
    assert [one.found for one in found] == [*kept_days, "and 2 more topics"]


def test_the_drawing_says_how_long_a_stream_is_kept(graph):
    lines = drawing(graph).splitlines()
    assert [line.rpartition(" · ")[2] for line in lines if " · time " in line] == [
        "kept for ever",
        "kept 30 days",
        "kept as each topic says",
    ]
