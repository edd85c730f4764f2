"""The group state machine against its promises, without sockets or clocks."""

import contextlib
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.errors import ErrorCode, RequestError
from headwater.log.groups.group import Group, GroupState
from headwater.log.groups.group_record import group_value, read_group_value
from headwater.log.groups.member import Join, JoinAnswer, SyncAnswer

SESSION_S = 10.0
REBALANCE_S = 60.0


def new_group() -> Group:
    numbers = itertools.count()
    return Group("g", new_id=lambda name: f"{name}-{next(numbers)}")


def wish(
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols=(("range", b"meta"),),
    id_required: bool = False,
) -> Join:
    return Join(
        member_id,
        instance,
        "client",
        "host",
        SESSION_S,
        REBALANCE_S,
        "consumer",
        tuple(protocols),
        id_required,
    )


def stable_pair() -> tuple[Group, list[str]]:
    """A group of two members with assignments."""
    group, first, both = new_group(), [], []
    group.join(wish(), 0, first.append)
    group.sync(first[0].member_id, None, 1, {first[0].member_id: b"all"}, now=0, reply=lambda _: None)
    group.join(wish(), 0, both.append)
    group.join(wish(first[0].member_id), 0, both.append)
    ids = [joined.member_id for joined in both]
    leader = group.leader
    for member in sorted(ids, key=lambda m: m == leader):
        group.sync(
            member,
            None,
            2,
            {m: m.encode() for m in ids} if member == leader else {},
            now=0,
            reply=lambda _: None,
        )
    return group, ids


def test_the_first_member_leads_and_everybody_gets_what_the_leader_assigned():
    group, ids = stable_pair()

    assert group.state is GroupState.STABLE
    assert {m.id: m.assignment for m in group.members.values()} == {m: m.encode() for m in ids}


def test_a_client_that_takes_its_id_first_is_not_a_member_until_it_joins_with_it():
    group, replies = new_group(), []
    group.join(wish(id_required=True), 0, replies.append)
    assert replies[0].error == ErrorCode.MEMBER_ID_REQUIRED
    assert not group.members

    group.join(wish(replies[0].member_id), 0, replies.append)
    assert replies[1].error == ErrorCode.NONE
    assert replies[1].leader == replies[0].member_id


def test_a_silent_member_is_dropped_and_the_others_are_asked_to_join_again():
    group, ids = stable_pair()
    group.heartbeat(ids[0], None, 2, now=8)
    group.expire(now=11)

    assert list(group.members) == [ids[0]]
    with pytest.raises(RequestError) as refused:
        group.heartbeat(ids[0], None, 2, now=12)
    assert refused.value.code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_rebalance_continues_without_members_that_do_not_come_back():
    group, ids = stable_pair()
    replies = []
    group.join(wish(ids[0], protocols=[("range", b"other")]), 1, replies.append)
    assert replies == []
    for now in range(2, 62, 5):
        with pytest.raises(RequestError):
            group.heartbeat(ids[1], None, 2, now)
        group.expire(now)
    group.expire(now=62)

    assert [r.generation for r in replies] == [3]
    assert list(group.members) == [ids[0]]


