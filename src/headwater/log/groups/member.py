"""Member: one consumer of a group, what it asks for when it joins, and the answers that it waits for."""

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from headwater.errors import ErrorCode

__all__ = [
    "Join",
    "JoinAnswer",
    "Member",
    "MemberSnapshot",
    "SyncAnswer",
    "common_protocols",
    "elect_protocol",
    "read_subscription",
]


class Join(msgspec.Struct, frozen=True):
    """A member's request to be in the next generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """The names of assignment protocols, the preferred one first, each with the member's metadata."""
    id_required: bool = False
    """The client first gets its member id and then joins with it (JoinGroup 4 and later)."""


class JoinAnswer(msgspec.Struct, frozen=True):
    """The answer to a join. Only the leader gets the members and their metadata."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class SyncAnswer(msgspec.Struct, frozen=True):
    """The answer to a sync: the member's assignment."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class MemberSnapshot(msgspec.Struct, frozen=True):
    """A member as it is stored."""

    id: str
    join: Join
    assignment: bytes


@dataclass(slots=True)
class Member:
    """One consumer in the group."""

    id: str
    join: Join
    deadline: float
    assignment: bytes = b""
    joining: Callable[[JoinAnswer], None] | None = None
    """Takes the answer to the join that is waiting."""
    syncing: Callable[[SyncAnswer], None] | None = None
    """Takes the answer to the sync that is waiting."""

    @property
    def waiting(self) -> bool:
        """Whether the member waits for an answer; it cannot be expected to send a heartbeat then."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.join.protocols if name == protocol), b"")

    def answer_join(self, answer: JoinAnswer) -> None:
        """Answers the join, if one is waiting."""
        reply, self.joining = self.joining, None
        if reply is not None:
            reply(answer)

    def answer_sync(self, answer: SyncAnswer) -> None:
        """Answers the sync, if one is waiting."""
        reply, self.syncing = self.syncing, None
        if reply is not None:
            reply(answer)

    def dismiss(self, error: ErrorCode) -> None:
        """Answers whatever the member waits for with an error: it is no longer in the group."""
        joining, syncing = self.joining, self.syncing
        self.joining = self.syncing = None
        if joining is not None:
            joining(JoinAnswer(error, self.id))
        if syncing is not None:
            syncing(SyncAnswer(error))


def common_protocols(members: Collection[Member]) -> set[str]:
    """The protocols that all members support."""
    supported = [{name for name, _ in member.join.protocols} for member in members]
    return set.intersection(*supported) if supported else set()


def elect_protocol(members: Collection[Member]) -> str:
    """The protocol with most votes: each member votes for its first choice among those that all support."""
    common = common_protocols(members)
    votes: dict[str, int] = {}
    for member in members:
        choice = next(name for name, _ in member.join.protocols if name in common)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__)


def read_subscription(metadata: bytes) -> list[str]:
    """The topics in a consumer's metadata: a version, then their names; the rest is ignored."""
    (count,), at, topics = struct.unpack_from(">i", metadata, 2), 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, at)
        topics.append(metadata[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return topics
