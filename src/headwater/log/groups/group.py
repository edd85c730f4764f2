"""The state machine of a consumer group in Kafka's classic protocol.

              join                 all joined or time-out           leader's sync
    EMPTY ───────────► PREPARING ────────────────────► COMPLETING ───────────────► STABLE
      ▲                 ▲  │ ▲                              │                        │
      │  no member left │  │ └── join, leave, expiry ───────┴────────────────────────┘
      └─────────────────┴──┘

It does no I/O and has no clock: calls carry the time, answers go to the callbacks that the calls carry, and
``deadline`` says when ``expire`` is to be called next. The broker's event loop owns it.
"""

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headwater.errors import ErrorCode, RequestError
from headwater.log.groups.member import (
    Join,
    JoinAnswer,
    Member,
    MemberSnapshot,
    SyncAnswer,
    common_protocols,
    elect_protocol,
    read_subscription,
)

__all__ = ["CONSUMERS", "Group", "GroupSnapshot", "GroupState"]

MEMBERS_MAX = 1000
CONSUMERS = "consumer"
"""The protocol type of groups whose members list the topics that they subscribe to."""


class GroupState(enum.Enum):
    """Kafka's names, as DescribeGroups shows them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupSnapshot(msgspec.Struct, frozen=True):
    """A settled group as it is stored; one without members is deleted."""

    group: str
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str | None = None
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(slots=True)
class Group:
    """One group. Raises RequestError where Kafka answers with an error; the caller sends the code."""

    id: str
    new_id: Callable[[str], str]
    """Makes a member id from the client's own name for itself."""
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    _promised: dict[str, float] = field(default_factory=dict)
    """Member ids that were given out and have not joined yet, with their deadlines."""
    _static: dict[str, str] = field(default_factory=dict)
    """The member id of each static instance."""
    _rebalance_deadline: float = 0.0

    # ---- requests of clients ---------------------------------------------------------------------------

    def join(self, join: Join, now: float, reply: Callable[[JoinAnswer], None]) -> None:
        """Answers at once, or when the generation is complete."""
        self._check_protocols(join)
        member = self._joining_again(join)
        if member is None:
            self._join_new(join, now, reply)
            return
        member.deadline = now + join.session_timeout
        unchanged = member.join.protocols == join.protocols
        member.join = join
        settled = self.state is GroupState.COMPLETING or (
            self.state is GroupState.STABLE and member.id != self.leader
        )
        if unchanged and settled:
            reply(self._join_answer(member))
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
        reply: Callable[[SyncAnswer], None],
    ) -> None:
        """Answers at once, or when the leader has sent the assignments."""
        sender = self.check(member_id, instance_id, generation)
        sender.deadline = now + sender.join.session_timeout
        if self.state is GroupState.PREPARING:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is GroupState.STABLE:
            reply(self._sync_answer(sender))
            return
        sender.syncing = reply
        if sender.id != self.leader:
            return
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.deadline = now + member.join.session_timeout
            member.answer_sync(self._sync_answer(member))

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> None:
        member = self.check(member_id, instance_id, generation)
        member.deadline = now + member.join.session_timeout
        if self.state is GroupState.PREPARING:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance_id: str | None, now: float) -> None:
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        if self._promised.pop(member_id, None) is not None:
            self._complete_if_all_joined(now)
            return
        self._remove(self._member(member_id, instance_id), now)

    def check(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        """The member that sends a request; it must be in the current generation."""
        member = self._member(member_id, instance_id)
        if generation != self.generation:
            raise RequestError(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {generation} is not the current one, {self.generation}",
            )
        return member

    def subscribed(self) -> frozenset[str] | None:
        """The topics that its members subscribe to; None while that is unknown."""
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        try:
            subscriptions = [read_subscription(m.metadata(self.protocol)) for m in self.members.values()]
        except (struct.error, UnicodeDecodeError):
            return None
        return frozenset(topic for topics in subscriptions for topic in topics)

    # ---- restart ---------------------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot | None:
        """The group as it is stored, or None while it is between two generations."""
        if self.state is GroupState.EMPTY:
            return GroupSnapshot(self.id)
        if self.state is not GroupState.STABLE:
            return None
        members = tuple(MemberSnapshot(m.id, m.join, m.assignment) for m in self.members.values())
        return GroupSnapshot(
            self.id, self.generation, self.protocol_type or "", self.protocol or "", self.leader, members
        )

    def restore(self, snapshot: GroupSnapshot, now: float) -> None:
        """Continues from a snapshot; each member has a whole session time-out to send its next request."""
        self.state, self.generation, self.leader = GroupState.STABLE, snapshot.generation, snapshot.leader
        self.protocol_type, self.protocol = snapshot.protocol_type, snapshot.protocol
        for member in snapshot.members:
            deadline = now + member.join.session_timeout
            self.members[member.id] = Member(member.id, member.join, deadline, member.assignment)
            if member.join.instance_id is not None:
                self._static[member.join.instance_id] = member.id

    # ---- time ------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When ``expire`` has something to do, if no request comes before."""
        times = [m.deadline for m in self.members.values() if not m.waiting]
        times += self._promised.values()
        if self.state is GroupState.PREPARING:
            times.append(self._rebalance_deadline)
        return min(times, default=None)

    def expire(self, now: float) -> None:
        """Removes silent members, and ends a rebalance whose time is over."""
        for promised in [id_ for id_, deadline in self._promised.items() if deadline <= now]:
            del self._promised[promised]
        for member in [m for m in self.members.values() if not m.waiting and m.deadline <= now]:
            self._remove(member, now)
        if self.state is GroupState.PREPARING and self._rebalance_deadline <= now:
            self._promised.clear()
            for member in [m for m in self.members.values() if m.joining is None]:
                self._forget(member)
        self._complete_if_all_joined(now)

    # ---- members ---------------------------------------------------------------------------------------

    def _check_protocols(self, join: Join) -> None:
        if not join.protocol_type or not join.protocols:
            raise RequestError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "a member names a protocol type and at least one protocol",
            )
        others = [m for m in self.members.values() if m.id != join.member_id]
        if not others:
            return
        common = common_protocols(others)
        if join.protocol_type != self.protocol_type or not common & {name for name, _ in join.protocols}:
            raise RequestError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group uses {self.protocol_type} with {sorted(common)}",
            )

    def _joining_again(self, join: Join) -> Member | None:
        """The member that joins again.

        None for a new one, also for one that joins with the id promised to it.
        """
        if not join.member_id:
            return None
        if self._promised.pop(join.member_id, None) is not None:
            return None
        return self._member(join.member_id, join.instance_id)

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None and self._static.get(instance_id, member_id) != member_id:
            raise RequestError(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is another member now")
        member = self.members.get(member_id)
        if member is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not in group {self.id}")
        return member

    def _join_new(self, join: Join, now: float, reply: Callable[[JoinAnswer], None]) -> None:
        if len(self.members) + len(self._promised) >= MEMBERS_MAX:
            raise RequestError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"a group has at most {MEMBERS_MAX} members")
        member_id = join.member_id or self.new_id(join.instance_id or join.client_id)
        if join.instance_id is None and join.id_required and not join.member_id:
            self._promised[member_id] = now + join.session_timeout
            reply(JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
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
        """A static member that returns takes its former place; returns whether that needs no rebalance."""
        old.dismiss(ErrorCode.FENCED_INSTANCE_ID)
        self.members = {
            new.id if key == old.id else key: new if key == old.id else m for key, m in self.members.items()
        }
        new.assignment = old.assignment
        if self.leader == old.id:
            self.leader = new.id
        if self.state is not GroupState.STABLE or old.join.protocols != new.join.protocols:
            return False
        new.answer_join(msgspec.structs.replace(self._join_answer(new), members=()))
        return True

    def _remove(self, member: Member, now: float) -> None:
        self._forget(member)
        if self.state in {GroupState.COMPLETING, GroupState.STABLE} and self.members:
            self._prepare(now)
        elif not self.members:
            self.state = GroupState.PREPARING
            self._complete_if_all_joined(now)
        else:
            self._complete_if_all_joined(now)

    def _forget(self, member: Member) -> None:
        del self.members[member.id]
        member.dismiss(ErrorCode.UNKNOWN_MEMBER_ID)
        instance = member.join.instance_id
        if instance is not None and self._static.get(instance) == member.id:
            del self._static[instance]
        if self.leader == member.id:
            self.leader = None

    # ---- generations -----------------------------------------------------------------------------------

    def _prepare(self, now: float) -> None:
        """Begins a rebalance: all members must join again, and waiting syncs are answered at once."""
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                member.answer_sync(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
            self.state = GroupState.PREPARING
            self._rebalance_deadline = now + max(m.join.rebalance_timeout for m in self.members.values())
        self._complete_if_all_joined(now)

    def _complete_if_all_joined(self, now: float) -> None:
        if self.state is not GroupState.PREPARING or self._promised:
            return
        if not self.members:
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, None
            self.generation += 1
            return
        if any(m.joining is None for m in self.members.values()):
            return
        self.generation += 1
        self.state = GroupState.COMPLETING
        self.protocol = elect_protocol(self.members.values())
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in self.members.values():
            member.deadline = now + member.join.session_timeout
            member.answer_join(self._join_answer(member))

    def _join_answer(self, member: Member) -> JoinAnswer:
        protocol = self.protocol or ""
        listed: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.id == self.leader:
            listed = tuple((m.id, m.join.instance_id, m.metadata(protocol)) for m in self.members.values())
        return JoinAnswer(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            protocol,
            self.leader or "",
            listed,
        )

    def _sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol)
