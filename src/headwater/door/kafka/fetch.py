"""Fetch, ListOffsets, OffsetForLeaderEpoch.

Fetch 4-17                  topics by name, from 13 on by id; from 7 on in sessions (``fetch_session.py``).
                            Waits until ``min_bytes`` are there or ``max_wait_ms`` are over; appends wake it,
                            no polling
ListOffsets 1-11            earliest (-2), latest (-1), greatest timestamp (-3, from 7 on), local start (-4,
                            from 8 on), nothing for tiered records (-5, from 9 on; -6, from 11 on), or the
                            first record at or after a timestamp
OffsetForLeaderEpoch 2-4    the end of the log for our one epoch; nothing for any other
"""

import asyncio
from typing import NamedTuple

from headwater.door.kafka.api import Answer, Later, Request, serves
from headwater.door.kafka.fetch_session import FetchSession
from headwater.errors import ErrorCode, RequestError
from headwater.log.storage.catalog import Topic
from headwater.log.storage.partition import LEADER_EPOCH, Partition
from headwater.protocol.kafka.codec import Message, layout

_fetch_response = layout("Fetch", "response")
_FetchedTopic = _fetch_response.struct("responses")
_FetchedPartition = _fetch_response.struct("responses.partitions")
_list_response = layout("ListOffsets", "response")
_epoch_response = layout("OffsetForLeaderEpoch", "response")

READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, LOCAL_EARLIEST, LATEST_TIERED, FIRST_UNTIERED = -1, -2, -3, -4, -5, -6
SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    LOCAL_EARLIEST: 8,
    LATEST_TIERED: 9,
    FIRST_UNTIERED: 11,
}
"""The version of ListOffsets from which on a special timestamp is valid."""
NEVER = 2**15


class _Wanted(NamedTuple):
    """One partition of a fetch, or why it cannot be read."""

    topic: Message
    part: Message
    partition: Partition | None
    error: ErrorCode


class _Fetching(NamedTuple):
    """A fetch that is being answered."""

    request: Request
    session: FetchSession | None
    wanted: list[_Wanted]


@serves("Fetch", 4, 17)
def fetch(request: Request) -> Answer:
    try:
        session = request.sessions.enter(request.body, request.version)
    except RequestError as refused:
        return _fetch_response.struct()(error_code=refused.code, session_id=request.body.session_id)
    if session is None:
        named = [(topic, part) for topic in request.body.topics for part in topic.partitions]
    else:
        named = list(session.wanted.values())
    fetching = _Fetching(request, session, [_find(request, topic, part) for topic, part in named])
    if request.body.max_wait_ms > 0 and not _is_enough(fetching):
        return _wait(fetching)
    return _compose(fetching, _read(fetching))


def _find(request: Request, topic: Message, part: Message) -> _Wanted:
    try:
        name = _topic(request, topic).name
        partition = request.broker.catalog.partition(name, part.partition)
        _check_epoch(part.current_leader_epoch)
    except RequestError as refused:
        return _Wanted(topic, part, None, refused.code)
    return _Wanted(topic, part, partition, ErrorCode.NONE)


def _check_epoch(epoch: int) -> None:
    """A client that knows a later epoch than ours asks the wrong broker.

    -1 means that it does not know any.
    """
    if epoch > LEADER_EPOCH:
        raise RequestError(
            ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is after the last one, {LEADER_EPOCH}"
        )


def _topic(request: Request, topic: Message) -> Topic:
    if request.version < 13:
        return request.broker.topic(topic.topic, create=False)
    entry = request.broker.catalog.by_id.get(topic.topic_id)
    if entry is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
    return entry


def _is_enough(fetching: _Fetching) -> bool:
    """Whether there is something to send now: ``min_bytes``, or an error."""
    body, available_bytes = fetching.request.body, 0
    committed = body.isolation_level == READ_COMMITTED
    for wanted in fetching.wanted:
        partition, offset = wanted.partition, wanted.part.fetch_offset
        if partition is None or not partition.is_readable(offset):
            return True
        try:
            available_bytes += partition.available_bytes(offset, committed=committed)
        except RequestError:
            return True
    wanted_bytes: int = min(body.min_bytes, body.max_bytes, fetching.request.answer_bytes_max)
    return available_bytes >= wanted_bytes


def _read(fetching: _Fetching) -> list[Message]:
    """The answers for all partitions, as of now."""
    body = fetching.request.body
    limit = min(body.max_bytes, fetching.request.answer_bytes_max)
    left, committed = limit, body.isolation_level == READ_COMMITTED
    parts = []
    for wanted in fetching.wanted:
        part = _read_partition(wanted, left, first=left == limit, committed=committed)
        left -= len(part.records)
        parts.append(part)
    return parts


