"""Sharing: a request of a share group's member that is being answered, and what its answer says."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headwater.door.kafka.api import Answer, Later, Request
from headwater.errors import ErrorCode, RequestError
from headwater.log.shares.open_share import OpenShare
from headwater.protocol.kafka.codec import Message
from headwater.queue.acquisition import Acquired
from headwater.queue.batch_acquisition import held
from headwater.queue.share_group import MEMBER_ID_CHARACTERS_MAX
from headwater.queue.share_session import Place, ShareSession

__all__ = ["NO_LEADER", "Part", "Sharing", "answer", "check_request", "next_session", "places", "when_stored"]

NO_LEADER = {"leader_id": -1, "leader_epoch": -1}
"""No hint at another leader; a client would take zeros for node 0."""


@dataclass(slots=True)
class Part:
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
            self.acquired = held(self.share.state, member, self.acquired)
        if not self.acquired:
            self.records = b""


@dataclass(slots=True)
class Sharing:
    """A request that is being answered."""

    request: Request
    session: ShareSession
    fetches: bool
    """Whether it asks for records, and so hears of partitions that are new in its session."""
    parts: dict[Place, Part] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.session.group

    def part(self, place: Place) -> Part:
        return self.parts.setdefault(place, Part())


def check_request(request: Request) -> None:
    """Raises RequestError unless the group and the member have names that they may have."""
    body, broker = request.body, request.broker
    if not body.group_id:
        raise RequestError(ErrorCode.INVALID_GROUP_ID, "a share group has a name")
    member = body.member_id or ""
    if not 0 < len(member) <= MEMBER_ID_CHARACTERS_MAX:
        what = f"a member id has 1 to {MEMBER_ID_CHARACTERS_MAX} characters, got {member!r}"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    broker.check_share_group(body.group_id)


def next_session(request: Request) -> ShareSession:
    """The session that a request continues."""
    body, shares = request.body, request.broker.shares
    return shares.next_session(body.group_id, body.member_id, body.share_session_epoch, request.connection)


def places(body: Message) -> Iterator[tuple[Place, Message]]:
    """The partitions that a request names, and what it says of each."""
    for topic in body.topics:
        for part in topic.partitions:
            yield (topic.topic_id, part.partition_index), part


def when_stored(sharing: Sharing, compose: Callable[[Sharing], Message]) -> Answer:
    """The answer, once what it says is durable."""
    if not any(part.acquired or not part.ack_error for part in sharing.parts.values()):
        return answer(sharing, compose)
    later = Later()
    sharing.request.broker.committed().add_done_callback(
        lambda _: later.resolve(lambda: answer(sharing, compose))
    )
    return later


def answer(sharing: Sharing, compose: Callable[[Sharing], Message]) -> Message:
    """The answer at the time when it is sent: a lock may have ended since."""
    if sharing.request.broker.shares.is_offline:
        for part in sharing.parts.values():
            part.ack_error = part.error = ErrorCode.KAFKA_STORAGE_ERROR
            part.records, part.acquired = b"", []
    for part in sharing.parts.values():
        part.drop_lost(sharing.session.member)
    return compose(sharing)
