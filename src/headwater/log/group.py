"""The consumer-group state machine of Kafka's classic protocol: members, generations, assignments.

              join                 all joined or time-out           leader's sync
    EMPTY ───────────► PREPARING ────────────────────► COMPLETING ───────────────► STABLE
      ▲                 ▲  │ ▲                              │                        │
      │     nobody left │  │ └── join, leave, expiry ───────┴────────────────────────┘
      └─────────────────┴──┘

There is no I/O and no clock in here: calls carry the time, answers go to the callbacks that they carry, and
``deadline`` says when ``expire`` wants to be called next. Its owner is the broker's event loop.
"""

import enum
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from headwater.errors import ErrorCode, Refused

__all__ = ["Group", "GroupSnapshot", "Join", "Joined", "Member", "MemberSnapshot", "State", "Synced"]

MEMBERS_MAX = 1000
CONSUMERS = "consumer"
"""The protocol type of groups whose members name the topics that they want."""


class State(enum.Enum):
    """Kafka's names, as DescribeGroups shows them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Join(msgspec.Struct, frozen=True):
    """A member's wish to be in the next generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    id_required: bool = False
    """The client takes its member id first and joins with it (JoinGroup 4 and later)."""


class Joined(msgspec.Struct, frozen=True):
    """The answer to a join. The leader alone is given the members and their metadata."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class Synced(msgspec.Struct, frozen=True):
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


class GroupSnapshot(msgspec.Struct, frozen=True):
    """A settled group as it is stored; without members it is gone."""

    group: str
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str | None = None
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(slots=True)
class Member:
    """One consumer in the group."""

    id: str
    join: Join
    deadline: float
    assignment: bytes = b""
    joining: Callable[[Joined], None] | None = None
    syncing: Callable[[Synced], None] | None = None

    @property
    def waiting(self) -> bool:
        """While we owe a member an answer it cannot be expected to beat."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.join.protocols if name == protocol), b"")


