"""make bench-delivery: rows a second from a topic into each store, exactly once, against the best plain way from Python (``bench/plain.py``).

Both read the same topic in the same big batches, and the clock runs from the end of the first one: joining a group takes half a second, once. The two ways of a store take
turns; the median of the rounds counts. Then a sink is killed (-9) in the midst of a load: how long until its successor has written on, its start included.
STORES=postgres,redis chooses some, and keeps no figures; all but SQLite and PostgreSQL get a quarter of ROWS.
"""

import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka import TopicPartition

import plain
from headwater.client.client import Client, consumer, producer
from headwater.sink import Delta, OpenSearch, Parquet, Postgres, Redis, Sqlite, Tantivy
from headwater.sink.log_consumer import QUEUE_KB
from headwater.sink.loop.loop import SESSION_MS, Loop
from headwater.sink.loop.membership import BATCH_RECORDS
from headwater.sink.store import SinkFeed
from results import Figure, save
from support.databases import PostgresProcess, RedisProcess
from support.servers import BrokerProcess, OpenSearchProcess

ROWS = int(os.environ.get("ROWS", "1000000"))
FEW = max(ROWS // 4, 5 * BATCH_RECORDS)
ROUNDS = int(os.environ.get("ROUNDS", "3"))
ALL = "sqlite,postgres,redis,tantivy,opensearch,delta,parquet"
STORES = os.environ.get("STORES", ALL).split(",")
GOAL = 0.7
RECOVERY_S = 60
PARTITIONS = 4
TOPICS = {"orders": ROWS, "few": FEW}
COLUMNS = {"id": "STRING", "customer": "BIGINT", "country": "STRING", "total": "DOUBLE", "at": "TIMESTAMP"}
KILLED = """
import pickle, sys, threading, time
from headwater.sink.loop.loop import Loop
target, feed = pickle.loads(bytes.fromhex(sys.argv[2]))
loop = Loop(sys.argv[1], feed.sink, feed.topic, target, lambda: feed)
thread = threading.Thread(target=loop.run, daemon=True)
thread.start()
while not loop.counters.applied and thread.is_alive():
    time.sleep(0.005)
print(loop.counters.applied, flush=True)
thread.join()
"""


@dataclass(frozen=True)
class Load:
    """A store beside the plain way to load it; both are given a name that nothing there has yet."""

    title: str
    peer: str
    topic: str
    plain: Callable[[plain.Batches, str], None]
    target: Callable[[str], Any]

    @property
    def rows(self) -> int:
        return TOPICS[self.topic]


def fill(bootstrap: str, topic: str, rows: int) -> None:
    Client(bootstrap).ensure_topics([topic], PARTITIONS, {"cleanup.policy": "compact"})
    out = producer(bootstrap, **{"queue.buffering.max.messages": 1_000_000})
    for n in range(rows):
        key = n * 7919 % max(rows // 2, 1)  # each key twice, far apart
        value = b'{"id":"order-%d","customer":%d,"country":"DE","total":%d.25,"at":"2026-01-05T09:00:%02d.000001Z","_revision":1}'
        out.produce(topic, value % (key, n % 9973, n % 500, n % 60), b"order-%d" % key)
        if n % 10_000 == 0:
            out.poll(0)
    if out.flush(120):
        raise RuntimeError("records were not acknowledged")


def batches(bootstrap: str, topic: str) -> Iterator[list[Any]]:
    """The topic from its start, in batches as big as the loop's."""
    settings: dict[str, Any] = {
        "queued.max.messages.kbytes": QUEUE_KB,
        "queued.min.messages": 10 * BATCH_RECORDS,
    }
    reader = consumer(bootstrap, **settings)
    reader.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    seen = 0
    while seen < TOPICS[topic]:
        found = [m for m in reader.consume(BATCH_RECORDS, 0.2) if m.error() is None]
        seen += len(found)
        if found:
            yield found
    reader.close()


def plain_rate(bootstrap: str, load: Load) -> float:
    """Rows a second of the plain way."""
    begun, before = 0.0, 0

    def timed() -> Iterator[list[Any]]:
        nonlocal begun, before
        for found in batches(bootstrap, load.topic):
            yield found
            if not before:
                begun, before = time.monotonic(), len(found)

    load.plain(timed(), fresh())
    return (load.rows - before) / (time.monotonic() - begun)


def our_rate(bootstrap: str, load: Load) -> float:
    """Rows a second of the sink."""
    name = fresh()
    feed = SinkFeed(name, load.topic, ("id",), COLUMNS)
    loop = Loop(bootstrap, name, load.topic, load.target(name), lambda: feed)
    thread = threading.Thread(target=loop.run)
    thread.start()

    def reaches(rows: int) -> tuple[float, int]:
        while loop.counters.applied < rows:
            if not thread.is_alive():
                raise RuntimeError("the sink has ended before its topic")
            time.sleep(0.005)
        return time.monotonic(), loop.counters.applied

    begun, before = reaches(1)
    ended, _ = reaches(load.rows)
    loop.stop()
    thread.join()
    return (load.rows - before) / (ended - begun)


def rates(bootstrap: str, load: Load) -> tuple[float, float]:
    """Rows a second of ours and of the plain way, the medians of the rounds."""
    found = [(our_rate(bootstrap, load), plain_rate(bootstrap, load)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(each) for each in zip(*found, strict=True))
    return mine, theirs


def recovery(bootstrap: str, load: Load) -> float:
    """Seconds from kill -9 in the midst of the load until a successor has written on."""
    name = fresh()
    given = pickle.dumps((load.target(name), SinkFeed(name, load.topic, ("id",), COLUMNS))).hex()
    command = [sys.executable, "-c", KILLED, bootstrap, given]
    until_applied(command)
    return seconds(lambda: until_applied(command))


def until_applied(command: list[str]) -> None:
    """Starts a sink and kills it once it has applied something."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        limit = threading.Timer(RECOVERY_S, process.kill)
        limit.start()
        said = process.stdout.readline() if process.stdout else b""
        process.send_signal(signal.SIGKILL)
        limit.cancel()
    if not said.strip(b"0\n"):
        raise RuntimeError(
            f"a sink has applied nothing in {RECOVERY_S} s: {said!r}; has it all? then give more ROWS"
        )


def fresh() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


def seconds(act: Callable[[], None]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def loads(folder: Path, servers: ExitStack) -> Iterator[Load]:
    """The stores that were asked for; a server runs until the next one is."""

    def running(server: Any) -> str:
        server.start()
        servers.callback(server.end)
        return str(server.url)

    if "sqlite" in STORES:
        yield Load(
            "SQLite",
            "executemany",
            "orders",
            lambda found, name: plain.sqlite(found, folder / f"{name}.db"),
            lambda name: Sqlite(folder / f"{name}.db", name),
        )
    if "postgres" in STORES:
        postgres = running(PostgresProcess())
        yield Load(
            "PostgreSQL",
            "COPY, upsert",
            "orders",
            lambda found, name: plain.postgres(found, postgres, name),
            lambda name: Postgres(postgres, name),
        )
    if "redis" in STORES:
        redis = running(RedisProcess(folder / "redis"))
        yield Load(
            "Redis",
            "MSET",
            "few",
            lambda found, name: plain.redis_mset(found, redis, f"{name}:"),
            lambda name: Redis(redis, prefix=f"{name}:"),
        )
    if "tantivy" in STORES:
        yield Load(
            "tantivy",
            "index writer",
            "few",
            lambda found, name: plain.tantivy_writer(found, folder / name),
            lambda name: Tantivy(folder / name),
        )
    if "opensearch" in STORES:
        search = running(OpenSearchProcess(folder / "opensearch", heap="1g"))
        yield Load(
            "OpenSearch",
            "bulk API",
            "few",
            lambda found, name: plain.opensearch_bulk(found, search, name),
            lambda name: OpenSearch(search, index=name, settings=plain.SHARDS),
        )
    if "delta" in STORES:
        yield Load(
            "Delta",
            "merge",
            "few",
            lambda found, name: plain.delta_merge(found, folder / name),
            lambda name: Delta(folder / name),
        )
    if "parquet" in STORES:
        yield Load(
            "Parquet",
            "write_table",
            "few",
            lambda found, name: plain.parquet_files(found, folder / name),
            lambda name: Parquet(folder / name),
        )


def main() -> None:
    figures, back = [], []
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as servers:
        folder = Path(temporary)
        broker = BrokerProcess(folder / "log")
        broker.start()
        servers.callback(broker.end)
        log = broker.bootstrap
        for topic, rows in TOPICS.items():
            fill(log, topic, rows)
        for load in loads(folder, servers):
            mine, peer = rates(log, load)
            print(f"{load.title}: {mine:,.0f} of {peer:,.0f} rows/s", file=sys.stderr)
            figures.append(
                Figure(f"rows from a topic into {load.title}", mine, peer, load.peer, "rows/s", GOAL)
            )
            took = recovery(log, load)
            limit = SESSION_MS / 1000
            what = f"next row in {load.title} after kill -9"
            back.append(Figure(what, took, limit, "session time-out", "s", None, higher_is_better=False))
    if os.environ.get("DRY") or set(STORES) != set(ALL.split(",")):
        for figure in [*figures, *back]:
            print(figure)
    else:
        save("delivery", [*figures, *back])


if __name__ == "__main__":
    main()