def test_old_generations_and_strangers_are_refused():
    group, ids = stable_pair()
    for call, code in [
        (lambda: group.heartbeat(ids[0], None, 1, 0), ErrorCode.ILLEGAL_GENERATION),
        (lambda: group.heartbeat("stranger", None, 2, 0), ErrorCode.UNKNOWN_MEMBER_ID),
        (
            lambda: group.join(wish(protocols=[("other", b"")]), 0, lambda _: None),
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
    ]:
        with pytest.raises(RequestError) as refused:
            call()
        assert refused.value.code == code


def test_a_static_member_that_comes_back_keeps_its_assignment_and_fences_its_former_self():
    group, replies, synced = new_group(), [], []
    group.join(wish(instance="i"), 0, replies.append)
    old = replies[0].member_id
    group.sync(old, "i", 1, {old: b"mine"}, now=0, reply=synced.append)
    group.join(wish(instance="i"), 1, replies.append)
    new = replies[1].member_id
    group.sync(new, "i", 1, {}, now=1, reply=synced.append)

    assert group.state is GroupState.STABLE
    assert synced[1].assignment == b"mine"
    with pytest.raises(RequestError) as refused:
        group.heartbeat(old, "i", 1, 1)
    assert refused.value.code == ErrorCode.FENCED_INSTANCE_ID


class Client:
    """What the group has answered one consumer, and whether it waits."""

    def __init__(self) -> None:
        self.id = ""
        self.generation = -1
        self.waiting = ""
        self.leads = False
        self.members: list[str] = []
        self.assignment: bytes | None = None

    def joined(self, reply: JoinAnswer) -> None:
        self.waiting = ""
        self.id = reply.member_id
        if reply.error == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        if reply.error == ErrorCode.NONE:
            self.generation, self.leads = reply.generation, reply.leader == reply.member_id
            self.members = [m[0] for m in reply.members]
            self.assignment = None

    def synced(self, reply: SyncAnswer) -> None:
        self.waiting = ""
        if reply.error == ErrorCode.NONE:
            self.assignment = reply.assignment


class Groups(RuleBasedStateMachine):
    """Random members joining, syncing, beating, leaving and falling silent."""

    def __init__(self) -> None:
        super().__init__()
        self.group = new_group()
        self.clients = [Client() for _ in range(4)]
        self.now = 0.0

    @rule(i=st.integers(0, 3), first_id=st.booleans(), metadata=st.sampled_from([b"a", b"b"]))
    def join(self, i, first_id, metadata):
        client = self.clients[i]
        if client.waiting:
            return
        client.waiting = "join"
        try:
            self.group.join(
                wish(client.id, protocols=[("range", metadata)], id_required=first_id),
                self.now,
                client.joined,
            )
        except RequestError as refused:
            client.waiting = ""
            assert refused.code == ErrorCode.UNKNOWN_MEMBER_ID  # noqa: PT017
            client.id = ""

    @rule(i=st.integers(0, 3))
    def sync(self, i):
        client = self.clients[i]
        if client.waiting or not client.id:
            return
        client.waiting = "sync"
        plan = {m: f"{client.generation}:{m}".encode() for m in client.members} if client.leads else {}
        try:
            self.group.sync(client.id, None, client.generation, plan, now=self.now, reply=client.synced)
        except RequestError:
            client.waiting = ""

    @rule(i=st.integers(0, 3))
    def heartbeat(self, i):
        client = self.clients[i]
        if client.id and not client.waiting:
            try:
                self.group.heartbeat(client.id, None, client.generation, self.now)
            except RequestError as refused:
                if refused.code == ErrorCode.UNKNOWN_MEMBER_ID:
                    client.id = ""

    @rule(i=st.integers(0, 3))
    def leave(self, i):
        client = self.clients[i]
        if client.id and not client.waiting:
            with contextlib.suppress(RequestError):
                self.group.leave(client.id, None, self.now)
            client.id, client.generation = "", -1

    @precondition(lambda self: self.group.deadline() is not None)
    @rule(extra=st.floats(0, 5))
    def let_time_pass(self, extra):
        self.now = max(self.now, self.group.deadline()) + extra
        self.group.expire(self.now)

    @invariant()
    def no_deadline_is_forgotten(self):
        deadline = self.group.deadline()
        assert deadline is None or deadline > self.now or self.group.expire(self.now) is None

    @invariant()
    def no_member_waits_for_ever(self):
        """Who waits is a member, and either time will end the wait or a member that is awake can."""
        for client in self.clients:
            if client.waiting == "join":
                assert self.group.state is GroupState.PREPARING
                assert self.group.deadline() is not None
            if client.waiting == "sync":
                assert self.group.state is GroupState.COMPLETING

    @invariant()
    def a_stable_group_has_one_leader_and_one_plan(self):
        if self.group.state is not GroupState.STABLE:
            return
        assert self.group.leader in self.group.members
        plans = {m.assignment.partition(b":")[0] for m in self.group.members.values() if m.assignment}
        assert plans <= {str(self.group.generation).encode()}

    @invariant()
    def an_empty_group_has_no_members(self):
        if self.group.state is GroupState.EMPTY:
            assert not self.group.members


Groups.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestGroups = Groups.TestCase


def test_a_stored_group_comes_back_as_it_was():
    group, ids = stable_pair()
    value = group_value(group.snapshot(), now_ms=1)
    again = new_group()
    again.restore(read_group_value("g", value)[0], now=100)

    assert group_value(again.snapshot(), now_ms=1) == value
    again.heartbeat(ids[1], None, 2, now=105)
    again.expire(now=111)
    assert list(again.members) == [ids[1]]
