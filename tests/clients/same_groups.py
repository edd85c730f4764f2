"""Cases of groups: who may commit, what may be deleted, what is said of groups that are not there."""

import uuid

from clients.answers import SESSION_MS, named, subscription
from clients.case import case
from clients.onelog import Log
from support.servers import wait_until


@case
def commits_without_members(log: Log) -> object:
    topic, group = log.topic(2), log.group()
    return [
        log.commit(group, topic, 5),
        log.commit(group, topic, 6, partition=7),
        log.commit(group, "there-is-none", 1),
        log.commit(group, topic, 7, metadata="m" * 4096),
        log.commit(group, topic, 8, metadata="m" * 4097),
        log.commit(group, topic, 9, metadata="ü" * 2049),
        log.commit(group, topic, 10, metadata="ü" * 4096),
        log.committed(group, topic),
        log.commit(group, topic, 11, metadata=None),
        log.commit(group, topic, -1),
        log.commit(group, topic, -5),
        log.committed(group),
    ]


@case
def a_group_without_a_name(log: Log) -> object:
    topic = log.topic()
    return [log.commit("", topic, 1), log.committed("", topic), log.described("")[:2]]


@case
def commits_by_ids(log: Log) -> object:
    topic, group = log.topic(), log.group()
    part = [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]

    def ask(topic_id: uuid.UUID) -> object:
        answer = log.call(
            "OffsetCommit", 10, group_id=group, topics=[{"topic_id": topic_id, "partitions": part}]
        )
        return named(answer.topics[0].partitions[0].error_code)

    known = log.metadata(topic)[1].topic_id
    wanted = [{"topic_id": each, "partition_indexes": [0]} for each in (known, uuid.UUID(int=7))]
    commits = [ask(known), ask(uuid.UUID(int=7))]
    found = log.call("OffsetFetch", 10, groups=[{"group_id": group, "topics": wanted}]).groups[0]
    return [commits, [(named(p.error_code), p.committed_offset) for t in found.topics for p in t.partitions]]


@case
def commits_by_those_who_are_not_members(log: Log) -> object:
    topic, group = log.topic(), log.group()
    stranger = {"generation_id_or_member_epoch": 3, "member_id": "stranger"}
    steps = [log.commit(group, topic, 1, **stranger), log.described(group)[:2]]
    member = log.join(group, [topic])
    steps += [log.commit(group, topic, 2, **member.identity), member.sync(), log.commit(group, topic, 3)]
    older = member.identity | {"generation_id_or_member_epoch": member.generation - 1}
    newer = member.identity | {"generation_id_or_member_epoch": member.generation + 1}
    steps += [
        log.commit(group, topic, at, **who)
        for at, who in enumerate((stranger, older, newer, member.identity))
    ]
    steps += [member.leave(), log.commit(group, topic, 9, **member.identity), log.commit(group, topic, 8)]
    return [*steps, log.committed(group, topic)]


@case
def members_that_are_not_there(log: Log) -> object:
    topic, group = log.topic(), log.group()
    unknown = log.group()
    stranger = {"group_id": unknown, "generation_id": 1, "member_id": "stranger"}
    answers = [
        named(log.call("Heartbeat", 4, **stranger).error_code),
        named(log.call("SyncGroup", 4, **stranger, assignments=[]).error_code),
        named(log.call("LeaveGroup", 2, group_id=unknown, member_id="stranger").error_code),
        named(
            log.call("LeaveGroup", 5, group_id=unknown, members=[{"member_id": "stranger"}])
            .members[0]
            .error_code
        ),
        log.described(unknown)[:2],
    ]
    member = log.join(group, [topic])
    answers += [
        member.beat(),
        member.sync(),
        log.commit(group, topic, 1, **member.identity),
        member.sync(),
        member.beat(),
        member.beat(member.generation + 1),
        member.beat(member="stranger"),
    ]
    answers += [log.described(group), log.listed(group), member.leave(), member.leave(), member.beat()]
    return [*answers, log.described(group), log.listed(group)]