def _compose(fetching: _Fetching, parts: list[Message]) -> Message:
    """The answer; in a session without the partitions that have nothing new."""
    session, version = fetching.session, fetching.request.version
    topics: dict[object, Message] = {}
    for wanted, part in zip(fetching.wanted, parts, strict=True):
        name = wanted.topic.topic_id if version >= 13 else wanted.topic.topic
        if session is not None:
            state = (part.high_watermark, part.last_stable_offset, part.log_start_offset)
            key = (name, part.partition_index)
            if not session.is_news(key, state, filled=bool(part.records), failed=bool(part.error_code)):
                continue
            if part.records:
                session.put_last(key)
        if name not in topics:
            topics[name] = _FetchedTopic(
                topic=wanted.topic.topic, topic_id=wanted.topic.topic_id, partitions=[]
            )
        topics[name].partitions.append(part)
    return _fetch_response.struct()(session_id=session.id if session else 0, responses=list(topics.values()))


def _read_partition(wanted: _Wanted, left: int, *, first: bool, committed: bool) -> Message:
    """At least one batch of the first partition that has any, so that a large batch is delivered.

    The rest of the answer is what still fits.
    """
    part, partition = wanted.part, wanted.partition
    index = part.partition
    if partition is None:
        return _FetchedPartition(
            partition_index=index, error_code=wanted.error, high_watermark=-1, records=b""
        )
    try:
        limit = min(left, part.partition_max_bytes)
        if limit <= 0 and not first:
            records = b""
        else:
            records = partition.read(part.fetch_offset, max(limit, 1), committed=committed)
            if len(records) > limit and not first:
                records = b""
    except RequestError as refused:
        return _FetchedPartition(
            partition_index=index, error_code=refused.code, high_watermark=-1, records=b""
        )
    return _FetchedPartition(
        partition_index=index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=_aborted(partition, part.fetch_offset, records) if committed else None,
        records=records,
    )


def _aborted(partition: Partition, offset: int, records: bytes) -> list[Message]:
    entry = _fetch_response.struct("responses.partitions.aborted_transactions")
    return [
        entry(producer_id=a.producer_id, first_offset=a.first_offset)
        for a in partition.aborted(offset, records)
    ]


def _wait(fetching: _Fetching) -> Later:
    later = Later()
    watched = [wanted.partition for wanted in fetching.wanted if wanted.partition is not None]

    def finish() -> None:
        later.resolve(lambda: _compose(fetching, _read(fetching)))

    def look() -> None:
        if _is_enough(fetching):
            finish()

    def end(_: object) -> None:
        timer.cancel()
        for partition in watched:
            partition.watchers.discard(look)

    timer = asyncio.get_running_loop().call_later(fetching.request.body.max_wait_ms / 1000, finish)
    for partition in watched:
        partition.watchers.add(look)
    later.add_done_callback(end)
    return later


@serves("ListOffsets", 1, 11)
def list_offsets(request: Request) -> Answer:
    topic_entry = _list_response.struct("topics")
    topics = [
        topic_entry(
            name=topic.name, partitions=[_list(request, topic.name, part) for part in topic.partitions]
        )
        for topic in request.body.topics
    ]
    return _list_response.struct()(topics=topics)


def _list(request: Request, topic: str, part: Message) -> Message:
    entry = _list_response.struct("topics.partitions")
    try:
        if part.timestamp < 0 and request.version < SINCE.get(part.timestamp, NEVER):
            what = f"version {request.version} has no special timestamp {part.timestamp}"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, what)
        partition = request.broker.catalog.partition(topic, part.partition_index)
        _check_epoch(part.current_leader_epoch)
        timestamp, offset = _look_up(
            partition, part.timestamp, committed=request.body.isolation_level == READ_COMMITTED
        )
    except RequestError as refused:
        return entry(partition_index=part.partition_index, error_code=refused.code)
    epoch = LEADER_EPOCH if offset >= 0 else -1
    return entry(partition_index=part.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch)


def _look_up(partition: Partition, timestamp: int, *, committed: bool) -> tuple[int, int]:
    partition.check_online()
    if timestamp in {EARLIEST, LOCAL_EARLIEST}:
        return -1, partition.log_start_offset
    if timestamp == LATEST:
        return -1, partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == MAX_TIMESTAMP:
        record = (
            partition.find_time(partition.max_timestamp, committed=committed)
            if partition.high_watermark > partition.log_start_offset
            else None
        )
    elif timestamp < 0:
        return -1, -1
    else:
        record = partition.find_time(timestamp, committed=committed)
    return (record.timestamp, record.offset) if record else (-1, -1)


@serves("OffsetForLeaderEpoch", 2, 4)
def offset_for_leader_epoch(request: Request) -> Answer:
    topic_entry, entry = _epoch_response.struct("topics"), _epoch_response.struct("topics.partitions")
    topics = []
    for topic in request.body.topics:
        parts = []
        for part in topic.partitions:
            try:
                partition = request.broker.catalog.partition(topic.topic, part.partition)
                partition.check_online()
                _check_epoch(part.current_leader_epoch)
                is_current = part.leader_epoch == LEADER_EPOCH
                parts.append(
                    entry(
                        partition=part.partition,
                        leader_epoch=LEADER_EPOCH if is_current else -1,
                        end_offset=partition.high_watermark if is_current else -1,
                    )
                )
            except RequestError as refused:
                parts.append(entry(partition=part.partition, error_code=refused.code))
        topics.append(topic_entry(topic=topic.topic, partitions=parts))
    return _epoch_response.struct()(topics=topics)
