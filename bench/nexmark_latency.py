"""make bench-time: how soon a bid is in the result of Nexmark's q0 and q18, beside Flink SQL, at half the rate that both can take.

Each bid says when it was sent; a consumer that reads what is committed looks at every hundredth row. Both are exactly once, as in
``nexmark.py``; the maximum is what that measured, of the slower one.
"""

import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka import Consumer

import auctions
from beside import Flink, Ours
from embedded import embedded
from headwater.client.client import Client, producer
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from nexmark import RUNS
from nexmark_queries import QUERIES, Query, app, job, live_table
from nexmark_queries import bids as bids_of
from results import Figure, save
from support.servers import BrokerProcess, wait_until

NAMES = ("q0", "q18")
WARM_S, MEASURE_S = 20, 30
STEP_S = 0.01
EACH = 100
"""One row of so many is looked at."""
BIDS_OF_EVENTS = 46 / 50
SENT = re.compile(rb'"happened":"([^"]+?)Z?"')
Begin = Callable[[Query, str], Callable[[], None]]


def rate(query: str) -> int:
    """Half of what the slower of both can take, in bids a second."""
    runs = json.loads(RUNS.read_text())[query]
    slower = max(runs["ours"]["job_s"], runs["flink"]["job_s"])
    return round(BIDS_OF_EVENTS * runs["events"] / slower / 2)


def bids(count: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of bids, whose time is still to be said."""
    found = ((key, value) for topic, key, value in auctions.events(2 * count) if topic == "bids")
    return [
        (b"%d" % key, SENT.sub(b'"happened":"%b"', value))
        for key, value in (next(found) for _ in range(count))
    ]


def send(
    bootstrap: str, topic: str, texts: list[tuple[bytes, bytes]], a_second: int, seconds: float
) -> float:
    """Sends at an even rate; gives back the rate that it kept."""
    out = producer(bootstrap, **{"linger.ms": 2, "queue.buffering.max.messages": 1_000_000})
    begun, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        due = int(passed * a_second) - sent
        now = datetime.now(UTC).isoformat(timespec="milliseconds")[:-6].encode() + b"Z"
        part = (texts[(sent + n) % len(texts)] for n in range(due))
        out.produce_batch(topic, [{"key": key, "value": value.replace(b"%b", now)} for key, value in part])
        sent += due
        out.poll(0)
        time.sleep(STEP_S)
    out.flush(30)
    return sent / (time.perf_counter() - begun)


def watch(bootstrap: str, topic: str, taken: list[tuple[float, float]], ended: threading.Event) -> None:
    """When rows came and how long after their bids, in seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.subscribe([topic])
    while not ended.is_set():
        for message in consumer.consume(2000, 0.05):
            if message.error() is None and message.offset() % EACH == 0 and message.value():
                found = SENT.search(message.value())
                if found:
                    at = datetime.fromisoformat(found[1].decode()).replace(tzinfo=UTC)
                    now = time.time()
                    taken.append((now, now - at.timestamp()))
    consumer.close()


def measured(
    broker: BrokerProcess, query: Query, who: str, begin: Begin, texts: list[tuple[bytes, bytes]]
) -> list[float]:
    """The delays of a system, sorted, in milliseconds."""
    source, result = f"bids-{query.name}-{who}", f"{query.name}-{who}"
    Client(broker.bootstrap).ensure_topics([source, result], 2)
    taken: list[tuple[float, float]] = []
    ended = threading.Event()
    reader = threading.Thread(target=watch, args=(broker.bootstrap, result, taken, ended))
    reader.start()
    end = begin(query, source)
    begun = time.time()
    kept = send(broker.bootstrap, source, texts, rate(query.name), WARM_S + MEASURE_S)
    wait_until(lambda: taken and time.time() - taken[-1][0] > 3, 120, "the last rows")
    end()
    ended.set()
    reader.join()
    delays = sorted(1000 * delay for at, delay in taken if at - delay > begun + WARM_S)
    print(
        f"{query.name} {who:6} {kept:,.0f} bids/s of {rate(query.name):,}: {len(delays)} rows, "
        f"p50 {delays[len(delays) // 2]:,.0f} ms, p99 {delays[len(delays) * 99 // 100]:,.0f} ms",
        flush=True,
    )
    return delays


def main() -> None:
    found: list[Figure] = []
    with embedded(partitions=2) as (broker, settings), tempfile.TemporaryDirectory() as folder:
        flink = Flink(Path(folder), [])
        ours = Ours(settings)
        found.append(
            Figure(
                "from nothing to ready for queries",
                ours.started_s,
                flink.started_s,
                "Flink SQL 2.3.0",
                "s",
                None,
                higher_is_better=False,
            )
        )

        def mine(query: Query, source: str) -> Callable[[], None]:
            runner = Runner(app(query, f"{query.name}-ours", partial(bids_of, topic=source)), settings)
            runner.start()
            return runner.stop

        def theirs(query: Query, source: str) -> Callable[[], None]:
            created, insert = job(query, f"{query.name}-flink", broker.bootstrap)
            name = f"live_{query.name}"
            flink.begin(
                [live_table(name, source, broker.bootstrap), created],
                insert.replace("FROM bids", f"FROM {name}"),
            )
            return flink.cancel

        texts = bids(50_000)
        for query in QUERIES:
            if query.name not in NAMES:
                continue
            a, b = (
                measured(broker, query, who, begin, texts)
                for who, begin in (("ours", mine), ("flink", theirs))
            )
            for part, share in (("p50", 50), ("p99", 99)):
                measure = f"{query.name}, bid to row at {rate(query.name):,} bids/s, half the maximum: {part}"
                x, y = (each[len(each) * share // 100] for each in (a, b))
                found.append(Figure(measure, x, y, "Flink SQL 2.3.0", "ms", None, higher_is_better=False))
        flink.end()
        session.start(settings).stop()
    save("latency", found)


if __name__ == "__main__":
    main()
