"""ShareAcknowledge: what the members of share groups say of the records that they hold (KIP-932).

ShareAcknowledge 1-2    from 2 on it can renew locks (KIP-1222)

With the tagged field ``transactional_id``, which is an extension, it takes effect with a producer's
transaction, to which AddOffsetsToTxn has added the group: so a record is done exactly when the records that
were made of it are there. Such acknowledgements settle; what the transaction does not commit is released.
"""

from headwater.door.kafka.api import Answer, Request, serves
from headwater.door.kafka.sharing import (
    NO_LEADER,
    Sharing,
    check_request,
    next_session,
    places,
    when_stored,
)
from headwater.errors import ErrorCode, RequestError
from headwater.log.shares.open_share import OpenShare
from headwater.log.shares.share_store import SHARES_TOPIC
from headwater.log.transactions.coordinator import Identity
from headwater.protocol.kafka.codec import Message, layout
from headwater.queue.acknowledgement import AckBatch, check_batches
from headwater.queue.share_session import FINAL_EPOCH, Place

__all__ = ["acknowledge"]

_response = layout("ShareAcknowledge", "response")
_Topic = _response.struct("responses")
_Partition = _response.struct("responses.partitions")
_Leader = _response.struct("responses.partitions.current_leader")


@serves("ShareAcknowledge", 1, 2)
def share_acknowledge(request: Request) -> Answer:
    body, sessions = request.body, request.broker.shares.sessions
    try:
        check_request(request)
        if body.share_session_epoch == 0:
            what = "a share session begins with ShareFetch"
            raise RequestError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, what)
        if body.share_session_epoch == FINAL_EPOCH:
            session = sessions.find(body.group_id, body.member_id)
        else:
            session = next_session(request)
    except RequestError as refused:
        return _response.struct()(error_code=refused.code, error_message=str(refused))
    sharing = Sharing(request, session, fetches=False)
    if body.transactional_id is None:
        acknowledge(sharing, renewing=request.version >= 2 and body.is_renew_ack)
    else:
        _pledge(sharing)
    if body.share_session_epoch == FINAL_EPOCH:
        request.broker.shares.release(session)
    return when_stored(sharing, _answer)


def acknowledge(sharing: Sharing, *, renewing: bool) -> None:
    """Applies the acknowledgements of all partitions, each as a whole, and stores them."""
    wanted = _wanted(sharing)
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


def _pledge(sharing: Sharing) -> None:
    """Notes the acknowledgements of all partitions, each as a whole, for the end of a transaction."""
    body, broker = sharing.request.body, sharing.request.broker
    identity = Identity(body.producer_id, body.producer_epoch)
    for place, batches in _wanted(sharing).items():
        part = sharing.part(place)
        try:
            broker.transactions.check_added(body.transactional_id, identity, (SHARES_TOPIC, 0))
            checked = _checked(batches, renewing=False)
            broker.shares.pledge(sharing.group, place, sharing.session.member, checked, identity)
        except RequestError as refused:
            part.ack_error, part.message = refused.code, str(refused)


def _wanted(sharing: Sharing) -> dict[Place, list[Message]]:
    """The acknowledgements of each partition, which may be named several times."""
    wanted: dict[Place, list[Message]] = {}
    for place, part in places(sharing.request.body):
        if part.acknowledgement_batches:
            wanted.setdefault(place, []).extend(part.acknowledgement_batches)
    return wanted


def _checked(batches: list[Message], *, renewing: bool) -> list[AckBatch]:
    acks = (
        AckBatch(b.first_offset, b.last_offset, b.acknowledge_types, b.delay_ms / 1000, b.uncounted)
        for b in batches
    )
    return check_batches(acks, renewing=renewing)


def _answer(sharing: Sharing) -> Message:
    topics: dict[object, Message] = {}
    for place, part in sharing.parts.items():
        if place[0] not in topics:
            topics[place[0]] = _Topic(topic_id=place[0], partitions=[])
        topics[place[0]].partitions.append(
            _Partition(
                partition_index=place[1],
                error_code=part.ack_error,
                error_message=part.message if part.ack_error else None,
                current_leader=_Leader(**NO_LEADER),
            )
        )
    config = sharing.request.broker.shares.config(sharing.group)
    return _response.struct()(
        acquisition_lock_timeout_ms=config.record_lock_duration_ms, responses=list(topics.values())
    )