@dataclass(slots=True)
class Group:
    """One group. Raises Refused where Kafka answers with an error; the caller sends the code."""

    id: str
    new_id: Callable[[str], str]
    """Makes a member id from the client's own name for itself."""
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    _promised: dict[str, float] = field(default_factory=dict)
    """Member ids that were given out and have not joined yet, with their time limit."""
    _static: dict[str, str] = field(default_factory=dict)
    _rebalance_deadline: float = 0.0

    # ---- what clients ask ------------------------------------------------------------------------------

    def join(self, join: Join, now: float, reply: Callable[[Joined], None]) -> None:
        """Answers at once or when the generation is complete."""
        self._check_protocols(join)
        member = self._existing(join)
        if member is None:
            self._join_new(join, now, reply)
            return
        member.deadline = now + join.session_timeout
        unchanged = member.join.protocols == join.protocols
        member.join = join
        settled = self.state is State.COMPLETING or (self.state is State.STABLE and member.id != self.leader)
        if unchanged and settled:
            reply(self._joined(member))
            return
        member.joining = reply
        self._prepare(now)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: dict[str, bytes],
        *,
        now: float,
        reply: Callable[[Synced], None],
    ) -> None:
        """Answers at once or when the leader has sent the assignments."""
        member = self.check(member_id, instance_id, generation)
        member.deadline = now + member.join.session_timeout
        if self.state is State.PREPARING:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is State.STABLE:
            reply(self._synced(member))
            return
        member.syncing = reply
        if member.id != self.leader:
            return
        for each in self.members.values():
            each.assignment = assignments.get(each.id, b"")
        self.state = State.STABLE
        for each in self.members.values():
            each.deadline = now + each.join.session_timeout
            if each.syncing is not None:
                answer, each.syncing = each.syncing, None
                answer(self._synced(each))

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> None:
        member = self.check(member_id, instance_id, generation)
        member.deadline = now + member.join.session_timeout
        if self.state is State.PREPARING:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance_id: str | None, now: float) -> None:
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        if self._promised.pop(member_id, None) is not None:
            self._complete_if_all_joined(now)
            return
        self._remove(self._member(member_id, instance_id), now)

    def check(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        """The member that speaks for the current generation."""
        member = self._member(member_id, instance_id)
        if generation != self.generation:
            raise Refused(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {generation} is not the current one, {self.generation}",
            )
        return member

    def subscribed(self) -> frozenset[str] | None:
        """The topics that its members want; None while that is not known."""
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        try:
            wanted = [read_subscription(m.metadata(self.protocol)) for m in self.members.values()]
        except (struct.error, UnicodeDecodeError):
            return None
        return frozenset(topic for topics in wanted for topic in topics)

    # ---- what a restart needs --------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot | None:
        """The group as it is stored, or None while it is between two generations."""
        if self.state is State.EMPTY:
            return GroupSnapshot(self.id)
        if self.state is not State.STABLE:
            return None
        members = tuple(MemberSnapshot(m.id, m.join, m.assignment) for m in self.members.values())
        return GroupSnapshot(
            self.id, self.generation, self.protocol_type or "", self.protocol or "", self.leader, members
        )

    def restore(self, snapshot: GroupSnapshot, now: float) -> None:
        """Takes up where the snapshot was made; every member has a whole session to be heard of."""
        self.state, self.generation, self.leader = State.STABLE, snapshot.generation, snapshot.leader
        self.protocol_type, self.protocol = snapshot.protocol_type, snapshot.protocol
        for member in snapshot.members:
            limit = now + member.join.session_timeout
            self.members[member.id] = Member(member.id, member.join, limit, member.assignment)
            if member.join.instance_id is not None:
                self._static[member.join.instance_id] = member.id

    # ---- what time does --------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When ``expire`` has something to do, if nobody speaks before."""
        times = [m.deadline for m in self.members.values() if not m.waiting]
        times += self._promised.values()
        if self.state is State.PREPARING:
            times.append(self._rebalance_deadline)
        return min(times, default=None)

    def expire(self, now: float) -> None:
        """Drops silent members, and ends a rebalance that has taken its time."""
        for promised in [id_ for id_, limit in self._promised.items() if limit <= now]:
            del self._promised[promised]
        for member in [m for m in self.members.values() if not m.waiting and m.deadline <= now]:
            self._remove(member, now)
        if self.state is State.PREPARING and self._rebalance_deadline <= now:
            self._promised.clear()
            for member in [m for m in self.members.values() if m.joining is None]:
                self._forget(member)
        self._complete_if_all_joined(now)

    # ---- inside ----------------------------------------------------------------------------------------

    def _check_protocols(self, join: Join) -> None:
        if not join.protocol_type or not join.protocols:
            raise Refused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "a member names a protocol type and at least one protocol",
            )
        others = [m for m in self.members.values() if m.id != join.member_id]
        if not others:
            return
        common = _common_protocols(m.join for m in others)
        if join.protocol_type != self.protocol_type or not common & {name for name, _ in join.protocols}:
            raise Refused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group uses {self.protocol_type} with {sorted(common)}",
            )

    def _existing(self, join: Join) -> Member | None:
        """The member who joins again; None for a new one, also for one that takes up the id promised to it."""
        if not join.member_id:
            return None
        if self._promised.pop(join.member_id, None) is not None:
            return None
        return self._member(join.member_id, join.instance_id)

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None and self._static.get(instance_id, member_id) != member_id:
            raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is now another member")
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not in group {self.id}")
        return member

    def _join_new(self, join: Join, now: float, reply: Callable[[Joined], None]) -> None:
        if len(self.members) + len(self._promised) >= MEMBERS_MAX:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"a group has at most {MEMBERS_MAX} members")
        member_id = join.member_id or self.new_id(join.instance_id or join.client_id)
        if join.instance_id is None and join.id_required and not join.member_id:
            self._promised[member_id] = now + join.session_timeout
            reply(Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
        member = Member(member_id, join, now + join.session_timeout, joining=reply)
        if join.instance_id is not None:
            replaced = self.members.get(self._static.get(join.instance_id, ""))
            self._static[join.instance_id] = member_id
            if replaced is not None and self._take_over(replaced, member):
                return
        self.members[member_id] = member
        self.protocol_type = join.protocol_type
        self._prepare(now)

    def _take_over(self, old: Member, new: Member) -> bool:
        """A static member that comes back takes its place; with the same wishes no rebalance is needed."""
        _dismiss(old, ErrorCode.FENCED_INSTANCE_ID)
        self.members = {
            new.id if key == old.id else key: new if key == old.id else m for key, m in self.members.items()
        }
        new.assignment = old.assignment
        if self.leader == old.id:
            self.leader = new.id
        if self.state is not State.STABLE or old.join.protocols != new.join.protocols:
            return False
        answer, new.joining = new.joining, None
        if answer is not None:
            answer(msgspec.structs.replace(self._joined(new), members=()))
        return True

    def _prepare(self, now: float) -> None:
        """Asks everybody to join again; who waits for an assignment is told at once."""
        if self.state is not State.PREPARING:
            for member in self.members.values():
                if member.syncing is not None:
                    answer, member.syncing = member.syncing, None
                    answer(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
            self.state = State.PREPARING
            self._rebalance_deadline = now + max(m.join.rebalance_timeout for m in self.members.values())
        self._complete_if_all_joined(now)

    def _complete_if_all_joined(self, now: float) -> None:
        if self.state is not State.PREPARING or self._promised:
            return
        if not self.members:
            self.state, self.protocol, self.leader = State.EMPTY, None, None
            self.generation += 1
            return
        if any(m.joining is None for m in self.members.values()):
            return
        self.generation += 1
        self.state = State.COMPLETING
        self.protocol = self._elect_protocol()
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in self.members.values():
            member.deadline = now + member.join.session_timeout
            answer, member.joining = member.joining, None
            if answer is not None:
                answer(self._joined(member))

    def _elect_protocol(self) -> str:
        """Each member votes for its first choice among what all of them support."""
        common = _common_protocols(m.join for m in self.members.values())
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.join.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _joined(self, member: Member) -> Joined:
        protocol = self.protocol or ""
        listed: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.id == self.leader:
            listed = tuple((m.id, m.join.instance_id, m.metadata(protocol)) for m in self.members.values())
        return Joined(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            protocol,
            self.leader or "",
            listed,
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol)

    def _remove(self, member: Member, now: float) -> None:
        self._forget(member)
        if self.state in {State.COMPLETING, State.STABLE} and self.members:
            self._prepare(now)
        elif not self.members:
            self.state = State.PREPARING
            self._complete_if_all_joined(now)
        else:
            self._complete_if_all_joined(now)

    def _forget(self, member: Member) -> None:
        del self.members[member.id]
        _dismiss(member, ErrorCode.UNKNOWN_MEMBER_ID)
        instance = member.join.instance_id
        if instance is not None and self._static.get(instance) == member.id:
            del self._static[instance]
        if self.leader == member.id:
            self.leader = None


def read_subscription(metadata: bytes) -> list[str]:
    """The topics in what a consumer tells its group of itself: a version, then their names; what follows is not looked at."""
    (count,), at, topics = struct.unpack_from(">i", metadata, 2), 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, at)
        topics.append(metadata[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return topics


def _common_protocols(joins: Iterable[Join]) -> set[str]:
    sets = [{name for name, _ in join.protocols} for join in joins]
    return set.intersection(*sets) if sets else set()


def _dismiss(member: Member, error: ErrorCode) -> None:
    """Answers what a member still waits for."""
    joining, syncing = member.joining, member.syncing
    member.joining = member.syncing = None
    if joining is not None:
        joining(Joined(error, member.id))
    if syncing is not None:
        syncing(Synced(error))