@case
def joins_that_are_refused(log: Log) -> object:
    topic, group = log.topic(), log.group()

    def ask(
        name: str = group,
        session_ms: int = SESSION_MS,
        member: str = "",
        kind: str = "consumer",
        protocol: str = "range",
    ) -> str:
        protocols = [{"name": protocol, "metadata": subscription([topic])}] if protocol else []
        fields = {
            "group_id": name,
            "session_timeout_ms": session_ms,
            "rebalance_timeout_ms": session_ms,
            "member_id": member,
        }
        return named(log.call("JoinGroup", 5, **fields, protocol_type=kind, protocols=protocols).error_code)

    answers = [
        ask(""),
        ask(session_ms=1),
        ask(session_ms=1 << 30),
        ask(member="stranger"),
        ask(kind=""),
        ask(protocol=""),
    ]
    answers += [log.described(group)]
    log.join(group, [topic]).sync()
    answers += [ask(kind="connect"), ask(protocol="other"), ask(member="stranger")]
    return answers


@case
def members_that_sync_otherwise(log: Log) -> object:
    topic, group = log.topic(), log.group()
    member = log.join(group, [topic])
    fields = {
        "group_id": group,
        "generation_id": member.generation,
        "member_id": member.id,
        "assignments": [],
    }
    answers = [
        log.call("SyncGroup", 5, **fields, protocol_type=kind, protocol_name=name).error_code
        for kind, name in (("consumer", "other"), ("connect", "range"))
    ]
    answers.append(
        log.call(
            "SyncGroup",
            5,
            **(fields | {"generation_id": 99}),
            protocol_type="consumer",
            protocol_name="range",
        ).error_code
    )
    return [*map(named, answers), member.sync()]


@case
def members_that_fall_silent(log: Log) -> object:
    topic, group = log.topic(), log.group()
    member = log.join(group, [topic], session_ms=500)
    steps: list[object] = [member.sync(), log.commit(group, topic, 1, **member.identity)]
    wait_until(lambda: log.described(group)[1] == "Empty", 10, "the end of the member's session")
    steps += [
        member.beat(),
        log.commit(group, topic, 2, **member.identity),
        log.commit(group, topic, 3),
        log.described(group),
    ]
    return [*steps, log.delete_offset(group, topic), log.listed(group), log.delete_group(group)]


@case
def a_rebalance(log: Log) -> object:
    """What a member may do while another one joins."""
    topic, group = log.topic(), log.group()
    first = log.join(group, [topic])
    steps: list[object] = [first.sync()]
    other = log.connect()
    wish = {
        "group_id": group,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "group_instance_id": "other",
    }
    wish |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": subscription([topic])}]}
    other.send("JoinGroup", 7, **wish, member_id="")
    wait_until(lambda: first.beat() == "REBALANCE_IN_PROGRESS", what="the rebalance")
    steps += [
        log.described(group)[:4],
        log.commit(group, topic, 1, **first.identity),
        first.sync(),
        log.delete_offset(group, topic),
    ]
    joined = log.call("JoinGroup", 7, **(wish | {"group_instance_id": None}), member_id=first.id)
    second = other.receive("JoinGroup", 7)
    steps += [
        named(joined.error_code),
        named(second.error_code),
        joined.generation_id - first.generation,
        second.leader == first.id,
        log.described(group)[1],
    ]
    first.generation = joined.generation_id
    steps += [
        log.commit(group, topic, 2, **first.identity),
        first.beat(),
        first.sync(),
        log.commit(group, topic, 3, **first.identity),
    ]
    return [*steps, first.leave(), log.described(group)[1:]]


@case
def static_members(log: Log) -> object:
    topic, group = log.topic(), log.group()
    first = log.join(group, [topic], "one")
    steps: list[object] = [first.sync()]
    second = log.join(group, [topic], "one")
    steps += [first.beat(), first.sync(), second.sync(), second.beat(), second.generation - first.generation]
    fenced = first.identity | {"group_instance_id": "one"}
    current = second.identity | {"group_instance_id": "one"}
    steps += [log.commit(group, topic, 1, **fenced), log.commit(group, topic, 1, **current)]
    return [*steps, log.delete_group(group), second.leave(), log.delete_group(group)]


@case
def offsets_deleted(log: Log) -> object:
    topic, other, group = log.topic(), log.topic(), log.group()
    steps: list[object] = [log.delete_offset(group, topic)]
    log.commit(group, topic, 1)
    log.commit(group, other, 1)
    steps += [
        log.delete_offset(group, topic),
        log.delete_offset(group, topic),
        log.delete_offset(group, "there-is-none"),
    ]
    steps += [log.delete_offset(group, other, 9), log.committed(group)]
    member = log.join(group, [topic])
    steps += [log.delete_offset(group, topic), member.sync(), log.commit(group, topic, 2, **member.identity)]
    steps += [log.delete_offset(group, topic), log.delete_offset(group, other), log.committed(group)]
    return [*steps, member.leave(), log.delete_offset(group, topic)]


