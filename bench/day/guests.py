"""Guests: clients that come and go, and one that stays. Both are programs of their own.

    python guests.py visit BOOTSTRAP FOLDER    one client after the other: a transaction that commits or aborts, a group
                                               that comes back, a topic that is deleted and made again
    python guests.py count BOOTSTRAP FOLDER    one reader of committed records through the whole day

Either ends when ``FOLDER/closing`` exists; the reader only when it has read all. ``FOLDER/visit.json`` and ``FOLDER/count.json`` have
what they have seen.
"""

import sys
import time
import uuid
import zlib
from collections import Counter
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.client.client import Client
from scaled import ASIDE
from traffic import TOPICS

VISITS = "visits"
GROUPS = 20
PATIENCE_S = 600.0
PAUSE_S = 2.0
ASIDE_EVERY = 10
ASIDE_RECORDS = 20


class Seen(msgspec.Struct):
    """What a guest has seen so far."""

    visits: int = 0
    committed: int = 0
    """Visits whose transaction the log has committed."""
    failed: int = 0
    """Visits in which the log was away; what became of their transaction is not known."""
    remade: int = 0
    """Times that the topic was deleted and made again."""
    faults: list[str] = []
    records: dict[str, int] = {}
    checksums: dict[str, int] = {}
    ended: bool = False


def visit(bootstrap: str, folder: Path) -> None:
    """One client after the other, until the day closes."""
    seen = Seen()
    while not (folder / "closing").exists():
        try:
            _stay(bootstrap, seen)
            if seen.visits % ASIDE_EVERY == 0:
                _remake(bootstrap, seen)
        except KafkaException:
            seen.failed += 1
        seen.visits += 1
        _save(folder / "visit.json", seen)
        time.sleep(PAUSE_S)
    seen.ended = True
    _save(folder / "visit.json", seen)


def _stay(bootstrap: str, seen: Seen) -> None:
    """A transaction, every third one aborted, and a look by a group that was there before."""
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    writer = Producer({**settings, "transactional.id": f"visitor-{seen.visits % GROUPS}"})
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(VISITS, f"{seen.visits}", key=f"{seen.visits % GROUPS}")
    if seen.visits % 3 == 2:
        writer.abort_transaction(20)
    else:
        writer.commit_transaction(20)
        seen.committed += 1
    reader = Consumer(
        {**settings, "group.id": f"visitor-{seen.visits % GROUPS}", "auto.offset.reset": "earliest"}
    )
    reader.subscribe([VISITS])
    reader.consume(100, 1.0)
    reader.close()


def _remake(bootstrap: str, seen: Seen) -> None:
    """Deletes the topic and makes it again: a group that had read the first one reads all of the second, and only that."""
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    asked = AdminClient(settings)
    if ASIDE in asked.list_topics(timeout=20).topics:
        asked.delete_topics([ASIDE])[ASIDE].result(20)
    asked.create_topics([NewTopic(ASIDE, 1, 1)])[ASIDE].result(20)
    mark = uuid.uuid4().hex
    writer = Producer({**settings, "enable.idempotence": True})
    for number in range(ASIDE_RECORDS):
        writer.produce(ASIDE, f"{mark} {number}")
    if writer.flush(20):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    found = _taken(settings)
    wanted = [f"{mark} {number}" for number in range(ASIDE_RECORDS)]
    if found != wanted:
        seen.faults.append(
            f"{ASIDE}: made again, {len(wanted)} records sent, read {found[:3]} and so on: {len(found)}"
        )
    seen.remade += 1


def _taken(settings: dict) -> list[str]:
    """What a group reads that has committed before, and commits again."""
    reader = Consumer(
        {**settings, "group.id": "aside", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    reader.subscribe([ASIDE])
    found, limit = [], time.monotonic() + 60
    while len(found) < ASIDE_RECORDS and time.monotonic() < limit:
        found += [each.value().decode() for each in reader.consume(100, 1.0) if each.error() is None]
    if found:
        reader.commit(asynchronous=False)
    reader.close()
    return found


def count(bootstrap: str, folder: Path) -> None:
    """Every committed record of the generator's topics, each offset once and in order, through all that happens to the broker."""
    topics = (*TOPICS, VISITS)
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "day.count",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    known = reader.list_topics(timeout=60).topics
    places = [TopicPartition(name, number, 0) for name in topics for number in known[name].partitions]
    reader.assign(places)
    seen, last = Seen(), {(each.topic, each.partition): -1 for each in places}
    ends = dict.fromkeys(last, 0)
    records: Counter[str] = Counter()
    checksums: Counter[str] = Counter()
    while not seen.ended:
        quiet = True
        for message in reader.consume(5_000, 1.0):
            quiet &= message.error() is not None
            _count(message, last, ends, seen)
            if message.error() is None:
                records[message.topic()] += 1
                checksums[message.topic()] += zlib.crc32(message.value() or b"")
        seen.records, seen.checksums = dict(records), dict(checksums)
        seen.ended = quiet and (folder / "closing").exists() and _has_all(bootstrap, ends)
        _save(folder / "count.json", seen)
    reader.close()


def _count(message, last, ends, seen) -> None:
    """Notes the place of a record, or the end of a partition, which may be a marker after the last record."""
    place, error = (message.topic(), message.partition()), message.error()
    if error is None:
        if message.offset() <= last[place]:
            seen.faults.append(f"count: {place} has offset {message.offset()} after {last[place]}")
        last[place] = message.offset()
    elif error.code() == KafkaError._PARTITION_EOF:
        ends[place] = message.offset()
    elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
        seen.faults.append(f"count: {error.str()}")


def _has_all(bootstrap: str, ends: dict[tuple[str, int], int]) -> bool:
    client = Client(bootstrap)
    there = client.end_offsets({topic for topic, _ in ends})
    client.close()
    return all(ends[place] >= end for place, end in there.items())


def _save(file: Path, seen: Seen) -> None:
    fresh = file.with_suffix(".part")
    fresh.write_bytes(msgspec.json.encode(seen))
    fresh.replace(file)


def read(folder: Path, name: str) -> Seen:
    """What a guest has seen; nothing before its first word."""
    file = folder / f"{name}.json"
    return msgspec.json.decode(file.read_bytes(), type=Seen) if file.exists() else Seen()


if __name__ == "__main__":
    {"visit": visit, "count": count}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
