"""Cases of transactions: fencing, time-outs, decisions that are repeated, and requests in the wrong state."""

from clients.answers import named, record
from clients.case import case
from clients.onelog import Log
from support.servers import wait_until


@case
def a_producer_that_is_fenced(log: Log) -> object:
    """The answer to each request of the older one, in the versions before and after PRODUCER_FENCED."""
    topic, group = log.topic(), log.group()
    old = log.writer()
    steps: list[object] = [old.init(), old.add(topic), old.produce(topic, record("old"))]
    new = log.writer(name=old.name)
    steps += [new.init(), new.id == old.id, new.epoch - old.epoch, new.state()[:2]]
    steps += [
        old.produce(topic, record("late"))[0],
        old.add(topic),
        old.add(topic, version=1),
        old.add_offsets(group),
    ]
    steps += [
        old.end(),
        old.end(version=1),
        old.end(commit=False),
        old.init(current=True),
        old.init(current=True, version=3),
    ]
    steps += [old.commit_offsets(group, topic, 1)]
    new.transaction(topic, record("new"))
    return [*steps, log.values(topic), log.values(topic, committed=False)]


@case
def a_producer_that_begins_again(log: Log) -> object:
    """A request for the next epoch that is repeated is recognised."""
    writer = log.writer()
    steps: list[object] = [writer.init(), writer.epoch]
    former = writer.epoch
    steps += [writer.init(current=True), writer.epoch - former]
    repeated = log.writer(name=writer.name)
    repeated.id, repeated.epoch = writer.id, former
    steps += [repeated.init(current=True), repeated.epoch - former]
    repeated.epoch = writer.epoch + 5
    steps += [repeated.init(current=True)]
    repeated.id += 1000
    return [*steps, repeated.init(current=True)]


@case
def ids_and_times_that_are_refused(log: Log) -> object:
    answers = [log.writer(timeout_ms=ms).init() for ms in (0, -1, 900_000, 900_001)]
    empty = log.call("InitProducerId", 4, transactional_id="", transaction_timeout_ms=1000)
    plain = log.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=0)
    return [answers, named(empty.error_code), named(plain.error_code)]


@case
def ids_that_are_unknown(log: Log) -> object:
    topic, group, writer = log.topic(), log.group(), log.writer()
    writer.id, writer.epoch = 7777, 0
    steps: list[object] = [writer.add(topic), writer.end(), writer.add_offsets(group), writer.state()]
    steps += [
        writer.init(current=True),
        writer.produce(topic, record("v"))[0],
        writer.commit_offsets(group, topic, 1),
    ]
    return steps


