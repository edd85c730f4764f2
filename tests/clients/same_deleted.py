"""Cases of topics that are deleted, and created again under the same name; and of fetch sessions, which outlive them."""

import time
import uuid

from clients.answers import named, record
from clients.case import case
from clients.onelog import Log
from support.servers import wait_until


@case
def a_deleted_topic_is_unknown(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a")
    old = log.metadata(topic)[1].topic_id
    log.gone(topic)
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    by_id = log.call(
        "Fetch",
        13,
        max_wait_ms=0,
        min_bytes=1,
        session_epoch=-1,
        topics=[{"topic_id": old, "partitions": [part]}],
    )
    described = log.call(
        "Metadata", 12, topics=[{"topic_id": old, "name": None}], allow_auto_topic_creation=False
    )
    return [
        log.produce(topic, record("b"))[0],
        named(log.fetch(topic, 0).error_code),
        log.offset(topic, -1)[0],
        log.delete_records(topic, 0)[0],
        log.delete(topic),
        named(by_id.responses[0].partitions[0].error_code),
        named(described.topics[0].error_code),
        log.setting(topic, "retention.ms"),
        log.alter(topic, "retention.ms", "1"),
    ]


@case
def an_unknown_topic_deleted_by_id(log: Log) -> object:
    answer = log.call("DeleteTopics", 6, topics=[{"topic_id": uuid.UUID(int=77)}], timeout_ms=30_000)
    return named(answer.responses[0].error_code)


@case
def topics_that_are_deleted_twice(log: Log) -> object:
    topic = log.topic()
    return [sorted(set(log.delete(topic, topic))), log.delete("there-is-none", "not a name", "")]


@case
def partitions_that_are_not_there(log: Log) -> object:
    topic = log.topic()
    return [
        log.produce(topic, record("b"), partition=1)[0],
        named(log.fetch(topic, 0, partition=1).error_code),
        log.offset(topic, -1, partition=1)[0],
        log.delete_records(topic, 0, partition=1)[0],
        log.produce(topic, record("b"), partition=-1)[0],
    ]


@case
def a_topic_created_again_begins_empty(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a", "b", "c")
    old = log.metadata(topic)[1].topic_id
    log.gone(topic)
    log.topic(name=topic)
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    stale = log.call(
        "Fetch",
        13,
        max_wait_ms=0,
        min_bytes=1,
        session_epoch=-1,
        topics=[{"topic_id": old, "partitions": [part]}],
    )
    return [
        log.span(topic),
        log.metadata(topic)[1].topic_id != old,
        named(stale.responses[0].partitions[0].error_code),
        log.produce(topic, record("new")),
        log.read(topic),
        named(log.fetch(topic, 3).error_code),
    ]


@case
def offsets_of_groups_go_with_their_topic(log: Log) -> object:
    topic, other, group = log.topic(), log.topic(), log.group()
    log.fill(topic, "a", "b", "c")
    committed = [log.commit(group, topic, 3), log.commit(group, other, 0)]
    log.gone(topic)
    wait_until(lambda: log.committed(group, topic) == [(topic, "NONE", -1)], what="no offset of the topic")
    log.topic(name=topic)
    return [committed, log.committed(group, topic, other), log.committed(group), log.described(group)]


@case
def the_last_offset_of_a_group_goes_with_its_topic(log: Log) -> object:
    topic, group = log.topic(), log.group()
    log.commit(group, topic, 0)
    log.gone(topic)
    wait_until(lambda: log.committed(group, topic) == [(topic, "NONE", -1)], what="no offset of the topic")
    wait_until(lambda: log.described(group)[1] == "Dead", 10, "the end of the group")
    return [log.listed(group), log.delete_group(group)]


@case
def offsets_of_a_group_with_members_go_with_their_topic(log: Log) -> object:
    topic, group = log.topic(), log.group()
    log.fill(topic, "a", "b", "c")
    member = log.join(group, [topic])
    answers = [member.sync(), log.commit(group, topic, 2, **member.identity)]
    log.gone(topic)
    wait_until(lambda: log.committed(group, topic) == [(topic, "NONE", -1)], what="no offset of the topic")
    answers += [member.beat(), log.commit(group, topic, 2, **member.identity)]
    log.topic(name=topic)
    answers += [
        log.committed(group, topic),
        log.commit(group, topic, 1, **member.identity),
        log.committed(group, topic),
    ]
    return answers


@case
def an_open_transaction_of_a_deleted_topic(log: Log) -> object:
    """It can be committed; the topic of the same name does not hear of it."""
    topic, other, writer = log.topic(), log.topic(), log.writer()
    writer.init()
    steps: list[object] = [
        *writer.add(topic, other),
        writer.produce(topic, record("old")),
        writer.produce(other, record("kept")),
    ]
    log.gone(topic)
    steps += [writer.produce(topic, record("late"))[0]]
    log.topic(name=topic)
    steps += [writer.state()[:2], writer.end()]
    wait_until(lambda: log.offset(other, -1, committed=True)[2] == 2, what="the marker")
    log.fill(topic, "new")
    steps += [
        log.read(other),
        log.values(topic),
        writer.add(topic),
        writer.produce(topic, record("next"))[0],
        writer.end(),
    ]
    wait_until(
        lambda: log.offset(topic, -1, committed=True)[2] == log.span(topic)[1],
        what="the end of the transaction",
    )
    return [*steps, log.values(topic)]


@case
def a_topic_created_again_in_the_middle_of_a_transaction(log: Log) -> object:
    """What the producer writes to the new topic of the same name belongs to the transaction that has the name."""
    topic, writer = log.topic(), log.writer()
    writer.init()
    steps: list[object] = [*writer.add(topic), writer.produce(topic, record("old"))]
    log.gone(topic)
    log.topic(name=topic)
    steps += [writer.produce(topic, record("later"), sequence=0)[0], log.values(topic), writer.end()]
    wait_until(
        lambda: log.offset(topic, -1, committed=True)[2] == log.span(topic)[1],
        what="the end of the transaction",
    )
    return [*steps, log.values(topic)]


@case
def idempotent_producers_of_a_topic_created_again(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    writer.transaction(topic, record("a"), record("b"))
    log.gone(topic)
    log.topic(name=topic)
    return [*writer.add(topic), writer.produce(topic, record("c"), sequence=2), writer.end()]


@case
def a_fetch_session_of_a_topic_that_is_deleted(log: Log) -> object:
    """The error is in every answer for as long as it lasts."""
    topic, other = log.topic(), log.topic()
    log.fill(topic, "a")
    log.fill(other, "b")
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    fields: dict = {"max_wait_ms": 0, "min_bytes": 1}
    first = log.call(
        "Fetch",
        11,
        session_epoch=0,
        topics=[{"topic": name, "partitions": parts} for name in (topic, other)],
        **fields,
    )
    answers: list[object] = [_session(first)]
    log.gone(topic)
    for epoch in (1, 2):
        again = log.call("Fetch", 11, session_id=first.session_id, session_epoch=epoch, topics=[], **fields)
        answers.append([each for each in _session(again) if each[0] == topic])
    log.topic(name=topic)
    again = log.call("Fetch", 11, session_id=first.session_id, session_epoch=3, topics=[], **fields)
    answers.append([each for each in _session(again) if each[0] == topic])
    return answers


@case
def a_fetch_session_by_id_of_a_topic_that_is_deleted(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a")
    topic_id = log.metadata(topic)[1].topic_id
    parts = [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}]
    fields: dict = {"max_wait_ms": 0, "min_bytes": 1}
    first = log.call(
        "Fetch", 13, session_epoch=0, topics=[{"topic_id": topic_id, "partitions": parts}], **fields
    )
    log.gone(topic)
    answers = []
    for epoch in (1, 2):
        again = log.call("Fetch", 13, session_id=first.session_id, session_epoch=epoch, topics=[], **fields)
        answers.append(
            [named(again.error_code), [named(p.error_code) for t in again.responses for p in t.partitions]]
        )
    return answers


@case
def fetch_sessions(log: Log) -> object:
    """Unknown ids, wrong epochs, partitions that are not there, and nothing new."""
    topic = log.topic()
    log.fill(topic, "a")
    fields: dict = {"max_wait_ms": 0, "min_bytes": 1}

    def ask(session: int, epoch: int, *wanted: tuple[int, int]) -> object:
        parts = [{"partition": p, "fetch_offset": o, "partition_max_bytes": 1000} for p, o in wanted]
        topics = [{"topic": topic, "partitions": parts}] if parts else []
        answer = log.call("Fetch", 11, session_id=session, session_epoch=epoch, topics=topics, **fields)
        ask.id = answer.session_id
        return [named(answer.error_code), _session(answer)]

    answers = [ask(12345, 1), ask(0, 0, (0, 1), (7, 0))]
    session = ask.id
    answers += [
        ask(session, 1),
        ask(session, 2),
        ask(session, 2),
        ask(session, 9),
        ask(session, 3, (0, 0)),
        ask(session, 4, (0, 99)),
    ]
    answers += [ask(session, 5), ask(session, -1, (0, 0)), ask(session, 6)]
    return answers


def _session(answer: object) -> list[tuple]:
    return sorted(
        (topic.topic, part.partition_index, named(part.error_code), bool(part.records))
        for topic in answer.responses
        for part in topic.partitions
    )


@case
def a_fetch_that_waits_for_a_topic_that_is_deleted(log: Log) -> object:
    """The answer comes at once, not when its time is over."""
    topic, waiting = log.topic(), log.connect()
    log.fill(topic, "a")
    parts = [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}]
    topics = [{"topic": topic, "partitions": parts}]
    began = time.monotonic()
    waiting.send("Fetch", 11, max_wait_ms=20_000, min_bytes=1, session_epoch=-1, topics=topics)
    log.produce(log.topic(), record("the other connection is served first"))
    log.gone(topic)
    answer = waiting.receive("Fetch", 11)
    return [
        named(p.error_code) for t in answer.responses for p in t.partitions
    ], time.monotonic() - began < 15


@case
def offsets_in_a_transaction_of_a_topic_that_is_deleted(log: Log) -> object:
    topic, group, writer = log.topic(), log.group(), log.writer()
    writer.init()
    log.commit(group, log.topic(), 1)
    steps: list[object] = [writer.add_offsets(group), writer.commit_offsets(group, topic, 3)]
    log.gone(topic)
    steps += [writer.end()]
    wait_until(lambda: writer.state()[1] == "CompleteCommit", what="the end of the transaction")
    log.topic(name=topic)
    return [*steps, log.committed(group, topic)]
