"""make bench-time: how soon a real-time view answers, and what ten times the history costs a batch.

The limits of the first part are goals, not peers; each event is timed from before it is produced until a consumer has its row. In the
second part the same view continues at the same rate after a log of 300,000 and of 3 million records.
"""

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka import Consumer
from pyspark.sql import functions as F

import headwater as hw
from embedded import embedded
from headwater.client.client import Client, producer
from headwater.config import Settings
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from results import Figure, save
from support.servers import wait_until

WARM = 200
EVENTS = 1_000
EVERY_S = 0.05
HISTORY = 300_000
TIMES = 10
ROUNDS = 24
ROUND_RECORDS = 2_000
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


class Order(hw.Event):
    order_id: int
    customer_id: int
    at: datetime


def passed(orders: Any) -> Any:
    return orders.selectExpr("order_id", "customer_id", "order_id * 2 AS doubled")


def newest(orders: Any) -> Any:
    return orders.groupBy("customer_id").agg(F.max("order_id").alias("order_id"), F.count("*").alias("n"))


def windows(orders: Any) -> Any:
    return orders.groupBy(F.window("at", "1 minute"), "customer_id").agg(F.count("*").alias("n"))


def record(n: int, at: datetime) -> dict[str, bytes]:
    customer = n % 100
    text = b'{"order_id":%d,"customer_id":%d,"at":"%b"}' % (n, customer, at.isoformat().encode())
    return {"key": b"%d" % customer, "value": text}


# ---- real time -----------------------------------------------------------------------------------------


def realtime(settings: Settings) -> list[Figure]:
    """The latency of a projection and of an aggregate, in one run."""
    app = hw.App("bench")
    app.stream("orders", Order, key="customer_id", time="at")
    app.view(key=["customer_id", "order_id"], latency="realtime")(passed)
    app.view(key="customer_id", latency="realtime")(newest)
    Client(settings.access).ensure_topics(["orders"], 2)
    sent: dict[int, float] = {}
    came: dict[str, dict[int, float]] = {"passed": {}, "newest": {}}
    ended = threading.Event()
    runner = Runner(app, settings)
    runner.start()
    reader = threading.Thread(target=_read, args=(settings.access.bootstrap, came, ended))
    reader.start()
    out = producer(settings.access, **{"linger.ms": 0})
    for n in range(WARM + EVENTS):
        sent[n] = time.perf_counter()
        out.produce("orders", **record(n, datetime.now(UTC)))
        out.poll(0)
        time.sleep(EVERY_S)
        if n == WARM // 2:
            wait_until(lambda: all(len(each) > 0 for each in came.values()), 120, "first rows")
    wait_until(lambda: all(WARM + EVENTS - 1 in each for each in came.values()), 60, "the last rows")
    ended.set()
    reader.join()
    runner.stop()
    figures = []
    for name, limit, what in (("passed", 10, "a projection"), ("newest", 50, "an aggregate")):
        found = sorted(1000 * (at - sent[n]) for n, at in came[name].items() if n >= WARM)
        p50, p99 = statistics.median(found), found[len(found) * 99 // 100]
        print(f"{name}: {len(found)} of {EVENTS} events, p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
        measure = f"real-time view, {what}: event to row, p50 (p99 {p99:.0f} ms)"
        figures.append(Figure(measure, p50, limit, "the limit", "ms", 1.0, higher_is_better=False))
    return figures


def _read(bootstrap: str, came: dict[str, dict[int, float]], ended: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"fetch.wait.max.ms": 5, "isolation.level": "read_uncommitted"})
    consumer.subscribe(list(came))
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None and message.value():
            number = int(message.value().partition(b'"order_id":')[2].split(b",")[0].rstrip(b"}"))
            came[message.topic()].setdefault(number, time.perf_counter())
    consumer.close()


# ---- history -------------------------------------------------------------------------------------------


def history(settings: Settings) -> tuple[float, float]:
    """The median seconds of a batch after few and after many records: two views of one application that take turns."""
    app = hw.App("bench")
    sizes = {"few": HISTORY, "many": TIMES * HISTORY}
    out = producer(settings.access, **{"queue.buffering.max.messages": 1_000_000})
    for name, records in sizes.items():
        app.stream(name, Order, key="customer_id", time="at", delay="1 minute")
        app.view(key=["window", "customer_id"], name=f"{name}_windows", inputs={"orders": name})(windows)
        Client(settings.access).ensure_topics([name], 2)
        _fill(out, name, range(records))
    Runner(app, settings).once()
    runner = Runner(app, settings)
    runner.start()
    taken: dict[str, list[float]] = {name: [] for name in sizes}
    for number in range(ROUNDS):
        for name, records in sizes.items():
            start = records + number * ROUND_RECORDS
            _fill(out, name, range(start, start + ROUND_RECORDS))
            wait_until(runner.caught_up, 60, "the round")
            progress = runner.views[f"{name}_windows"].query.recentProgress
            last = [each for each in progress if each["numInputRows"]][-1]
            taken[name].append(last["durationMs"]["triggerExecution"] / 1000)
    runner.stop()
    few, many = (statistics.median(taken[name][ROUNDS // 3 :]) for name in sizes)
    print(
        f"{HISTORY:,} records of history: {few:.3f} s a batch; {TIMES} times as many: {many:.3f} s",
        flush=True,
    )
    return few, many


def _fill(out: Any, topic: str, numbers: range) -> None:
    for part in _parts(numbers):
        out.produce_batch(topic, part)
        out.poll(0)
    if out.flush(120):
        raise RuntimeError("records were not acknowledged")


def _parts(numbers: range) -> Iterator[list[dict[str, bytes]]]:
    for start in range(numbers.start, numbers.stop, 10_000):
        yield [
            record(n, BEGIN + timedelta(milliseconds=20 * n))
            for n in range(start, min(start + 10_000, numbers.stop))
        ]


def main() -> None:
    with embedded(slots=8) as (_, settings):
        session.start(settings)
        figures = realtime(settings)
        few, many = history(settings)
        figures.append(
            Figure(
                f"a batch of {ROUND_RECORDS:,} records after {TIMES * HISTORY:,} in the log",
                many,
                few,
                f"after {HISTORY:,}",
                "s",
                0.9,
                higher_is_better=False,
            )
        )
    save("time", figures)


if __name__ == "__main__":
    main()
