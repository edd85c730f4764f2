"""Committed offsets and their notes are read as they were committed, on both logs."""

import uuid
from contextlib import closing

import pytest

from headwater.client.bulk.committed_offsets import committed_offsets
from headwater.client.bulk.connection import compose
from headwater.client.bulk.routes import Routes
from headwater.client.client import Client
from headwater.errors import MachineError
from support.servers import both_logs, free_port

PARTITIONS = 24


def commit(bootstrap, group, topic, notes):
    """Commits as clients of Java do: the bytes of a note and nothing after them."""
    partitions = [
        compose(
            "OffsetCommit",
            "topics.partitions",
            partition_index=number,
            committed_offset=number,
            committed_metadata=note,
        )
        for number, note in enumerate(notes)
    ]
    topics = [compose("OffsetCommit", "topics", name=topic, partitions=partitions)]
    request = compose("OffsetCommit", group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    with closing(Routes(bootstrap)) as routes:
        answer = routes.ask("OffsetCommit", request, 7)
    assert {part.error_code for each in answer.topics for part in each.partitions} == {0}


@both_logs
def test_a_note_is_read_exactly_as_it_was_committed_whatever_its_length(bootstrap):
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    with closing(Client(bootstrap)) as client:
        client.ensure_topics([topic], PARTITIONS)
    for longer in range(0, 96, PARTITIONS):
        notes = ["é" + "x" * (number + longer) for number in range(PARTITIONS - 1)] + [""]
        commit(bootstrap, group, topic, notes)
        offsets = committed_offsets(bootstrap, group)
        assert list(offsets) == [topic]
        assert {at.partition: at.offset for at in offsets[topic]} == {n: n for n in range(PARTITIONS)}
        assert {at.partition: at.note for at in offsets[topic]} == dict(enumerate(notes))


@both_logs
def test_a_group_that_does_not_exist_has_committed_nothing(bootstrap):
    assert committed_offsets(bootstrap, "nosuch") == {}


def test_a_log_that_is_away_is_an_error_that_names_the_group():
    with pytest.raises(MachineError, match="group 'g' cannot be read"):
        committed_offsets(f"127.0.0.1:{free_port()}", "g")
