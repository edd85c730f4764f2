"""Fetch, ListOffsets, OffsetForLeaderEpoch.

Fetch 4-17                  topics by name, from 13 on by id; full fetches only: every answer has session id 0, so clients
                            name all partitions each time. Waits until ``min_bytes`` are there or ``max_wait_ms`` are over,
                            woken by appends, never by a poll.
ListOffsets 1-11            earliest (-2), latest (-1), greatest timestamp (-3), local start (-4), or the first record at or after a time
OffsetForLeaderEpoch 2-4    one broker, one epoch: the end of the log
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headwater.errors import ErrorCode, Refused
from headwater.kafka.api import Answer, Request, serves
from headwater.kafka.codec import Message, layout
from headwater.log.partition import LEADER_EPOCH, Partition
from headwater.log.topic import Topic

_fetched = layout("Fetch", "response")
_FetchedTopic = _fetched.struct("responses")
_FetchedPartition = _fetched.struct("responses.partitions")
_listed = layout("ListOffsets", "response")
_epochs = layout("OffsetForLeaderEpoch", "response")

READ_COMMITTED = 1
EARLIEST, LATEST, MAX_TIMESTAMP, LOCAL_EARLIEST = -2, -1, -3, -4


class _Wanted(NamedTuple):
    """One partition of a fetch, found or not."""

    topic: Message
    part: Message
    partition: Partition | None
    error: ErrorCode


@serves("Fetch", 4, 17)
def fetch(request: Request) -> Answer:
    wanted = [_find(request, topic, part) for topic in request.body.topics for part in topic.partitions]
    answer, filled = _read(request, wanted)
    if filled or request.body.max_wait_ms <= 0:
        return answer
    return _wait(request, wanted)


def _find(request: Request, topic: Message, part: Message) -> _Wanted:
    try:
        found = _topic(request, topic)
        return _Wanted(
            topic, part, request.broker.catalog.partition(found.name, part.partition), ErrorCode.NONE
        )
    except Refused as refused:
        return _Wanted(topic, part, None, refused.code)


def _topic(request: Request, topic: Message) -> Topic:
    if request.version < 13:
        return request.broker.topic(topic.topic, create=False)
    found = request.broker.catalog.by_id.get(topic.topic_id)
    if found is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
    return found


def _read(request: Request, wanted: list[_Wanted]) -> tuple[Message, bool]:
    """The answer as of now, and whether it has enough to be sent: ``min_bytes``, or an error."""
    left = request.body.max_bytes
    total, failed = 0, False
    topics: dict[int, Message] = {}
    for each in wanted:
        answer, size = _read_partition(
            each, left, first=total == 0, committed=request.body.isolation_level == READ_COMMITTED
        )
        left -= size
        total += size
        failed = failed or answer.error_code != ErrorCode.NONE
        entry = topics.get(id(each.topic))
        if entry is None:
            entry = topics[id(each.topic)] = _FetchedTopic(
                topic=each.topic.topic, topic_id=each.topic.topic_id, partitions=[]
            )
        entry.partitions.append(answer)
    return _fetched.struct()(responses=list(topics.values())), failed or total >= request.body.min_bytes


def _read_partition(wanted: _Wanted, left: int, *, first: bool, committed: bool) -> tuple[Message, int]:
    """At least one batch for the first partition that has any, so that a large batch gets through; then up to what is left."""
    part, partition = wanted.part, wanted.partition
    index = part.partition
    if partition is None:
        return _FetchedPartition(
            partition_index=index, error_code=wanted.error, high_watermark=-1, records=b""
        ), 0
    try:
        limit = min(left, part.partition_max_bytes)
        if limit <= 0 and not first:
            records = b""
        else:
            records = partition.read(part.fetch_offset, max(limit, 1), committed=committed)
            if len(records) > limit and not first:
                records = b""
    except Refused as refused:
        return _FetchedPartition(
            partition_index=index, error_code=refused.code, high_watermark=-1, records=b""
        ), 0
    answer = _FetchedPartition(
        partition_index=index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=_aborted(partition, part.fetch_offset, records) if committed else None,
        records=records,
    )
    return answer, len(records)


def _aborted(partition: Partition, offset: int, records: bytes) -> list[Message]:
    entry = _fetched.struct("responses.partitions.aborted_transactions")
    return [
        entry(producer_id=a.producer_id, first_offset=a.first_offset)
        for a in partition.aborted(offset, records)
    ]


def _wait(request: Request, wanted: list[_Wanted]) -> asyncio.Future[Message]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Message] = loop.create_future()
    endings: list[Callable[[], object]] = []
    committed = request.body.isolation_level == READ_COMMITTED

    def finish() -> None:
        if not done.done():
            done.set_result(_read(request, wanted)[0])

    def look() -> None:
        if done.done():
            return
        enough = sum(
            w.partition.available_bytes(w.part.fetch_offset, committed=committed)
            for w in wanted
            if w.partition is not None
        )
        if enough >= request.body.min_bytes or any(
            w.partition is not None and w.partition.offline for w in wanted
        ):
            finish()

    endings += [w.partition.watch(look) for w in wanted if w.partition is not None]
    endings.append(loop.call_later(request.body.max_wait_ms / 1000, finish).cancel)

    def end(_: object) -> None:
        for ending in endings:
            ending()

    done.add_done_callback(end)
    return done


@serves("ListOffsets", 1, 11)
def list_offsets(request: Request) -> Answer:
    topic_entry = _listed.struct("topics")
    topics = [
        topic_entry(
            name=topic.name, partitions=[_list(request, topic.name, part) for part in topic.partitions]
        )
        for topic in request.body.topics
    ]
    return _listed.struct()(topics=topics)


def _list(request: Request, topic: str, part: Message) -> Message:
    entry = _listed.struct("topics.partitions")
    try:
        partition = request.broker.catalog.partition(topic, part.partition_index)
        timestamp, offset = _look_up(
            partition, part.timestamp, committed=request.body.isolation_level == READ_COMMITTED
        )
    except Refused as refused:
        return entry(partition_index=part.partition_index, error_code=refused.code)
    epoch = LEADER_EPOCH if offset >= 0 else -1
    return entry(partition_index=part.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch)


def _look_up(partition: Partition, timestamp: int, *, committed: bool) -> tuple[int, int]:
    if timestamp in {EARLIEST, LOCAL_EARLIEST}:
        return -1, partition.log_start_offset
    if timestamp == LATEST:
        return -1, partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == MAX_TIMESTAMP:
        found = (
            partition.find_time(partition.max_timestamp)
            if partition.high_watermark > partition.log_start_offset
            else None
        )
    elif timestamp < 0:
        return -1, -1
    else:
        found = partition.find_time(timestamp)
    return (found.timestamp, found.offset) if found else (-1, -1)


@serves("OffsetForLeaderEpoch", 2, 4)
def offset_for_leader_epoch(request: Request) -> Answer:
    topic_entry, entry = _epochs.struct("topics"), _epochs.struct("topics.partitions")
    topics = []
    for topic in request.body.topics:
        parts = []
        for part in topic.partitions:
            try:
                end = request.broker.catalog.partition(topic.topic, part.partition).high_watermark
                parts.append(entry(partition=part.partition, leader_epoch=LEADER_EPOCH, end_offset=end))
            except Refused as refused:
                parts.append(entry(partition=part.partition, error_code=refused.code))
        topics.append(topic_entry(topic=topic.topic, partitions=parts))
    return _epochs.struct()(topics=topics)
