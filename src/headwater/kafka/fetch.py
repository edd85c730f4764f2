"""Fetch, ListOffsets, OffsetForLeaderEpoch.

Fetch 4-17                  topics by name, from 13 on by id; from 7 on in sessions (``session.py``). Waits until ``min_bytes`` are
                            there or ``max_wait_ms`` are over, woken by appends, never by a poll.
ListOffsets 1-11            earliest (-2), latest (-1), greatest timestamp (-3, from 7 on), local start (-4, from 8 on), nothing for what
                            is tiered (-5, from 9 on; -6, from 11 on), or the first record at or after a time
OffsetForLeaderEpoch 2-4    one broker, one epoch: the end of the log; nothing is known of other epochs
"""

import asyncio
from typing import NamedTuple

from headwater.errors import ErrorCode, Refused
from headwater.kafka.api import Answer, Later, Request, serves
from headwater.kafka.codec import Message, layout
from headwater.kafka.session import Session
from headwater.log.partition import LEADER_EPOCH, Partition
from headwater.log.topic import Topic

_fetched = layout("Fetch", "response")
_FetchedTopic = _fetched.struct("responses")
_FetchedPartition = _fetched.struct("responses.partitions")
_listed = layout("ListOffsets", "response")
_epochs = layout("OffsetForLeaderEpoch", "response")

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
"""The version of ListOffsets from which on a special time is known."""
NEVER = 2**15


class _Wanted(NamedTuple):
    """One partition of a fetch, found or not."""

    topic: Message
    part: Message
    partition: Partition | None
    error: ErrorCode


class _Fetching(NamedTuple):
    """A fetch under way."""

    request: Request
    session: Session | None
    wanted: list[_Wanted]


@serves("Fetch", 4, 17)
def fetch(request: Request) -> Answer:
    try:
        session = request.sessions.enter(request.body, request.version)
    except Refused as refused:
        return _fetched.struct()(error_code=refused.code, session_id=request.body.session_id)
    if session is None:
        named = [(topic, part) for topic in request.body.topics for part in topic.partitions]
    else:
        named = list(session.wanted.values())
    fetching = _Fetching(request, session, [_find(request, *each) for each in named])
    if request.body.max_wait_ms > 0 and not _is_enough(fetching):
        return _wait(fetching)
    return _compose(fetching, _read(fetching))


def _find(request: Request, topic: Message, part: Message) -> _Wanted:
    try:
        found = _topic(request, topic)
        partition = request.broker.catalog.partition(found.name, part.partition)
        _check_epoch(part.current_leader_epoch)
    except Refused as refused:
        return _Wanted(topic, part, None, refused.code)
    return _Wanted(topic, part, partition, ErrorCode.NONE)


def _check_epoch(known: int) -> None:
    """A client that has heard of a later epoch than there is asks the wrong broker; -1 is said by those who do not know."""
    if known > LEADER_EPOCH:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {known}, where {LEADER_EPOCH} is the last one")


def _topic(request: Request, topic: Message) -> Topic:
    if request.version < 13:
        return request.broker.topic(topic.topic, create=False)
    found = request.broker.catalog.by_id.get(topic.topic_id)
    if found is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
    return found


def _is_enough(fetching: _Fetching) -> bool:
    """Whether there is something to send now: ``min_bytes``, or an error."""
    body, found = fetching.request.body, 0
    committed = body.isolation_level == READ_COMMITTED
    for wanted in fetching.wanted:
        partition, offset = wanted.partition, wanted.part.fetch_offset
        if partition is None or not partition.is_readable(offset):
            return True
        try:
            found += partition.available_bytes(offset, committed=committed)
        except Refused:
            return True
    return found >= min(body.min_bytes, body.max_bytes, fetching.request.answer_bytes_max)  # type: ignore[no-any-return]


def _read(fetching: _Fetching) -> list[Message]:
    """The partitions' answers as of now."""
    body = fetching.request.body
    most = min(body.max_bytes, fetching.request.answer_bytes_max)
    left, committed = most, body.isolation_level == READ_COMMITTED
    parts = []
    for each in fetching.wanted:
        part = _read_partition(each, left, first=left == most, committed=committed)
        left -= len(part.records)
        parts.append(part)
    return parts


def _compose(fetching: _Fetching, parts: list[Message]) -> Message:
    """The answer: in a session without the partitions of which there is nothing new."""
    session, version = fetching.session, fetching.request.version
    topics: dict[object, Message] = {}
    for wanted, part in zip(fetching.wanted, parts, strict=True):
        name = wanted.topic.topic_id if version >= 13 else wanted.topic.topic
        if session is not None:
            seen = (part.high_watermark, part.last_stable_offset, part.log_start_offset)
            key = (name, part.partition_index)
            if not session.is_news(key, seen, filled=bool(part.records), failed=bool(part.error_code)):
                continue
            if part.records:
                session.put_last(key)
        if name not in topics:
            topics[name] = _FetchedTopic(
                topic=wanted.topic.topic, topic_id=wanted.topic.topic_id, partitions=[]
            )
        topics[name].partitions.append(part)
    return _fetched.struct()(session_id=session.id if session else 0, responses=list(topics.values()))


def _read_partition(wanted: _Wanted, left: int, *, first: bool, committed: bool) -> Message:
    """At least one batch for the first partition that has any, so that a large batch gets through; then up to what is left."""
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
    except Refused as refused:
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
    entry = _fetched.struct("responses.partitions.aborted_transactions")
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
        if part.timestamp < 0 and request.version < SINCE.get(part.timestamp, NEVER):
            what = f"no special time {part.timestamp} in version {request.version}"
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, what)
        partition = request.broker.catalog.partition(topic, part.partition_index)
        _check_epoch(part.current_leader_epoch)
        timestamp, offset = _look_up(
            partition, part.timestamp, committed=request.body.isolation_level == READ_COMMITTED
        )
    except Refused as refused:
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
        found = (
            partition.find_time(partition.max_timestamp, committed=committed)
            if partition.high_watermark > partition.log_start_offset
            else None
        )
    elif timestamp < 0:
        return -1, -1
    else:
        found = partition.find_time(timestamp, committed=committed)
    return (found.timestamp, found.offset) if found else (-1, -1)


@serves("OffsetForLeaderEpoch", 2, 4)
def offset_for_leader_epoch(request: Request) -> Answer:
    topic_entry, entry = _epochs.struct("topics"), _epochs.struct("topics.partitions")
    topics = []
    for topic in request.body.topics:
        parts = []
        for part in topic.partitions:
            try:
                partition = request.broker.catalog.partition(topic.topic, part.partition)
                partition.check_online()
                _check_epoch(part.current_leader_epoch)
                known = part.leader_epoch == LEADER_EPOCH
                parts.append(
                    entry(
                        partition=part.partition,
                        leader_epoch=LEADER_EPOCH if known else -1,
                        end_offset=partition.high_watermark if known else -1,
                    )
                )
            except Refused as refused:
                parts.append(entry(partition=part.partition, error_code=refused.code))
        topics.append(topic_entry(topic=topic.topic, partitions=parts))
    return _epochs.struct()(topics=topics)
