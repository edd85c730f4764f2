"""What hw.enrich without as_of costs beside Spark's own broadcast join with the same 1,000 rows: the question whether small tables should be broadcast.

Words are counted by the group of their word, from the embedded log; groups are few, so that publication costs next to nothing. Spark's join gets the table as
rows that never change, without anything that would pin them to a batch: the most that a broadcast could gain. The floor counts words without any table.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headwater as hw
from embedded import embedded
from headwater.client.client import Client, producer
from headwater.pipeline.build import inputs
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from stage import BATCH, Event, _batches, fill, rate

ROUNDS = 3
WORDS = 1_000_000
ROWS = 1_000


class Group(hw.Row):
    word: str
    name: str


def counted(rows: Any) -> Any:
    return rows.groupBy("name").agg(F.count("*").alias("n"))


def enriched(words: Any, groups: Any) -> Any:
    return counted(hw.enrich(words, groups, on="word"))


def broadcast(words: Any) -> Any:
    table = (
        SparkSession.active()
        .range(ROWS)
        .selectExpr("concat('word-', id) AS word", "concat('group-', id % 10) AS name")
    )
    return counted(words.join(F.broadcast(table), "word", "left"))


def floor(words: Any) -> Any:
    return counted(words.selectExpr("substr(word, -1) AS name"))


def main() -> None:
    with embedded() as (broker, settings):
        session.start(settings).conf.set("spark.sql.streaming.numRecentProgressUpdates", "100")
        inputs.BATCH_RECORDS_MAX = BATCH
        fill(broker.bootstrap, "words", (n * 7_919 % ROWS for n in range(WORDS)))
        Client(broker.bootstrap).ensure_topics(["groups"], 2, {"cleanup.policy": "compact"})
        out = producer(broker.bootstrap)
        for n in range(ROWS):
            out.produce("groups", b'{"word":"word-%d","name":"group-%d"}' % (n, n % 10), b"word-%d" % n)
        out.flush(60)
        found: dict[str, list[float]] = {}
        for number in range(ROUNDS + 1):
            for view in (enriched, broadcast, floor):
                app, name = hw.App("bench"), f"{view.__name__}-{number}"
                app.stream("words", Event, key="word", time="at", delay="1 minute")
                app.table("groups", Group, key="word")
                app.view(key="name", name=name)(view)
                runner = Runner(app, settings)
                runner.once()
                value = rate(_batches(runner.views[name].query))
                print(f"round {number} {view.__name__:10} {value:12,.0f} rows/s", flush=True)
                if number:
                    found.setdefault(view.__name__, []).append(value)
        for name, values in found.items():
            print(f"{name:10} {statistics.median(values):12,.0f} rows/s")


if __name__ == "__main__":
    main()
