"""Cases of share groups: sessions, acknowledgements, attempts, and what administrators may do."""

import contextlib
import uuid

from clients.answers import named, record
from clients.case import case
from clients.member import Member
from clients.onelog import Log
from clients.sharer import ACCEPT, GAP, REJECT, RELEASE, RENEW, Sharer, configured


def sharing(log: Log, count: int, **config: str) -> Sharer:
    """A member of a new group with a topic of so many records, in one batch."""
    topic, group = log.topic(), log.group()
    configured(log, group, auto_offset_reset="earliest", **config)
    if count:
        log.produce(topic, *(record(str(number)) for number in range(count)))
    return Sharer(log, group, topic).join()


@case
def shared_records_are_settled_one_by_one(log: Log) -> object:
    member = sharing(log, 6)
    return [
        member.fetch(6),
        member.acknowledge((0, 5, [ACCEPT, RELEASE, REJECT, ACCEPT, RELEASE, GAP])),
        member.fetch(2),
        member.acknowledge((1, 1, ACCEPT), (4, 4, RELEASE)),
        member.fetch(1),
        member.acknowledge((4, 4, ACCEPT)),
        member.fetch(0),
    ]


@case
def sessions_of_shares(log: Log) -> object:
    member = sharing(log, 2)
    steps = [named(member.ask(share_session_epoch=3).error_code)]
    steps += [member.acknowledge((0, 0, ACCEPT), share_session_epoch=1)]
    steps += [named(member.ask([(0, 0, ACCEPT)], share_session_epoch=0).error_code)]
    steps += [member.fetch(2)]
    steps += [named(member.ask(share_session_epoch=member.epoch + 5).error_code)]
    steps += [member.acknowledge((0, 0, ACCEPT), share_session_epoch=0)]
    steps += [member.acknowledge((0, 0, ACCEPT), share_session_epoch=member.epoch + 5)]
    steps += [member.acknowledge((0, 0, ACCEPT))]
    steps += [member.acknowledge(share_session_epoch=-1)]
    steps += [member.acknowledge((1, 1, ACCEPT), share_session_epoch=1)]
    return [*steps, member.fetch(1)]


@case
def acknowledgements_that_are_wrong(log: Log) -> object:
    member = sharing(log, 4)
    other = Sharer(log, member.group, member.topic, log.connect()).join()
    member.fetch(4)
    other.ask()
    wrong = [
        [(1, 0, ACCEPT)],
        [(0, 1, ACCEPT), (1, 2, ACCEPT)],
        [(2, 2, ACCEPT), (0, 0, ACCEPT)],
        [(0, 2, [ACCEPT, ACCEPT])],
        [(0, 0, [])],
        [(0, 0, 9)],
        [(0, 0, -1)],
        [(0, 0, RENEW)],
        [(0, 4, ACCEPT)],
        [(7, 9, ACCEPT)],
        [(0, 0, ACCEPT), (9, 9, ACCEPT)],
    ]
    steps = [member.acknowledge(*each) for each in wrong]
    steps += [other.acknowledge((0, 0, ACCEPT))]
    steps += [member.acknowledge((0, 3, ACCEPT)), member.acknowledge((0, 3, ACCEPT))]
    return steps


@case
def acknowledgements_of_topics_that_are_not_there(log: Log) -> object:
    member = sharing(log, 1)
    member.fetch(1)
    ack = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [ACCEPT]}

    def ask(topic_id: uuid.UUID, index: int) -> str:
        parts = [{"partition_index": index, "acknowledgement_batches": [ack]}]
        return member.acknowledge((0, 0, ACCEPT), topics=[{"topic_id": topic_id, "partitions": parts}])

    return [ask(uuid.UUID(int=5), 0), ask(member.topic_id, 9)]


@case
def locks_that_are_renewed(log: Log) -> object:
    member = sharing(log, 2)
    member.fetch(2)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "batch_size": 0}
    steps = [member.acknowledge((0, 1, RENEW), is_renew_ack=True)]
    for field in ("max_wait_ms", "min_bytes", "max_bytes", "max_records"):
        asked = nothing | {field: 1}
        steps.append(named(member.ask([(0, 0, RENEW)], is_renew_ack=True, **asked).error_code))
    answer = member.ask([(0, 0, RENEW)], is_renew_ack=True, **nothing)
    steps.append([named(p.acknowledge_error_code) for t in answer.responses for p in t.partitions])
    configured(log, member.group, renew_acknowledge_enable="false")
    return [*steps, member.acknowledge((0, 1, ACCEPT))]


@case
def a_renewal_that_names_a_partition_without_acknowledgements(log: Log) -> object:
    member = sharing(log, 1)
    member.fetch(1)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "batch_size": 0}
    return named(member.ask([], is_renew_ack=True, **nothing).error_code)


