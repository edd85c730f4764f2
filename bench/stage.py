"""make bench-stage: what the batch protocol costs, beside Spark's own sink and Spark's own state, in one session.

A million words are counted from the embedded log into a topic, 250,000 a batch, in several ways. The first batch of each way warms up
and does not count. Ways take turns, and the median of the rounds counts.
"""

import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from pyspark.sql import functions as F

import headwater as hw
from headwater.client import Client, producer
from headwater.config import Settings
from headwater.pipeline import publish, session, source, wire
from headwater.pipeline.runner import Runner
from results import Figure, save
from servers import BrokerProcess

ROUNDS = 3
WORDS = 1_000_000
BATCH = 250_000


def fill(bootstrap: str, topic: str, count: int, keys: int) -> None:
    Client(bootstrap).ensure_topics([topic], 2)
    out = producer(bootstrap, **{"queue.buffering.max.messages": 1_000_000})
    for start in range(0, count, 10_000):
        out.produce_batch(
            topic,
            [
                {
                    "key": b"%d" % n,
                    "value": b'{"word":"word-%d","at":"2026-01-05T09:00:00Z"}' % (n * 7_919 % keys),
                }
                for n in range(start, start + 10_000)
            ],
        )
        out.poll(0)
    if out.flush(120):
        raise RuntimeError("records were not acknowledged")


class Event(hw.Event):
    word: str
    at: datetime


def tier_two(words: Any) -> Any:
    return hw.count(words, "word", column="n")


def spark(words: Any) -> Any:
    return words.groupBy("word").agg(F.count("*").alias("n"))


def run(
    settings: Settings, topic: str, view: Callable[[Any], Any], *, plain: bool = False
) -> list[tuple[int, float]]:
    """Runs a view over all that is in the topic; rows and seconds of each batch. ``plain``: through Spark's own sink instead."""
    app = hw.App("bench")
    app.stream("words", Event, key="word", time="at", topic=topic)
    name = f"{view.__name__}-{uuid.uuid4().hex[:6]}"
    app.view(key="word", name=name)(view)
    runner = Runner(app, settings)
    taken, own = [], publish.Publisher._take

    def take(self: Any, rows: Any, batch: int) -> None:
        begun = time.perf_counter()
        if plain:
            records = wire.records(rows, wire.expressions(rows.schema, self._view), view=name)
            records.write.format("kafka").options(**publish.sink_options(settings.access, self._view)).save()
        else:
            own(self, rows, batch)
        taken.append((batch, time.perf_counter() - begun))

    publish.Publisher._take = take
    try:
        runner.once()
    finally:
        publish.Publisher._take = own
    progress = {
        p["batchId"]: (p["numInputRows"], p["durationMs"]["triggerExecution"] / 1000)
        for p in runner._queries[name].recentProgress
    }
    return [progress[batch] for batch, _ in taken if batch in progress and progress[batch][0]]


def rate(batches: list[tuple[int, float]]) -> float:
    rest = batches[1:]
    return sum(rows for rows, _ in rest) / sum(seconds for _, seconds in rest)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "log")
        broker.start()
        host, _, port = broker.bootstrap.partition(":")
        settings = Settings(
            log=f"embedded:{folder}/pipeline",
            host=host,
            broker_port=int(port),
            spark="local[2,4]",
            spark_memory="2g",
        )
        session.start(settings)
        fill(broker.bootstrap, "words", WORDS, WORDS)
        source.BATCH_RECORDS_MAX = BATCH
        ways = {
            "tier two": lambda: rate(run(settings, "words", tier_two)),
            "spark": lambda: rate(run(settings, "words", spark)),
            "sink": lambda: rate(run(settings, "words", spark, plain=True)),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            for name, way in ways.items():
                value = way()
                print(f"round {number} {name:10} {value:12,.0f} rows/s", flush=True)
                if number:
                    found[name].append(value)
        middle = {name: statistics.median(values) for name, values in found.items()}
        broker.end(signal.SIGTERM)
    peer = "Spark's groupBy, same publication"
    save(
        "stage",
        [
            Figure(
                "count words, 1 million keys: operator with state of ours",
                middle["tier two"],
                middle["spark"],
                peer,
                "rows/s",
                0.6,
            ),
            Figure(
                "publish 250,000 changed rows a batch, exactly once",
                middle["spark"],
                middle["sink"],
                "Spark's Kafka sink, at least once",
                "rows/s",
                1.0,
            ),
        ],
    )


if __name__ == "__main__":
    main()
