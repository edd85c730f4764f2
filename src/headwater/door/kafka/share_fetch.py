"""ShareFetch, ShareAcknowledge: records for the members of share groups (KIP-932).

ShareFetch 1-2          acknowledges, then locks records; waits up to ``max_wait_ms`` if there are none. From
                        2 on ``share_acquire_mode`` 1 keeps to ``max_records``, where 0 takes whole batches of
                        the log, and ``is_renew_ack`` only renews locks (KIP-1206, KIP-1222)
ShareAcknowledge 1-2    acknowledges only; from 2 on it can renew

Both belong to the member's session (``queue/share_session.py``), which ends with its connection. A topic that
is named several times counts as one. There is one broker, so no answer names another leader. ``min_bytes``
counts as 1. What is done to records is stored, and the answer waits until it is durable.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from headwater.door.kafka.api import Answer, Later, Request, serves
from headwater.errors import ErrorCode, RequestError
from headwater.log.shares.open_share import OpenShare
from headwater.protocol.kafka.codec import Message, layout
from headwater.queue.acknowledgement import AckBatch, check_batches
from headwater.queue.acquisition import Acquired, Wish
from headwater.queue.share_group import MEMBER_ID_CHARACTERS_MAX
from headwater.queue.share_partition import Copy
from headwater.queue.share_session import FINAL_EPOCH, Place, ShareSession

_fetch_response = layout("ShareFetch", "response")
_FetchedTopic = _fetch_response.struct("responses")
_FetchedPartition = _fetch_response.struct("responses.partitions")
_FetchLeader = _fetch_response.struct("responses.partitions.current_leader")
_AcquiredRecords = _fetch_response.struct("responses.partitions.acquired_records")
_acknowledge_response = layout("ShareAcknowledge", "response")
_AcknowledgedTopic = _acknowledge_response.struct("responses")
_AcknowledgedPartition = _acknowledge_response.struct("responses.partitions")
_AcknowledgeLeader = _acknowledge_response.struct("responses.partitions.current_leader")

NO_LEADER = {"leader_id": -1, "leader_epoch": -1}
"""No hint at another leader; a client would take zeros for node 0."""
RECORD_LIMIT = 1
"""The mode that keeps to ``max_records``."""


@dataclass(slots=True)
class _Part:
    """What the answer says of one partition."""

    error: ErrorCode = ErrorCode.NONE
    ack_error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    records: bytes = b""
    acquired: list[Acquired] = field(default_factory=list)
    share: OpenShare | None = None
    """Where they were acquired."""

    def drop_lost(self, member: str) -> None:
        """Leaves out records whose lock has ended before they could be delivered: others may have them."""
        if self.share is None:
            return
        if self.share.is_closed:
            self.acquired = []
        else:
            self.acquired = self.share.state.held(member, self.acquired)
        if not self.acquired:
            self.records = b""


@dataclass(slots=True)
class _Sharing:
    """A request that is being answered."""

    request: Request
    session: ShareSession
    fetches: bool
    """Whether it asks for records, and so hears of partitions that are new in its session."""
    parts: dict[Place, _Part] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.session.group

    def part(self, place: Place) -> _Part:
        return self.parts.setdefault(place, _Part())


@serves("ShareFetch", 1, 2)
def share_fetch(request: Request) -> Answer:
    body, sessions = request.body, request.broker.shares.sessions
    renewing = request.version >= 2 and body.is_renew_ack
    try:
        _check_request(request)
        if renewing:
            _check_renewal(request)
        if body.share_session_epoch == 0:
            session = _begin(request)
        elif body.share_session_epoch == FINAL_EPOCH:
            session = sessions.find(body.group_id, body.member_id)
        else:
            session = _next(request)
            session.add(place for place, _ in _places(body))
            session.forget((t.topic_id, index) for t in body.forgotten_topics_data for index in t.partitions)
    except RequestError as refused:
        return _fetch_response.struct()(error_code=refused.code, error_message=str(refused))
    is_last = body.share_session_epoch == FINAL_EPOCH
    sharing = _Sharing(request, session, fetches=not renewing and not is_last)
    _acknowledge(sharing, renewing=renewing)
    if is_last:
        request.broker.shares.release(session)
    return _fetch(sharing) if sharing.fetches else _when_stored(sharing, _fetch_answer)


@serves("ShareAcknowledge", 1, 2)
def share_acknowledge(request: Request) -> Answer:
    body, sessions = request.body, request.broker.shares.sessions
    try:
        _check_request(request)
        if body.share_session_epoch == 0:
            what = "a share session begins with ShareFetch"
            raise RequestError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, what)
        if body.share_session_epoch == FINAL_EPOCH:
            session = sessions.find(body.group_id, body.member_id)
        else:
            session = _next(request)
    except RequestError as refused:
        return _acknowledge_response.struct()(error_code=refused.code, error_message=str(refused))
    sharing = _Sharing(request, session, fetches=False)
    _acknowledge(sharing, renewing=request.version >= 2 and body.is_renew_ack)
    if body.share_session_epoch == FINAL_EPOCH:
        request.broker.shares.release(session)
    return _when_stored(sharing, _acknowledge_answer)


# ---- checks --------------------------------------------------------------------------------------------


def _check_request(request: Request) -> None:
    body, broker = request.body, request.broker
    if not body.group_id:
        raise RequestError(ErrorCode.INVALID_GROUP_ID, "a share group has a name")
    member = body.member_id or ""
    if not 0 < len(member) <= MEMBER_ID_CHARACTERS_MAX:
        what = f"a member id has 1 to {MEMBER_ID_CHARACTERS_MAX} characters, got {member!r}"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    broker.check_share_group(body.group_id)


def _check_renewal(request: Request) -> None:
    """A request that renews fetches nothing: a fetch that waits could outlast the lock.

    It may add partitions to its session.
    """
    body = request.body
    if body.max_wait_ms or body.min_bytes or body.max_bytes or body.max_records:
        what = "a fetch that renews locks has max_wait_ms, min_bytes, max_bytes and max_records 0"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    known = request.broker.shares.sessions.places(body.group_id, body.member_id)
    if any(not part.acknowledgement_batches and place in known for place, part in _places(body)):
        what = "a fetch that renews locks names a partition of its session without acknowledgements"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)


def _begin(request: Request) -> ShareSession:
    body = request.body
    if any(part.acknowledgement_batches for topic in body.topics for part in topic.partitions):
        what = "the first fetch of a session has nothing to acknowledge"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    shares = request.broker.shares
    session = shares.begin_session(body.group_id, body.member_id, request.connection)
    session.add(place for place, _ in _places(body))
    return session


def _next(request: Request) -> ShareSession:
    body, shares = request.body, request.broker.shares
    return shares.next_session(body.group_id, body.member_id, body.share_session_epoch, request.connection)


def _places(body: Message) -> Iterator[tuple[Place, Message]]:
    for topic in body.topics:
        for part in topic.partitions:
            yield (topic.topic_id, part.partition_index), part


# ---- acknowledgements ----------------------------------------------------------------------------------


def _acknowledge(sharing: _Sharing, *, renewing: bool) -> None:
    """Applies the acknowledgements of all partitions, each as a whole, and stores them."""
    wanted: dict[Place, list[Message]] = {}
    for place, part in _places(sharing.request.body):
        if part.acknowledgement_batches:
            wanted.setdefault(place, []).extend(part.acknowledgement_batches)
    shares, changed = sharing.request.broker.shares, dict[Place, OpenShare]()
    copies = {}
    for place, batches in wanted.items():
        answer = sharing.part(place)
        try:
            checked = _checked(batches, renewing=renewing)
            member = sharing.session.member
            share, copies[place] = shares.acknowledge(sharing.group, place, member, checked)
            changed[place] = share
        except RequestError as refused:
            answer.ack_error, answer.message = refused.code, str(refused)
    try:
        shares.store(changed.values())
    except RequestError as refused:
        for place, share in changed.items():
            share.state.restore(copies[place])
            sharing.part(place).ack_error = refused.code
        return
    for share in changed.values():
        share.wake()


def _checked(batches: list[Message], *, renewing: bool) -> list[AckBatch]:
    acks = (
        AckBatch(b.first_offset, b.last_offset, b.acknowledge_types, b.delay_ms / 1000, b.uncounted)
        for b in batches
    )
    return check_batches(acks, renewing=renewing)


# ---- records -------------------------------------------------------------------------------------------


def _fetch(sharing: _Sharing) -> Answer:
    """Records that are there, or later when some have come."""
    found = _open_places(sharing)
    if not found or _acquire(sharing, found) or sharing.request.body.max_wait_ms <= 0:
        return _when_stored(sharing, _fetch_answer)
    return _wait(sharing, found)


def _open_places(sharing: _Sharing) -> dict[Place, OpenShare]:
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


def _acquire(sharing: _Sharing, found: dict[Place, OpenShare]) -> bool:
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
        part = sharing.part(place) if place in sharing.parts else _Part()
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


def _store_acquired(sharing: _Sharing, got: dict[Place, OpenShare], copies: Mapping[Place, Copy]) -> None:
    try:
        sharing.request.broker.shares.store(got.values())
    except RequestError as refused:
        for place, share in got.items():
            share.state.restore(copies[place])
            sharing.parts[place] = _Part(refused.code, sharing.parts[place].ack_error, str(refused))


def _wait(sharing: _Sharing, found: dict[Place, OpenShare]) -> Later:
    """Answers when records have come to the log, or were released by others, or the time is over."""
    later, sessions = Later(), sharing.request.broker.shares.sessions
    stored: list[asyncio.Future[None]] = []

    def finish() -> None:
        if not stored:
            end(None)
            stored.append(sharing.request.broker.committed())
            stored[0].add_done_callback(lambda _: later.resolve(lambda: _answer(sharing, _fetch_answer)))

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


# ---- answers -------------------------------------------------------------------------------------------


def _when_stored(sharing: _Sharing, compose: Callable[[_Sharing], Message]) -> Answer:
    """The answer, once what it says is durable."""
    if not any(part.acquired or not part.ack_error for part in sharing.parts.values()):
        return _answer(sharing, compose)
    later = Later()
    sharing.request.broker.committed().add_done_callback(
        lambda _: later.resolve(lambda: _answer(sharing, compose))
    )
    return later


def _answer(sharing: _Sharing, compose: Callable[[_Sharing], Message]) -> Message:
    if sharing.request.broker.shares.is_offline:
        for part in sharing.parts.values():
            part.ack_error = part.error = ErrorCode.KAFKA_STORAGE_ERROR
            part.records, part.acquired = b"", []
    for part in sharing.parts.values():
        part.drop_lost(sharing.session.member)
    return compose(sharing)


def _fetch_answer(sharing: _Sharing) -> Message:
    session = sharing.session
    for place, is_new in session.places.items():
        if is_new and sharing.fetches and place not in sharing.parts:
            sharing.parts[place] = _Part()
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


def _fetched(index: int, part: _Part) -> Message:
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


def _acknowledge_answer(sharing: _Sharing) -> Message:
    topics: dict[object, Message] = {}
    for place, part in sharing.parts.items():
        if place[0] not in topics:
            topics[place[0]] = _AcknowledgedTopic(topic_id=place[0], partitions=[])
        topics[place[0]].partitions.append(
            _AcknowledgedPartition(
                partition_index=place[1],
                error_code=part.ack_error,
                error_message=part.message if part.ack_error else None,
                current_leader=_AcknowledgeLeader(**NO_LEADER),
            )
        )
    config = sharing.request.broker.shares.config(sharing.group)
    return _acknowledge_response.struct()(
        acquisition_lock_timeout_ms=config.record_lock_duration_ms, responses=list(topics.values())
    )
