"""A driver that was fenced distinguishes its rebuild from another driver, and waits for it as long as it makes progress."""

import msgspec
import pytest

from headwater.client.client import producer
from headwater.client.topic_defaults import STATE
from headwater.pipeline.run.takeover import Follow
from headwater.pipeline.topics import Topics
from headwater.result import Result, topic
from headwater.testing import SettableClock


@pytest.fixture
def topics(bootstrap):
    client = Topics(bootstrap)
    yield client
    client.close()


def result(run: str, batch: int, **more) -> Result:
    return Result(run=run, batch=batch, inputs={}, partitions=1, **more)


def add(topics: Topics, view: str, *made: Result) -> None:
    topics.ensure_topics([topic(view)], 1, STATE)
    out = producer(topics.log)
    for each in made:
        out.produce(topic(view), msgspec.json.encode(each), each.run)
    assert out.flush(30) == 0


def test_a_fenced_driver_waits_while_its_rebuild_makes_results_and_then_takes_its_place_back(topics):
    clock, view = SettableClock(), "follow.rebuilt"
    add(topics, view, result("old", 3), result("new", 7, shadow=True, replaces="old"), result("old", 4))
    follow = Follow(topics, view, "old", clock, 60.0)
    for batch in range(8, 12):
        assert follow.fate() == "waits"
        clock.advance(59)
        assert follow.fate() == "waits"
        add(topics, view, result("new", batch, shadow=True))
    assert follow.fate() == "waits"
    clock.advance(61)
    assert follow.fate() == "abandoned"
    add(topics, view, result("new", 12))
    assert follow.fate() == "swapped"


def test_a_driver_that_another_has_fenced_does_not_wait_even_if_a_rebuild_was_never_finished(topics):
    view = "follow.fenced"
    add(topics, view, result("new", 0, shadow=True), *(result("old", batch) for batch in range(3)))
    assert Follow(topics, view, "old", SettableClock(), 60.0).fate() == "fenced"
    add(
        topics, view, result("new", 1, shadow=True, replaces="old"), *(result("old", n) for n in range(3, 20))
    )
    assert Follow(topics, view, "old", SettableClock(), 60.0).fate() == "fenced"
