"""A life of a broker's data folder: many kills with SIGKILL under load, then every promise to a client is checked.

The seed chooses codecs, partitions, flush mode, load, and when each kill comes: also while the broker still starts.
"""

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from crash.promises import Observed, Place, Promised, faults
from crash.writers import LEDGER, SOURCE, TARGET, Committer, Load, Transactional, Transformer, Writer
from support.servers import BrokerProcess

__all__ = ["KILLS_PER_LIFE", "Lived", "live"]

KILLS_PER_LIFE = 10
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
READ_S = 120
PROGRESS_S = 1.0
"""How long a kill waits for a client to continue: librdkafka looks for its coordinator every half second."""


@dataclass
class Lived:
    """What came of a life."""

    faults: list[str]
    acknowledged: int
    committed: int
    aborted: int
    in_doubt: int
    transformed: int


def live(seed: int, folder: Path, kills: int = KILLS_PER_LIFE) -> Lived:
    """Runs a life in an empty folder."""
    chance = random.Random(seed)
    partitions = chance.randint(1, 4)
    broker = BrokerProcess(folder / "data", "--flush", chance.choice(["commit", "commit", "os"]))
    broker.start()
    try:
        _create_topics(broker.bootstrap, partitions, chance)
        load = Load(broker.bootstrap, partitions)
        with _working(load, chance):
            for _ in range(kills - 1):
                _kill_and_start(broker, chance, load)
        broker.end(signal.SIGKILL)
        broker.start()
        observed = Observed(
            {
                **_read(broker.bootstrap, LEDGER, partitions),
                **_read(broker.bootstrap, SOURCE, partitions),
                **_read(broker.bootstrap, TARGET, partitions),
            },
            _offsets(broker.bootstrap, Committer.GROUP, LEDGER, partitions),
        )
        _expect_all_transformed(broker.bootstrap, load.promised, observed, partitions)
        assert "Traceback" not in broker.log.read_text()
        return _lived(load.promised, observed)
    finally:
        broker.end(signal.SIGKILL)


@contextmanager
def _working(load: Load, chance: random.Random) -> Iterator[None]:
    """All writers at once, until the body is done and each has come to its end."""
    writers = [
        Writer(load, "a", LEDGER, chance.randrange(1 << 30), chance.choice(CODECS)),
        Writer(load, "b", LEDGER, chance.randrange(1 << 30), chance.choice(CODECS), hasty=True),
        Writer(load, "s", SOURCE, chance.randrange(1 << 30), chance.choice(CODECS)),
        Transactional(load, "x", chance.randrange(1 << 30), chance.choice(CODECS)),
        Transactional(load, "y", chance.randrange(1 << 30), chance.choice(CODECS)),
        Transformer(load, "z", chance.randrange(1 << 30), chance.choice(CODECS)),
        Committer(load),
    ]
    with ThreadPoolExecutor(len(writers)) as threads:
        running = [threads.submit(writer.run) for writer in writers]
        try:
            yield
        finally:
            load.stop.set()
        for each in running:
            each.result(timeout=120)


def _kill_and_start(broker: BrokerProcess, chance: random.Random, load: Load) -> None:
    """Kills at once, or in the middle of the transactions that continue once clients have found the broker again."""
    if chance.random() < 0.8:
        begun = load.transformed
        limit = time.monotonic() + PROGRESS_S
        while load.transformed == begun and time.monotonic() < limit:
            time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.15))
    broker.end(signal.SIGKILL)
    if chance.random() < 0.2:  # again while it starts
        broker.launch()
        time.sleep(chance.uniform(0.1, 0.5))
        broker.end(signal.SIGKILL)
    broker.start()


def _create_topics(bootstrap: str, partitions: int, chance: random.Random) -> None:
    settings = {"segment.bytes": str(chance.choice([20_000, 200_000, 1 << 30]))}
    topics = [NewTopic(name, partitions, 1, config=settings) for name in (LEDGER, SOURCE, TARGET)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(topics).values():
        created.result(60)


def _read(bootstrap: str, topic: str, partitions: int) -> dict[Place, list[tuple[int, str]]]:
    """All that a ``read_committed`` reader sees, up to the end of every partition."""
    settings = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    reader = Consumer({"bootstrap.servers": bootstrap, **settings})
    reader.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found: dict[Place, list[tuple[int, str]]] = {(topic, p): [] for p in range(partitions)}
    ended: set[int] = set()
    limit = time.monotonic() + READ_S
    while len(ended) < partitions:
        assert time.monotonic() < limit, f"{topic} was not read to its end within {READ_S} s"
        for message in reader.consume(1000, 0.1):
            if message.error():
                ended.add(message.partition())
            else:
                found[topic, message.partition()].append((message.offset(), message.value().decode()))
    reader.close()
    return found


def _offsets(bootstrap: str, group: str, topic: str, partitions: int) -> dict[Place, int]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    stored = reader.committed([TopicPartition(topic, p) for p in range(partitions)], 10)
    reader.close()
    return {(topic, each.partition): each.offset for each in stored}


def _expect_all_transformed(bootstrap: str, promised: Promised, observed: Observed, partitions: int) -> None:
    """The group's offset says what the target holds: each record of the source before it once, and none after it."""
    stored = _offsets(bootstrap, Transformer.GROUP, SOURCE, partitions)
    observed.commits |= stored
    for place, rows in observed.records.items():
        if place[0] == TARGET:
            source = observed.records[SOURCE, place[1]]
            at = stored[SOURCE, place[1]]
            due = [f"{SOURCE}{place[1]}:{offset}" for offset, _ in source if offset < at]
            there = [value.partition(".")[0] for _, value in rows]
            promised.commits[SOURCE, place[1]] = [at if there == due else -1]


def _lived(promised: Promised, observed: Observed) -> Lived:
    outcomes = [each.outcome for each in promised.transactions]
    return Lived(
        faults(promised, observed),
        sum(map(len, promised.acknowledged.values())),
        outcomes.count("committed"),
        outcomes.count("aborted"),
        outcomes.count("in doubt"),
        sum(len(rows) for (topic, _), rows in observed.records.items() if topic == TARGET),
    )
