"""Cases of offsets and times: where a reader begins, and what a producer may write."""

from clients.answers import batch_of, named, now_ms, record
from clients.case import case
from clients.onelog import Log
from headwater.record import Record, encode_batch
from support.servers import wait_until

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@case
def offsets_by_time(log: Log) -> object:
    topic = log.topic()
    empty = [log.offset(topic, at) for at in (-1, -2, -3, -4, now_ms())]
    log.fill(topic, "a", "b", "c", "d")
    asked = [
        now_ms() - 1,
        now_ms(),
        now_ms() + 1,
        now_ms() + 2000,
        now_ms() + 3000,
        now_ms() + 3001,
        now_ms() + DAY_MS,
        0,
    ]
    return [empty, [log.offset(topic, at) for at in (-1, -2, -3, -4, *asked)]]


@case
def offsets_by_times_that_mean_nothing(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a")
    return {at: log.offset(topic, at) for at in (-5, -6, -7, -100)}


@case
def the_first_offset_that_is_not_tiered_yet(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a")
    part = {"partition_index": 0, "timestamp": -6}
    answer = log.call("ListOffsets", 11, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    found = answer.topics[0].partitions[0]
    return named(found.error_code), found.offset


@case
def offsets_by_special_times_in_old_versions(log: Log) -> object:
    """The greatest time is known from version 7 on, the local start from 8 on, what is tiered from 9 on."""
    topic = log.topic()
    log.fill(topic, "a", "b")
    answers = {}
    for version in (1, 2, 5, 7, 8, 9, 11):
        for at in (-1, -2, -3, -4, -5, -7, now_ms()):
            part = {"partition_index": 0, "timestamp": at}
            answer = log.call(
                "ListOffsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [part]}]
            )
            found = answer.topics[0].partitions[0]
            answers[version, at] = named(found.error_code), found.offset
    return answers


@case
def offsets_by_time_after_records_were_deleted(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a", "b", "c", "d")
    steps = [log.delete_records(topic, 2)]
    asked = (-1, -2, -3, -4, 0, now_ms(), now_ms() + 1000, now_ms() + 2000, now_ms() + 2500, now_ms() + 9000)
    steps += [log.offset(topic, at) for at in asked]
    steps += [log.delete_records(topic, -1)]
    return steps + [log.offset(topic, at) for at in asked if at != -3]


@case
def the_greatest_time_after_all_records_were_deleted(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a", "b")
    log.delete_records(topic, -1)
    return log.offset(topic, -3)


@case
def offsets_by_time_inside_a_batch(log: Log) -> object:
    topic = log.topic()
    log.produce(topic, *[record(str(n), at=n * 1000) for n in range(6)], codec=1)
    log.delete_records(topic, 2)
    asked = (-2, -3, now_ms(), now_ms() + 1000, now_ms() + 2500, now_ms() + 5000)
    return [[log.offset(topic, at) for at in asked], [row[0] for row in log.read(topic, 2)]]


@case
def offsets_by_time_out_of_order(log: Log) -> object:
    topic = log.topic()
    for at in (5000, 1000, 9000, 3000, 9000):
        log.produce(topic, record(str(at), at=at))
    return [log.offset(topic, at) for at in (-3, now_ms(), now_ms() + 4000, now_ms() + 6000, now_ms() + 9000)]


@case
def offsets_in_an_open_transaction(log: Log) -> object:
    """A reader of what is committed is not sent past the last stable offset."""
    topic, writer = log.topic(), log.writer()
    writer.init()
    log.fill(topic, "a")
    writer.add(topic)
    writer.produce(topic, record("open", at=1000))
    log.produce(topic, record("after", at=2000))
    asked = (-1, -2, -3, -4, now_ms(), now_ms() + 1000, now_ms() + 1500)
    before = [log.offset(topic, at, committed=committed) for committed in (False, True) for at in asked]
    part = log.fetch(topic, 0, committed=True)
    seen = [part.high_watermark, part.last_stable_offset, [row[0] for row in log.read(topic)]]
    seen.append([row[0] for row in log.read(topic, committed=False)])
    writer.end(commit=False)
    wait_until(lambda: log.offset(topic, -1, committed=True)[2] == 4, what="the marker")
    after = [log.offset(topic, at, committed=True)[0::2] for at in asked]
    return [before, seen, after, log.read(topic)]


@case
def records_deleted_in_an_open_transaction(log: Log) -> object:
    topic, writer = log.topic(), log.writer()
    writer.init()
    writer.add(topic)
    writer.produce(topic, record("open"))
    log.produce(topic, record("after", at=1000))
    steps: list[object] = [
        log.delete_records(topic, 2),
        log.span(topic),
        log.offset(topic, -1, committed=True),
    ]
    steps += [named(log.fetch(topic, 0, committed=True).error_code), log.read(topic, 2), writer.end()]
    wait_until(lambda: log.offset(topic, -1, committed=True)[2] == 3, what="the marker")
    return [*steps, log.read(topic, 2)]


@case
def deleted_records(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a", "b", "c")
    steps = [log.delete_records(topic, at) for at in (0, 1, 1, 0, 4, -2, 2, -1, 3)]
    fetched = [log.fetch(topic, at) for at in (0, 2, 3, 4)]
    said = [(named(f.error_code), f.high_watermark, f.log_start_offset) for f in fetched]
    return [steps, said, log.span(topic), log.produce(topic, record("d"))]


@case
def leader_epochs(log: Log) -> object:
    topic = log.topic()
    log.fill(topic, "a", "b")

    def end(epoch: int, current: int = -1) -> tuple:
        part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        found = (
            log.call("OffsetForLeaderEpoch", 4, topics=[{"topic": topic, "partitions": [part]}])
            .topics[0]
            .partitions[0]
        )
        return named(found.error_code), found.leader_epoch, found.end_offset

    return [
        [end(epoch) for epoch in (0, 1, -1)],
        [end(0, current) for current in (0, 1)],
        [named(log.fetch(topic, 0, current_leader_epoch=epoch).error_code) for epoch in (0, 1)],
        [log.offset(topic, -1, current_leader_epoch=epoch)[0] for epoch in (0, 1)],
    ]


@case
def acknowledgements(log: Log) -> object:
    topic = log.topic()
    steps = [log.produce(topic, record(str(acks)), acks=acks) for acks in (1, 0, -1, 2, -2)]
    wait_until(lambda: log.span(topic)[1] == 3, what="the record that nothing was said of")
    return [steps, log.values(topic)]


@case
def batches_that_are_not_sound(log: Log) -> object:
    topic = log.topic()
    good = batch_of([record("a"), record("b")])
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    old = good[:16] + b"\x01" + good[17:]
    return {
        "damaged": log.produce_raw(topic, damaged)[0],
        "cut": log.produce_raw(topic, good[:-5])[0],
        "two": log.produce_raw(topic, good + good)[0],
        "old format": log.produce_raw(topic, old)[0],
        "control": log.produce_raw(topic, encode_batch([record("a")], attributes=0x20))[0],
        "unsequenced": log.produce_raw(topic, encode_batch([record("a")], producer_id=5, producer_epoch=0))[
            0
        ],
        "end": log.span(topic),
    }


@case
def batches_without_records(log: Log) -> object:
    topic = log.topic()
    return log.produce_raw(topic, b"")[0]


@case
def batches_that_are_too_large(log: Log) -> object:
    topic = log.topic(max_message_bytes="1000")
    return [log.produce(topic, record("x" * size))[0] for size in (800, 1000, 5000)] + [
        log.produce(topic, record("x" * 5000), codec=1)[0]
    ]


@case
def batches_that_are_larger_than_a_fetch(log: Log) -> object:
    """The first one is sent whole."""
    topic = log.topic()
    log.fill(topic, "x" * 5000, "y")
    return [len(log.fetch(topic, 0, partition_max_bytes=size).records) > 5000 for size in (1, 100, 5000)]


@case
def sequences_of_a_producer(log: Log) -> object:
    """Repeated, out of order, from an older epoch, and of a producer that the log has not met."""
    topic = log.topic()
    identity = log.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)

    def send(sequence: int, epoch: int = 0, count: int = 1) -> tuple[str, int]:
        records = [record(f"{epoch}.{sequence}") for _ in range(count)]
        fields = {"producer_id": identity.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        return log.produce_raw(topic, encode_batch(records, **fields))

    steps = [
        send(0),
        send(0),
        send(1, count=2),
        send(1, count=2),
        send(2),
        send(5),
        send(3),
        send(1),
        send(1, count=2),
    ]
    steps += [send(0, epoch=1), send(4), send(1, epoch=1), send(7, epoch=2), send(0, epoch=2)]
    stranger = {"producer_id": identity.producer_id + 500, "producer_epoch": 0, "base_sequence": 7}
    return [*steps, log.produce_raw(topic, encode_batch([record("s")], **stranger)), log.span(topic)]


@case
def a_repetition_of_the_sixth_last_batch(log: Log) -> object:
    topic = log.topic()
    identity = log.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
    fields = {"producer_id": identity.producer_id, "producer_epoch": 0}
    send = lambda n: log.produce_raw(topic, encode_batch([record(str(n))], base_sequence=n, **fields))  # noqa: E731
    return [[send(n) for n in range(7)], [send(n) for n in range(7)], log.span(topic)]


@case
def times_far_from_now(log: Log) -> object:
    """What a topic has set of how far a record's time may be from the broker's."""
    topic = log.topic(
        message_timestamp_after_max_ms=str(HOUR_MS),
        message_timestamp_before_max_ms=str(HOUR_MS),
        retention_ms="-1",
    )
    near, far = [0, HOUR_MS // 2, -HOUR_MS // 2], [DAY_MS, 3650 * DAY_MS, -DAY_MS]
    mixed = log.produce(topic, record("a"), record("b", at=DAY_MS))
    return [[log.produce(topic, record("v", at=at)) for at in (*near, *far)], mixed, log.span(topic)]


@case
def times_far_from_now_by_default(log: Log) -> object:
    topic = log.topic(retention_ms="-1")
    return [log.produce(topic, record("v", at=at)) for at in (DAY_MS, -3650 * DAY_MS)]


@case
def times_that_are_none(log: Log) -> object:
    topic = log.topic(retention_ms="-1")
    answer = log.produce(topic, Record(b"k", b"v", (), -1))
    return [answer, log.offset(topic, -3), log.offset(topic, 0)]


@case
def times_of_arrival(log: Log) -> object:
    """With LogAppendTime the producer's time does not count, however wrong it is."""
    topic = log.topic(message_timestamp_type="LogAppendTime")
    answers = [log.produce(topic, record("v", at=at)) for at in (0, 3650 * DAY_MS, -3650 * DAY_MS)]
    part = {"index": 0, "records": batch_of([record("v")])}
    answer = log.call(
        "Produce", 9, acks=-1, timeout_ms=1000, topic_data=[{"name": topic, "partition_data": [part]}]
    )
    said = answer.responses[0].partition_responses[0].log_append_time_ms
    found = log.offset(topic, now_ms())
    return [answers, abs(said - now_ms()) < HOUR_MS, found[0], found[2], log.offset(topic, now_ms() + DAY_MS)]


@case
def times_in_the_answer_of_a_produce(log: Log) -> object:
    topic = log.topic()
    part = {"index": 0, "records": batch_of([record("v")])}
    answer = log.call(
        "Produce", 9, acks=-1, timeout_ms=1000, topic_data=[{"name": topic, "partition_data": [part]}]
    )
    found = answer.responses[0].partition_responses[0]
    return [found.log_append_time_ms, found.log_start_offset]


@case
def records_without_a_key_in_a_compacted_topic(log: Log) -> object:
    topic = log.topic(cleanup_policy="compact")
    both = log.topic(cleanup_policy="compact,delete")
    mixed = [record("a"), record("b", None), record("c")]
    answers = [log.produce(name, record("v", None)) for name in (topic, both)]
    answers += [log.produce(topic, *mixed, codec=codec) for codec in range(5)]
    answers += [log.produce(topic, record("v")), log.produce(topic, record("v", ""))]
    return [answers, log.span(topic)]


@case
def a_topic_that_is_compacted_from_now_on(log: Log) -> object:
    topic = log.topic()
    before = log.produce(topic, record("v", None))
    log.set(topic, "cleanup.policy", "compact")
    between = log.produce(topic, record("v", None))[0]
    log.set(topic, "cleanup.policy", "delete")
    return [before, between, log.produce(topic, record("v", None)), log.values(topic)]


@case
def a_fetch_that_waits(log: Log) -> object:
    """For a record, and for the end of a transaction if what is not committed does not count."""
    topic, writer = log.topic(), log.writer()
    writer.init()
    writer.add(topic)
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    fields: dict = {
        "max_wait_ms": 20_000,
        "min_bytes": 1,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": parts}],
    }
    plain, committed = log.connect(), log.connect()
    plain.send("Fetch", 11, isolation_level=0, **fields)
    committed.send("Fetch", 11, isolation_level=1, **fields)
    writer.produce(topic, record("v"))
    first = plain.receive("Fetch", 11).responses[0].partitions[0]
    steps: list[object] = [first.high_watermark, first.last_stable_offset, bool(first.records), writer.end()]
    second = committed.receive("Fetch", 11).responses[0].partitions[0]
    return [*steps, second.high_watermark, second.last_stable_offset, bool(second.records)]


@case
def what_readers_learn_of_aborted_transactions(log: Log) -> object:
    topic, writer, other = log.topic(), log.writer(), log.writer()
    for each in (writer, other):
        each.init()
    writer.transaction(topic, record("a0"), record("a1"), commit=False)
    writer.transaction(topic, record("c3"))
    other.add(topic)
    other.produce(topic, record("open5"))
    log.produce(topic, record("plain6"))
    other.end(commit=False)
    wait_until(lambda: log.offset(topic, -1, committed=True)[2] == 8, what="the marker")
    said = []
    for offset in range(9):
        part = log.fetch(topic, offset, committed=True)
        said.append([a.first_offset for a in part.aborted_transactions])
    return [said, log.fetch(topic, 0).aborted_transactions, log.read(topic)]


@case
def batches_that_are_larger_than_a_segment(log: Log) -> object:
    topic = log.topic(segment_bytes="1048576", max_message_bytes="5000000")
    return [log.produce(topic, record("x" * size))[0] for size in (1_000_000, 1_100_000)]


@case
def times_of_arrival_of_a_batch(log: Log) -> object:
    """All its records have the time of the last one."""
    topic = log.topic(message_timestamp_type="LogAppendTime")
    log.produce(topic, *[record(str(n)) for n in range(3)], codec=1)
    (first,) = [log.offset(topic, at)[2] for at in (now_ms(),)]
    return [first, log.offset(topic, -3)[0]]


@case
def times_that_change_their_meaning(log: Log) -> object:
    """A topic that goes over to the time of arrival, and back."""
    topic = log.topic(retention_ms="-1")
    log.produce(topic, record("sent", at=-HOUR_MS))
    log.set(topic, "message.timestamp.type", "LogAppendTime")
    log.produce(topic, record("arrived", at=-HOUR_MS))
    log.set(topic, "message.timestamp.type", "CreateTime")
    log.produce(topic, record("sent", at=-2 * HOUR_MS))
    return [log.offset(topic, now_ms() - shift)[2] for shift in (3 * HOUR_MS, HOUR_MS, HOUR_MS - 1, -DAY_MS)]
