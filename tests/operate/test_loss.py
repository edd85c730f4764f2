"""A view is not made again, without a word, of less than it was made of."""

import itertools

import pytest
from confluent_kafka import TopicPartition

from headwater.client.client import Client, admin, producer
from headwater.operate.views.lost_inputs import Missing, losses, missing
from headwater.pipeline.topics import Topics
from support.commandline import complaint, headwater
from support.resultlog import Driver
from support.servers import both_logs

pytestmark = both_logs

numbers = itertools.count(1)


@pytest.fixture
def topics(bootstrap):
    client = Topics(bootstrap)
    yield client
    client.close()


MORNING_MS = 1_767_603_600_000
"""2026-01-05T09:00:00Z."""


def written(client: Topics, records: int = 20, *, compact: bool = False, at_ms: int | None = None) -> str:
    """A stream, or a table of three rows, of one partition; from a time on, one record each second."""
    name = f"lost{next(numbers)}"
    client.ensure([name], 1, compact=compact)
    out = producer(client.log)
    for number in range(records):
        when = {} if at_ms is None else {"timestamp": at_ms + 1_000 * number}
        out.produce(name, str(number), str(number % 3), **when)
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


def test_the_loss_of_each_topic_is_told_in_records_and_from_before_when_and_then_the_places(topics):
    old, gone, again = written(topics, at_ms=MORNING_MS), "lostforever", written(topics, 4)
    drop(topics, old, 5)
    gaps = missing(topics, {}, {gone: {0: 1, 1: 1_200}, old: {0: 20}, again: {0: 7}})
    assert sorted(losses(topics, gaps).split("; ")) == sorted(
        [
            f"{old} lacks 5 records from before 2026-01-05T09:00:05Z ({old}-0 offsets 0 to 4)",
            f"{gone} lacks 1,201 records: the topic is gone ({gone}-0 offsets 0 to 0, {gone}-1 offsets 0 to 1,199)",
            f"{again} lacks 3 records: the topic was deleted and made again ({again}-0 offsets 4 to 6)",
        ]
    )
    drop(topics, old, 20)
    assert (
        losses(topics, missing(topics, {}, {old: {0: 20}}))
        == f"{old} lacks 20 records ({old}-0 offsets 0 to 19)"
    )


def test_no_more_than_five_topics_and_five_gaps_of_each_are_named(topics):
    gaps = missing(topics, {}, {f"none{number}": dict.fromkeys(range(7), 2) for number in range(7)})
    told = losses(topics, gaps)
    assert told.startswith("none0 lacks 14 records: the topic is gone (none0-0 offsets 0 to 1, ")
    assert (told.count(", and 2 more gaps)"), told.count(" lacks ")) == (5, 5)
    assert told.endswith("; and 2 more topics")


def test_the_reset_command_is_refused_until_the_loss_is_accepted(topics, tmp_path, capsys):
    name, view = written(topics, at_ms=MORNING_MS), f"totals{next(numbers)}"
    Driver(topics.log, view).publish({name: {0: 20}}, {"a": b"{}"})
    drop(topics, name, 5)
    log = {"HEADWATER_LOG": f"kafka://{topics.log.bootstrap}"}
    refused = complaint(headwater(capsys, tmp_path, "view", "reset", view, **log))
    assert refused == (
        f"view {view!r} cannot be reset: the log no longer holds all records that it has read; "
        f"got {name} lacks 5 records from before 2026-01-05T09:00:05Z ({name}-0 offsets 0 to 4); "
        "expected every record that the running view has read; "
        "--accept-loss computes its rows from the records that are left"
    )
    assert view in topics.partitions()
    accepted = headwater(capsys, tmp_path, "view", "reset", view, "--accept-loss", **log)
    assert (accepted.code, accepted.stderr) == (0, "")
    assert accepted.stdout == f"view {view} is deleted; the next start computes it again from its streams\n"
    assert view not in topics.partitions()