@case
def groups_deleted(log: Log) -> object:
    topic, group = log.topic(), log.group()
    steps: list[object] = [log.delete_group(group)]
    log.commit(group, topic, 1)
    steps += [
        log.described(group),
        log.listed(group),
        log.delete_group(group),
        log.delete_group(group),
        log.committed(group),
    ]
    member = log.join(group, [topic])
    steps += [log.delete_group(group), member.sync(), log.commit(group, topic, 1, **member.identity)]
    steps += [log.delete_group(group), member.beat(), member.leave(), log.described(group)]
    return [*steps, log.delete_group(group), log.described(group), log.committed(group, topic)]


@case
def groups_that_are_not_there(log: Log) -> object:
    group = log.group()
    return [
        [log.described(group, version) for version in (0, 5, 6)],
        log.committed(group, log.topic()),
        log.committed(group),
        log.listed(group),
    ]


@case
def groups_listed_by_state_and_type(log: Log) -> object:
    topic, group = log.topic(), log.group()
    log.commit(group, topic, 1)
    answers = [log.listed(group, states_filter=[state]) for state in ("Empty", "empty", "Stable", "Dead")]
    return answers + [log.listed(group, types_filter=[kind]) for kind in ("classic", "Classic", "consumer")]


@case
def offsets_fetched(log: Log) -> object:
    """Of topics and partitions that are not there too."""
    topic, group = log.topic(), log.group()
    log.commit(group, topic, 4)
    wanted = [
        {"name": topic, "partition_indexes": [0, 5]},
        {"name": "there-is-none", "partition_indexes": [0]},
    ]
    answers = []
    for version in (1, 5, 7):
        found = log.call("OffsetFetch", version, group_id=group, topics=wanted)
        answers.append(
            [
                (t.name, p.partition_index, named(p.error_code), p.committed_offset, p.metadata)
                for t in found.topics
                for p in t.partitions
            ]
        )
    return answers


@case
def offsets_that_a_transaction_holds(log: Log) -> object:
    topic, group, writer = log.topic(), log.group(), log.writer()
    writer.init()
    log.commit(group, topic, 1)
    steps: list[object] = [
        writer.commit_offsets(group, topic, 2),
        writer.add_offsets(group),
        writer.commit_offsets(group, topic, 3),
    ]
    steps += [log.committed(group, topic), log.committed(group, topic, stable=True)]
    steps += [
        writer.commit_offsets(group, "there-is-none", 3),
        writer.commit_offsets(group, topic, 3, generation_id=5, member_id="stranger"),
    ]
    steps += [log.delete_offset(group, topic)]
    return [*steps, log.committed(group, topic)]


@case
def offsets_kept_for_as_long_as_a_commit_says(log: Log) -> object:
    """Until version 4 a commit could say for how long."""
    topic, group = log.topic(), log.group()
    answer = log.commit(group, topic, 1, version=4, retention_time_ms=1)
    return [answer, log.comes_true(lambda: log.committed(group, topic)[0][2] == -1, 1)]


@case
def static_members_that_leave(log: Log) -> object:
    """By the name that they chose, with or without the id that they were given."""
    topic, group = log.topic(), log.group()

    def leave(member: str, instance: str | None) -> str:
        answer = log.call(
            "LeaveGroup", 5, group_id=group, members=[{"member_id": member, "group_instance_id": instance}]
        )
        return named(answer.error_code or answer.members[0].error_code)

    first = log.join(group, [topic], "one")
    steps = [
        first.sync(),
        leave("", "other"),
        leave("wrong", "one"),
        leave("", None),
        leave("", "one"),
        leave("", "one"),
    ]
    second = log.join(group, [topic], "one")
    return [*steps, second.sync(), leave(second.id, "one"), log.described(group)[1]]


@case
def offsets_of_several_groups(log: Log) -> object:
    topic, one, two = log.topic(), log.group(), log.group()
    log.commit(one, topic, 1)
    groups = [
        {"group_id": name, "topics": [{"name": topic, "partition_indexes": [0]}]} for name in (two, one, "")
    ]
    answer = log.call("OffsetFetch", 8, groups=groups)
    return [
        (g.group_id, named(g.error_code), [p.committed_offset for t in g.topics for p in t.partitions])
        for g in answer.groups
    ]
