"""Cases of time at work: segments that are rolled, retention that moves the log start, compaction and its delays.

The topics are made for a hurry: a segment is closed as soon as it has a second batch and a few milliseconds.
"""

import time

from clients.answers import named, now_ms, record
from clients.case import case
from clients.onelog import Log
from headwater.record import Record, encode_batch
from support.servers import wait_until

DAY_MS = 86_400_000
EAGER = {"min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}


def closed(log: Log, topic: str) -> None:
    """Writes until the records so far are in a closed segment: it is closed by time, and by the next record after that."""
    time.sleep(0.15)  # the segment's own age, segment.ms, which no answer has
    log.produce(topic, record("end", "end", 60_000 + time.time_ns() // 1_000_000 - now_ms()))


def compacted(log: Log, topic: str, rows: list[tuple[str, str | None]]) -> None:
    """Waits until a topic has these keys and values, and no others before its last record."""

    def same() -> bool:
        found = log.read(topic, log.offset(topic, -2)[2], committed=False)
        return [(key.decode(), value and value.decode()) for _, key, value in found if key != b"end"] == rows

    wait_until(same, 15, f"the compaction of {topic}")


@case
def retention_of_old_records(log: Log) -> object:
    """Records that are too old go, also the ones written last."""
    topic = log.topic(retention_ms="3600000")
    log.produce(topic, record("old", at=-DAY_MS))
    log.produce(topic, record("old", at=-DAY_MS))
    wait_until(lambda: log.span(topic) == (2, 2), 10, "the end of the old records")
    fetched = [named(log.fetch(topic, at).error_code) for at in (0, 1, 2, 3)]
    return [
        fetched,
        [log.offset(topic, at) for at in (-2, -3, -4, 0)],
        log.produce(topic, record("new")),
        log.values(topic),
    ]


@case
def retention_of_a_quiet_topic(log: Log) -> object:
    """A topic that is written to no more loses its records when they are too old, however long its segments may be."""
    topic = log.topic(retention_ms="300", segment_ms=str(DAY_MS))
    log.produce(topic, record("v"))
    wait_until(lambda: log.span(topic) == (1, 1), 10, "the end of the record")
    return [log.span(topic), named(log.fetch(topic, 0).error_code)]


@case
def retention_of_records_without_a_time(log: Log) -> object:
    """They are as old as the file that they are in."""
    topic = log.topic(retention_ms="1000")
    log.produce(topic, Record(b"k", b"v", (), -1))
    there = log.values(topic)
    wait_until(lambda: log.span(topic) == (1, 1), 10, "the end of the record")
    return there


@case
def retention_by_size(log: Log) -> object:
    """Segments by size; the oldest go beyond what is allowed."""
    topic = log.topic(retention_bytes="1500000", segment_bytes="1048576", retention_ms="-1")
    for number in range(6):
        log.produce(topic, record("x" * 500_000, str(number)))
    wait_until(lambda: log.span(topic)[0] >= 2, 10, "a log start that has moved")
    start, end = log.span(topic)
    return [start, end, named(log.fetch(topic, 0).error_code), [row[0] for row in log.read(topic, start)]]


@case
def retention_with_an_open_transaction(log: Log) -> object:
    topic, writer = log.topic(retention_ms="300"), log.writer()
    writer.init()
    writer.add(topic)
    writer.produce(topic, record("open"))
    wait_until(lambda: log.span(topic)[0] == 1, 10, "the end of the record")
    steps: list[object] = [log.span(topic), log.offset(topic, -1, committed=True), writer.end()]
    log.set(topic, "retention.ms", "-1")
    log.produce(topic, record("next"))
    wait_until(lambda: log.offset(topic, -1, committed=True)[2] == log.span(topic)[1], what="the marker")
    return [*steps, log.values(topic)[-1:]]


@case
def compaction_keeps_the_newest_of_each_key(log: Log) -> object:
    topic = log.topic(cleanup_policy="compact", **EAGER)
    log.produce(topic, record("a1", "a"), record("b1", "b"), codec=1)
    log.produce(topic, record("a2", "a"), record("c1", "c"))
    closed(log, topic)
    compacted(log, topic, [("b", "b1"), ("a", "a2"), ("c", "c1")])
    asked = (now_ms(), -2, -4, -1)
    return [log.read(topic), log.read(topic, 1), log.span(topic), [log.offset(topic, at) for at in asked]]


@case
def compaction_and_tombstones(log: Log) -> object:
    """A tombstone stays for delete.retention.ms after it was compacted, and goes in a pass after that."""
    topic = log.topic(cleanup_policy="compact", delete_retention_ms=str(DAY_MS), **EAGER)
    log.produce(topic, record("a1", "a"))
    log.produce(topic, record("b1", "b"))
    log.produce(topic, record(None, "a"))
    closed(log, topic)
    compacted(log, topic, [("b", "b1"), ("a", None)])
    kept = log.read(topic)[:2]
    quick = log.topic(cleanup_policy="compact", delete_retention_ms="1", **EAGER)
    log.produce(quick, record("a1", "a"))
    log.produce(quick, record("b1", "b"))
    log.produce(quick, record(None, "a"))
    closed(log, quick)
    wait_until(lambda: _again(log, quick) == [(b"b", b"b1")], 15, "the end of the tombstone")
    return [kept, log.span(topic)]


def _again(log: Log, topic: str) -> list[tuple]:
    """Gives compaction a reason for another pass, and says what is left."""
    closed(log, topic)
    return [row[1:] for row in log.read(topic) if row[1] != b"end"]


@case
def compaction_of_records_without_a_key(log: Log) -> object:
    """Those from before the topic was compacted go."""
    topic = log.topic()
    log.produce(topic, record("none", None))
    log.produce(topic, record("a1", "a"), record("none", None), codec=1)
    for name, value in (*EAGER.items(), ("cleanup.policy", "compact")):
        log.set(topic, name, value)
    closed(log, topic)
    wait_until(lambda: _again(log, topic) == [(b"a", b"a1")], 15, "the end of the records without a key")
    return log.read(topic)[0]


@case
def compaction_of_aborted_transactions(log: Log) -> object:
    """When records and markers are gone, a new reader from 0 has every committed row of the same producer."""
    topic, writer = log.topic(cleanup_policy="compact", delete_retention_ms="1", **EAGER), log.writer()
    writer.init()
    writer.transaction(topic, record("aborted", "a"), commit=False)
    for number in range(3):
        writer.transaction(topic, record(f"v{number}", f"k{number}"))
    writer.transaction(topic, record("aborted", "k0"), commit=False)
    closed(log, topic)
    rows = [(f"k{n}".encode(), f"v{n}".encode()) for n in range(3)]
    wait_until(
        lambda: 0 not in _uncommitted(log, topic) and _again(log, topic) == rows,
        15,
        "the end of the aborted record",
    )
    for _ in range(3):  # and with every pass, as markers go
        closed(log, topic)
        assert _again(log, topic) == rows
    return [row for row in log.read(topic) if row[1] != b"end"]


def _uncommitted(log: Log, topic: str) -> list[int]:
    return [row[0] for row in log.read(topic, committed=False)]


@case
def compaction_stops_at_an_open_transaction(log: Log) -> object:
    topic, writer = log.topic(cleanup_policy="compact", **EAGER), log.writer()
    writer.init()
    log.produce(topic, record("a1", "a"))
    log.produce(topic, record("a2", "a"))
    closed(log, topic)
    compacted(log, topic, [("a", "a2")])
    writer.add(topic)
    writer.produce(topic, record("open", "o"))
    log.produce(topic, record("a3", "a"))
    closed(log, topic)
    compacted(log, topic, [("a", "a2"), ("o", "open"), ("a", "a3")])
    steps = [[row[1:] for row in log.read(topic) if row[1] != b"end"], writer.end()]
    wait_until(
        lambda: _again(log, topic) == [(b"o", b"open"), (b"a", b"a3")], 15, "compaction after the transaction"
    )
    return steps


@case
def compaction_and_sequences(log: Log) -> object:
    """A producer continues after its records were compacted away."""
    topic = log.topic(cleanup_policy="compact", **EAGER)
    identity = log.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
    fields = {"producer_id": identity.producer_id, "producer_epoch": 0}
    send = lambda n: log.produce_raw(topic, encode_batch([record(str(n), "a")], base_sequence=n, **fields))  # noqa: E731
    steps = [send(0), send(1)]
    log.produce(topic, record("last", "a"))
    closed(log, topic)
    compacted(log, topic, [("a", "last")])
    return [*steps, send(1), send(2)[0], send(9)[0]]


@case
def deleted_records_of_a_compacted_topic(log: Log) -> object:
    """Apache Kafka deletes records of topics with the policy delete alone."""
    compacted_only, both = log.topic(cleanup_policy="compact"), log.topic(cleanup_policy="compact,delete")
    neither = log.topic(cleanup_policy="")
    for topic in (compacted_only, both, neither):
        log.fill(topic, "a", "b")
    return [log.delete_records(topic, 1) for topic in (compacted_only, both, neither)]


@case
def a_time_that_is_found_after_retention(log: Log) -> object:
    topic = log.topic(retention_ms="3600000")
    log.produce(topic, record("old", at=-DAY_MS))
    wait_until(lambda: log.span(topic)[0] == 1, 10, "the end of the old record")
    log.produce(topic, record("new"))
    return [log.offset(topic, at) for at in (0, now_ms() - DAY_MS, now_ms(), now_ms() + 1)]


@case
def compaction_waits_for_the_least_lag(log: Log) -> object:
    topic = log.topic(cleanup_policy="compact", min_compaction_lag_ms=str(DAY_MS), **EAGER)
    other = log.topic(cleanup_policy="compact", **EAGER)
    for name in (topic, other):
        log.produce(name, record("a1", "a"))
        log.produce(name, record("a2", "a"))
        closed(log, name)
    compacted(log, other, [("a", "a2")])
    return log.values(topic)


@case
def compaction_comes_with_the_greatest_lag(log: Log) -> object:
    """However little there is to gain, and however long a segment may be."""
    lags = {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "500", "segment.ms": str(DAY_MS)}
    topic = log.topic(cleanup_policy="compact", **lags)
    log.produce(topic, record("a1", "a"))
    log.produce(topic, record("a2", "a"))
    closed(log, topic)
    compacted(log, topic, [("a", "a2")])
    return log.values(topic)