@case
def records_that_are_released_again_and_again(log: Log) -> object:
    member = sharing(log, 16)
    steps = []
    for _ in range(12):
        found = member.fetch(1)
        steps.append(found)
        if not found:
            break
        member.acknowledge((found[0][0], found[-1][0], RELEASE))
    return steps


@case
def a_limit_of_two_deliveries(log: Log) -> object:
    member = sharing(log, 4, delivery_count_limit="2")
    steps = []
    for _ in range(2):
        steps.append(member.fetch(4))
        member.acknowledge((0, 3, RELEASE))
    return [*steps, member.fetch(0)]


@case
def fewer_records_than_a_batch_has(log: Log) -> object:
    member = sharing(log, 10)
    whole = member.once(max_records=3)
    member.acknowledge((0, 9, RELEASE))
    strict = [member.once(max_records=4, share_acquire_mode=1) for _ in range(4)]
    return [len(whole), strict]


@case
def members_with_odd_names(log: Log) -> object:
    member = sharing(log, 0)
    names = ["", " ", "m" * 36, "m" * 37]
    steps = []
    for name in names:
        member.id, member.epoch = name, 0
        steps.append((named(member.beat(0).error_code), named(member.ask(max_wait_ms=0).error_code)))
    return steps


@case
def heartbeats_that_are_wrong(log: Log) -> object:
    member = sharing(log, 0)
    steps = [
        member.beat(-2),
        member.beat(99),
        member.beat(0, subscribed_topic_names=[]),
        member.beat(0, subscribed_topic_names=None),
        member.beat(0, rack_id=""),
    ]
    codes = [named(answer.error_code) for answer in steps]
    codes += [member.leave(), member.leave()]
    return codes


def _joined(log: Log, topic: str) -> Member:
    """Apache Kafka, in a hurry to forget empty groups, may forget one between the two steps of a join."""
    for _ in range(10):
        with contextlib.suppress(AssertionError):
            return log.join(log.group(), [topic])
    raise TimeoutError("no group can be joined")


@case
def names_of_groups_of_another_kind(log: Log) -> object:
    topic = log.topic()
    consumer = _joined(log, topic)
    member = Sharer(log, consumer.group, topic)
    steps = [named(member.beat(0).error_code), consumer.leave()]
    shared = sharing(log, 0)
    steps += [log.commit(shared.group, shared.topic, 1)]
    return steps


@case
def offsets_of_shares(log: Log) -> object:
    member = sharing(log, 5)
    member.fetch(5)
    member.acknowledge((0, 1, ACCEPT))

    def described(group: str, topic: str, partition: int = 0) -> object:
        asked = [{"group_id": group, "topics": [{"topic_name": topic, "partitions": [partition]}]}]
        found = log.call("DescribeShareGroupOffsets", 1, groups=asked).groups[0]
        parts = [(named(p.error_code), p.lag) for t in found.topics for p in t.partitions]
        return named(found.error_code), parts

    def altered(group: str, topic: str, offset: int, partition: int = 0) -> object:
        parts = [{"partition_index": partition, "start_offset": offset}]
        found = log.call(
            "AlterShareGroupOffsets", 0, group_id=group, topics=[{"topic_name": topic, "partitions": parts}]
        )
        return named(found.error_code), [named(p.error_code) for t in found.responses for p in t.partitions]

    def deleted(group: str, topic: str) -> object:
        found = log.call("DeleteShareGroupOffsets", 0, group_id=group, topics=[{"topic_name": topic}])
        return named(found.error_code), [named(t.error_code) for t in found.responses]

    group, topic = member.group, member.topic
    steps = [described(group, topic), described(log.group(), topic), described(group, "there-is-none")]
    steps += [altered(group, topic, 0), deleted(group, topic), _deleted_group(log, group)]
    member.acknowledge(share_session_epoch=-1)
    steps += [member.leave(), altered(group, topic, 3), described(group, topic)]
    steps += [altered(group, "there-is-none", 3), altered(group, topic, 1, 9)]
    steps += [deleted(group, topic), deleted(group, "there-is-none"), deleted(log.group(), topic)]
    return [*steps, _deleted_group(log, group), _deleted_group(log, group)]


def _deleted_group(log: Log, group: str) -> str:
    return named(log.call("DeleteGroups", 2, groups_names=[group]).results[0].error_code)


@case
def settings_of_shares_that_are_wrong(log: Log) -> object:
    wrong = {
        "auto_offset_reset": ["first", "by_duration:", "by_duration:1h", "by_duration:-PT1H"],
        "delivery_count_limit": ["1", "-1", "many"],
        "record_lock_duration_ms": ["999", "0"],
        "partition_max_record_locks": ["99"],
        "isolation_level": ["serializable"],
        "heartbeat_interval_ms": ["0"],
        "renew_acknowledge_enable": ["perhaps"],
        "there_is_none": ["1"],
    }
    group = log.group()
    return [configured(log, group, **{key: value}) for key, values in wrong.items() for value in values]
