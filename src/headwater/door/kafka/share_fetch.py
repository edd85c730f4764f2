"""ShareFetch: records for the members of share groups (KIP-932).

ShareFetch 1-2    acknowledges, then locks records; waits up to ``max_wait_ms`` if there are none. From 2 on
                  ``share_acquire_mode`` 1 keeps to ``max_records``, where 0 takes whole batches of the log,
                  and ``is_renew_ack`` only renews locks (KIP-1206, KIP-1222)

It belongs to the member's session (``queue/share_session.py``), which ends with its connection. A topic that
is named several times counts as one. There is one broker, so no answer names another leader. ``min_bytes``
counts as 1. What is done to records is stored, and the answer waits until it is durable.
"""

import asyncio
from collections.abc import Mapping

from headwater.door.kafka.api import Answer, Later, Request, serves
from headwater.door.kafka.share_acknowledge import acknowledge
from headwater.door.kafka.sharing import (
    NO_LEADER,
    Part,
    Sharing,
    answer,
    check_request,
    next_session,
    places,
    when_stored,
)
from headwater.errors import ErrorCode, RequestError
from headwater.log.shares.open_share import OpenShare
from headwater.protocol.kafka.codec import Message, layout
from headwater.queue.acquisition import Wish
from headwater.queue.share_partition import Copy
from headwater.queue.share_session import FINAL_EPOCH, Place, ShareSession

_fetch_response = layout("ShareFetch", "response")
_FetchedTopic = _fetch_response.struct("responses")
_FetchedPartition = _fetch_response.struct("responses.partitions")
_FetchLeader = _fetch_response.struct("responses.partitions.current_leader")
_AcquiredRecords = _fetch_response.struct("responses.partitions.acquired_records")

RECORD_LIMIT = 1
"""The mode that keeps to ``max_records``."""


@serves("ShareFetch", 1, 2)
def share_fetch(request: Request) -> Answer:
    body, sessions = request.body, request.broker.shares.sessions
    renewing = request.version >= 2 and body.is_renew_ack
    try:
        check_request(request)
        if renewing:
            _check_renewal(request)
        if body.share_session_epoch == 0:
            session = _begin(request)
        elif body.share_session_epoch == FINAL_EPOCH:
            session = sessions.find(body.group_id, body.member_id)
        else:
            session = next_session(request)
            session.add(place for place, _ in places(body))
            session.forget((t.topic_id, index) for t in body.forgotten_topics_data for index in t.partitions)
    except RequestError as refused:
        return _fetch_response.struct()(error_code=refused.code, error_message=str(refused))
    is_last = body.share_session_epoch == FINAL_EPOCH
    sharing = Sharing(request, session, fetches=not renewing and not is_last)
    acknowledge(sharing, renewing=renewing)
    if is_last:
        request.broker.shares.release(session)
    return _fetch(sharing) if sharing.fetches else when_stored(sharing, _fetch_answer)


# ---- checks --------------------------------------------------------------------------------------------


def _check_renewal(request: Request) -> None:
    """A request that renews fetches nothing: a fetch that waits could outlast the lock.

    It may add partitions to its session.
    """
    body = request.body
    if body.max_wait_ms or body.min_bytes or body.max_bytes or body.max_records:
        what = "a fetch that renews locks has max_wait_ms, min_bytes, max_bytes and max_records 0"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    known = request.broker.shares.sessions.places(body.group_id, body.member_id)
    if any(not part.acknowledgement_batches and place in known for place, part in places(body)):
        what = "a fetch that renews locks names a partition of its session without acknowledgements"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)


def _begin(request: Request) -> ShareSession:
    body = request.body
    if any(part.acknowledgement_batches for topic in body.topics for part in topic.partitions):
        what = "the first fetch of a session has nothing to acknowledge"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    shares = request.broker.shares
    session = shares.begin_session(body.group_id, body.member_id, request.connection)
    session.add(place for place, _ in places(body))
    return session


# ---- records -------------------------------------------------------------------------------------------


def _fetch(sharing: Sharing) -> Answer:
    """Records that are there, or later when some have come."""
    found = _open_places(sharing)
    if not found or _acquire(sharing, found) or sharing.request.body.max_wait_ms <= 0:
        return when_stored(sharing, _fetch_answer)
    return _wait(sharing, found)