@case
def another_producers_id(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    writer.id += 1000
    return [writer.add(topic), writer.end(), writer.init(current=True)]


@case
def epochs_from_the_future(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    writer.epoch += 3
    return [writer.add(topic), writer.end(), writer.produce(topic, record("v"))[0], writer.init(current=True)]


@case
def ends_without_a_transaction(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    steps: list[object] = [writer.end(), writer.end(commit=False)]
    writer.transaction(topic, record("a"))
    steps += [writer.end(), writer.end(), writer.end(commit=False)]
    writer.transaction(topic, record("b"), commit=False)
    steps += [writer.end(commit=False), writer.end(), writer.state()]
    return [*steps, log.values(topic)]


@case
def records_outside_of_a_transaction(log: Log) -> object:
    topic, other, writer = log.topic(), log.topic(), log.writer()
    writer.init()
    steps: list[object] = [
        writer.produce(topic, record("early"))[0],
        writer.add(topic),
        writer.produce(topic, record("a")),
    ]
    steps += [writer.produce(other, record("elsewhere"))[0], writer.state(), writer.end()]
    wait_until(lambda: log.offset(topic, -1, committed=True)[2] == 2, what="the marker")
    return [*steps, writer.produce(topic, record("late"))[0], log.values(topic), log.values(other)]


@case
def partitions_that_are_unknown(log: Log) -> object:
    """All partitions of a request are added, or none."""
    topic, writer = log.topic(), log.writer()
    writer.init()
    steps: list[object] = [writer.add(topic, "there-is-none"), writer.state(), writer.add(topic, partition=9)]
    return [*steps, writer.end(commit=False)]


@case
def a_transaction_without_records(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    steps = [writer.add(topic), writer.end()]
    wait_until(lambda: log.span(topic)[1] == 1, what="the marker")
    return [*steps, log.span(topic), log.values(topic)]


@case
def a_transaction_that_takes_too_long(log: Log) -> object:
    """It is aborted, and its producer is fenced: what it then gets from each request."""
    topic, group, writer = log.topic(), log.group(), log.writer(timeout_ms=300)
    steps: list[object] = [writer.init(), writer.add(topic), writer.produce(topic, record("slow"))]
    log.produce(topic, record("after"))
    wait_until(lambda: writer.state()[1] == "CompleteAbort", what="the abort")
    wait_until(lambda: log.offset(topic, -1, committed=True)[2] == 3, what="the marker")
    steps += [
        log.values(topic),
        writer.produce(topic, record("late"))[0],
        writer.add(topic),
        writer.end(),
        writer.end(commit=False),
    ]
    steps += [writer.add_offsets(group)]
    former = writer.epoch
    steps += [writer.init(current=True)]
    steps += [writer.init(), writer.epoch - former]
    writer.transaction(topic, record("next"))
    return [*steps, log.values(topic)]


@case
def offsets_of_a_transaction_that_takes_too_long(log: Log) -> object:
    topic, group, writer = log.topic(), log.group(), log.writer(timeout_ms=300)
    writer.init()
    steps: list[object] = [writer.add_offsets(group), writer.commit_offsets(group, topic, 3)]
    wait_until(lambda: writer.state()[1] == "CompleteAbort", what="the abort")
    wait_until(
        lambda: log.committed(group, topic, stable=True)[0][1] == "NONE", what="the end of the pending offset"
    )
    return [*steps, log.committed(group, topic)]


@case
def offsets_of_a_transaction(log: Log) -> object:
    topic, group, writer = log.topic(), log.group(), log.writer()
    writer.init()
    steps: list[object] = [writer.add_offsets(group), writer.commit_offsets(group, topic, 3), writer.end()]
    wait_until(lambda: log.committed(group, topic, stable=True)[0][2] == 3, what="the offset")
    member = log.join(group, [topic])
    member.sync()
    steps += [writer.add_offsets(group)]
    who = {"generation_id": member.generation, "member_id": member.id}
    steps += [
        writer.commit_offsets(group, topic, 4, **(who | {"generation_id": 99})),
        writer.commit_offsets(group, topic, 5, **(who | {"member_id": "stranger"})),
    ]
    steps += [
        writer.commit_offsets(group, topic, 6),
        writer.commit_offsets(group, topic, 7, **who),
        writer.end(),
    ]
    wait_until(
        lambda: log.committed(group, topic, stable=True)[0][1] == "NONE", what="the end of the pending offset"
    )
    return [*steps, log.committed(group, topic)]


@case
def offsets_of_a_group_without_a_name(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    return [writer.add_offsets(""), writer.commit_offsets("", topic, 1)]


@case
def producers_that_are_described(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    writer.add(topic)
    writer.produce(topic, record("a"), record("b"))

    def said(name: str, partition: int = 0) -> object:
        answer = log.call("DescribeProducers", 0, topics=[{"name": name, "partition_indexes": [partition]}])
        part = answer.topics[0].partitions[0]
        return named(part.error_code), [
            (p.last_sequence, p.current_txn_start_offset) for p in part.active_producers
        ]

    steps = [said(topic), said("there-is-none"), said(topic, 9), writer.end()]
    wait_until(lambda: log.offset(topic, -1, committed=True)[2] == 3, what="the marker")
    return [*steps, said(topic)]


@case
def transactions_that_are_listed(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()

    def listed(**filters: object) -> object:
        answer = log.call("ListTransactions", 1, **filters)
        return [
            t.transaction_state for t in answer.transaction_states if t.transactional_id == writer.name
        ], list(answer.unknown_state_filters)

    steps = [listed(), listed(state_filters=["Ongoing"])]
    writer.add(topic)
    steps += [
        listed(state_filters=["Ongoing"]),
        listed(state_filters=["Ongoing", "Nonsense"]),
        listed(producer_id_filters=[writer.id]),
        listed(producer_id_filters=[writer.id + 999]),
    ]
    steps += [listed(duration_filter=3_600_000), writer.end(commit=False)]
    return steps
