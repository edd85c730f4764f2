"""A view is not made again, without a word, of less than it was made of."""

import itertools

import pytest
from confluent_kafka import TopicPartition

from headwater.client.client import Client, admin, producer
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.operate.views.lost_inputs import Missing, missing
from headwater.operate.views.reset import reset
from headwater.pipeline.topics import Topics
from support.resultlog import Driver
from support.servers import both_logs

pytestmark = both_logs

numbers = itertools.count(1)


@pytest.fixture
def topics(bootstrap):
    client = Topics(bootstrap)
    yield client
    client.close()


def written(client: Topics, records: int = 20, *, compact: bool = False) -> str:
    """A stream, or a table of three rows, of one partition."""
    name = f"lost{next(numbers)}"
    client.ensure([name], 1, compact=compact)
    out = producer(client.log)
    for number in range(records):
        out.produce(name, str(number), str(number % 3))
    assert out.flush(30) == 0
    return name


def drop(client: Client, topic: str, before: int) -> None:
    """Takes the first records away, as retention does."""
    asked, place = admin(client.log), TopicPartition(topic, 0, before)
    asked.delete_records([place])[place].result(30)


def test_what_retention_has_taken_of_the_records_that_a_view_has_read_is_missing(topics):
    name = written(topics)
    assert missing(topics, {}, {name: {0: 20}}) == []
    drop(topics, name, 5)
    assert missing(topics, {}, {name: {0: 20}}) == [Missing(name, 0, 0, 5)]
    assert missing(topics, {name: {0: 3}}, {name: {0: 20}}) == [Missing(name, 0, 3, 5)]
    assert missing(topics, {name: {0: 5}}, {name: {0: 20}}) == [], "it was gone before the view began"
    assert missing(topics, {}, {name: {0: 2}}) == [Missing(name, 0, 0, 2)]
    assert missing(topics, {}, {name: {0: 0}}) == []


def test_a_topic_that_is_gone_or_was_made_again_lacks_what_was_in_it(topics):
    name = written(topics, 4)
    assert missing(topics, {}, {"lost": {0: 7}, "headwater.ticks": {3: 9}}) == [Missing("lost", 0, 0, 7)]
    assert missing(topics, {}, {name: {0: 7}}) == [Missing(name, 0, 4, 7)]


def test_what_compaction_takes_is_not_missing(topics):
    name = written(topics, compact=True)
    assert missing(topics, {}, {name: {0: 20}}) == []


def test_a_reset_of_a_view_whose_records_are_gone_is_refused_until_it_is_insisted_on(topics, tmp_path):
    name, view = written(topics), f"totals{next(numbers)}"
    settings = Settings(log=f"kafka://{topics.log.bootstrap}", view_tables=f"sqlite:{tmp_path / 'views'}")
    Driver(topics.log, view).publish({name: {0: 20}}, {"a": b"{}"})
    drop(topics, name, 5)
    said = f"cannot be reset: the log no longer holds all records that it has read; got {name}-0 lacks offsets 0 to 4"
    with pytest.raises(UsageError, match=said):
        reset(settings, view)
    assert view in topics.partitions()
    reset(settings, view, accept_loss=True)
    assert view not in topics.partitions()