def _open_places(sharing: Sharing) -> dict[Place, OpenShare]:
    found = {}
    for place in sharing.session.places:
        try:
            found[place] = sharing.request.broker.shares.open(sharing.group, place)
            found[place].log.check_online()
        except RequestError as refused:
            part = sharing.part(place)
            part.error, part.message = refused.code, str(refused)
            found.pop(place, None)
    return found


def _acquire(sharing: Sharing, found: dict[Place, OpenShare]) -> bool:
    """Locks records for the member; returns whether there is something to answer: records, or an error."""
    body, shares = sharing.request.body, sharing.request.broker.shares
    bytes_left = min(body.max_bytes, sharing.request.answer_bytes_max)
    records_left = body.max_records
    strict = sharing.request.version >= 2 and body.share_acquire_mode == RECORD_LIMIT
    got: dict[Place, OpenShare] = {}
    copies, failed = {}, False
    for place, share in found.items():
        if records_left <= 0 or bytes_left <= 0:
            break
        if share.is_searching or not shares.may_deliver(share):
            continue
        part = sharing.part(place) if place in sharing.parts else Part()
        copies[place] = share.state.copy()
        wish = Wish(sharing.session.member, records_left, strict)
        try:
            delivery = shares.deliver(share, wish, bytes_max=bytes_left, is_first=not got)
        except RequestError as refused:
            part.error, part.message = refused.code, str(refused)
            sharing.parts[place], failed = part, True
            continue
        if delivery.acquired:
            part.records, part.acquired, part.share = delivery.records, delivery.acquired, share
            sharing.parts[place], got[place] = part, share
            records_left -= sum(a.last - a.first + 1 for a in delivery.acquired)
            bytes_left -= len(delivery.records)
        elif delivery.is_cut:
            share.search_later()
    _store_acquired(sharing, got, copies)
    for place in got:
        sharing.session.put_last(place)
    return failed or bool(got)


def _store_acquired(sharing: Sharing, got: dict[Place, OpenShare], copies: Mapping[Place, Copy]) -> None:
    try:
        sharing.request.broker.shares.store(got.values())
    except RequestError as refused:
        for place, share in got.items():
            share.state.restore(copies[place])
            sharing.parts[place] = Part(refused.code, sharing.parts[place].ack_error, str(refused))


def _wait(sharing: Sharing, found: dict[Place, OpenShare]) -> Later:
    """Answers when records have come to the log, or were released by others, or the time is over."""
    later, sessions = Later(), sharing.request.broker.shares.sessions
    stored: list[asyncio.Future[None]] = []

    def finish() -> None:
        if not stored:
            end(None)
            stored.append(sharing.request.broker.committed())
            stored[0].add_done_callback(lambda _: later.resolve(lambda: answer(sharing, _fetch_answer)))

    def look() -> None:
        if not stored and (not sessions.has(sharing.session) or _acquire(sharing, found)):
            finish()

    def end(_: object) -> None:
        timer.cancel()
        for share in found.values():
            share.watchers.discard(look)
            share.log.watchers.discard(look)

    timer = asyncio.get_running_loop().call_later(sharing.request.body.max_wait_ms / 1000, finish)
    for share in found.values():
        share.watchers.add(look)
        share.log.watchers.add(look)
    later.add_done_callback(end)
    return later


def _fetch_answer(sharing: Sharing) -> Message:
    session = sharing.session
    for place, is_new in session.places.items():
        if is_new and sharing.fetches and place not in sharing.parts:
            sharing.parts[place] = Part()
    topics: dict[object, Message] = {}
    for place, part in sharing.parts.items():
        if place in session.places:
            session.places[place] = bool(part.error)
        if place[0] not in topics:
            topics[place[0]] = _FetchedTopic(topic_id=place[0], partitions=[])
        topics[place[0]].partitions.append(_fetched(place[1], part))
    config = sharing.request.broker.shares.config(sharing.group)
    return _fetch_response.struct()(
        acquisition_lock_timeout_ms=config.record_lock_duration_ms, responses=list(topics.values())
    )


def _fetched(index: int, part: Part) -> Message:
    return _FetchedPartition(
        partition_index=index,
        error_code=part.error,
        error_message=part.message if part.error else None,
        acknowledge_error_code=part.ack_error,
        acknowledge_error_message=part.message if part.ack_error else None,
        current_leader=_FetchLeader(**NO_LEADER),
        records=part.records,
        acquired_records=[
            _AcquiredRecords(first_offset=a.first, last_offset=a.last, delivery_count=a.deliveries)
            for a in part.acquired
        ],
    )
