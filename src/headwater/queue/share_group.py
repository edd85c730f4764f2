"""The state machine of a share group (KIP-932): its members, and which partitions each of them fetches.

    heartbeat with epoch 0      a member joins, under an id that it has chosen
    heartbeat with its epoch    it stays; the answer has its epoch, and its assignment if that has changed
    heartbeat with epoch -1     it leaves
    no heartbeat for a session  it is removed

Several members may have the same partition. The group's epoch counts up when members, their topics or the
partitions of these topics change; a member gets the new epoch with its next heartbeat. Members are not
stored: after a restart of the broker they are unknown, and join again.

It does no I/O and has no clock: calls carry the time, the settings, and the partitions of topics.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.errors import ErrorCode, RequestError
from headwater.queue.assignor import assign
from headwater.queue.share_config import ShareConfig

__all__ = ["Heartbeat", "HeartbeatAnswer", "ShareGroup", "ShareMember", "Topology"]

MEMBERS_MAX = 200
MEMBER_ID_CHARACTERS_MAX = 36
JOIN, LEAVE = 0, -1

Topology = Mapping[str, tuple[uuid.UUID, int]]
"""Of each topic that exists its id and how many partitions it has."""
Assignment = Mapping[uuid.UUID, tuple[int, ...]]


class Heartbeat(NamedTuple):
    """The request of a member."""

    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    topics: tuple[str, ...] | None = None
    """None if they are as before."""


class HeartbeatAnswer(NamedTuple):
    """The member's epoch, and its assignment if that may be news to it."""

    epoch: int
    assignment: Assignment | None = None


@dataclass(slots=True)
class ShareMember:
    """One consumer in the group."""

    id: str
    client_id: str
    client_host: str
    rack: str | None
    topics: tuple[str, ...]
    deadline: float
    epoch: int = 0
    former_epoch: int = 0
    """Also accepted: the answer with the new epoch may have been lost."""
    assignment: Assignment = field(default_factory=dict)


@dataclass(slots=True)
class ShareGroup:
    """One group. Raises RequestError where Kafka answers with an error."""

    id: str
    epoch: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    _assigned: object = None
    """What the assignment was computed from."""

    def heartbeat(
        self,
        request: Heartbeat,
        now: float,
        config: ShareConfig,
        topology: Callable[[Iterable[str]], Topology],
    ) -> HeartbeatAnswer:
        check_heartbeat(request)
        if request.epoch == LEAVE:
            self.remove(request.member_id)
            return HeartbeatAnswer(LEAVE)
        member = self._join(request) if request.epoch == JOIN else self._existing(request)
        member.deadline = now + config.session_timeout_ms / 1000
        member.client_id, member.client_host = request.client_id, request.client_host
        if request.rack is not None:
            member.rack = request.rack
        if request.topics is not None:
            member.topics = tuple(sorted(set(request.topics)))
        self._assign(topology)
        is_news = request.epoch != self.epoch or request.topics is not None
        if member.epoch != self.epoch:
            member.former_epoch, member.epoch = member.epoch, self.epoch
        return HeartbeatAnswer(member.epoch, member.assignment if is_news else None)

    def remove(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of {self.id}")
        self.epoch += 1
        self._assigned = None

    def expire(self, now: float) -> list[str]:
        """Removes the members whose session is over; returns their ids."""
        gone = [member.id for member in self.members.values() if member.deadline <= now]
        for member_id in gone:
            self.remove(member_id)
        return gone

    def deadline(self) -> float | None:
        """When ``expire`` is to be called next."""
        return min((member.deadline for member in self.members.values()), default=None)

    def _join(self, request: Heartbeat) -> ShareMember:
        member = self.members.get(request.member_id)
        if member is None:
            if len(self.members) >= MEMBERS_MAX:
                what = f"group {self.id} has {MEMBERS_MAX} members"
                raise RequestError(ErrorCode.GROUP_MAX_SIZE_REACHED, what)
            member = ShareMember(request.member_id, "", "", request.rack, (), 0.0)
            self.members[member.id] = member
        return member

    def _existing(self, request: Heartbeat) -> ShareMember:
        member = self.members.get(request.member_id)
        if member is None:
            what = f"{request.member_id} is not a member of {self.id}"
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, what)
        if request.epoch not in {member.epoch, member.former_epoch}:
            what = f"epoch {request.epoch} of member {member.id}, whose epoch is {member.epoch}"
            raise RequestError(ErrorCode.FENCED_MEMBER_EPOCH, what)
        return member

    def _assign(self, topology: Callable[[Iterable[str]], Topology]) -> None:
        """Computes the assignment again if anything has changed on which it depends."""
        topics = topology({topic for member in self.members.values() for topic in member.topics})
        basis = ({member.id: member.topics for member in self.members.values()}, dict(topics))
        if basis == self._assigned:
            return
        self._assigned = basis
        self.epoch += 1
        assignments = assign(*basis)
        for member in self.members.values():
            member.assignment = assignments[member.id]


def check_heartbeat(request: Heartbeat) -> None:
    """Raises RequestError with INVALID_REQUEST."""
    what = ""
    if not 0 < len(request.member_id.strip()) <= len(request.member_id) <= MEMBER_ID_CHARACTERS_MAX:
        what = f"a member id has 1 to {MEMBER_ID_CHARACTERS_MAX} characters, got {request.member_id!r}"
    elif request.epoch < LEAVE:
        what = f"a member epoch is {LEAVE} or more, got {request.epoch}"
    elif request.rack is not None and not request.rack.strip():
        what = "the rack of a member is empty"
    elif request.epoch == JOIN and not request.topics:
        what = "a member that joins names its topics"
    if what:
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
