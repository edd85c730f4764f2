"""The operators of joins inside Spark, and nothing else: rows come from columnar files, and what comes out is thrown away.

What a record costs to parse, to publish and to account for is measured with whole pipelines (``joins.py``). Here rows go as a task gets
them, moved to their shards, through every operator that a view of them has, with their state kept and synced batch by batch; so may
``transformWithState``, on the same files.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import headwater as hw
import logic
from headwater.pipeline.asof import table_changes
from headwater.pipeline.build.inputs import BATCH_RECORDS_MAX, SPARK_DELAY
from headwater.pipeline.operator import building
from headwater.pipeline.operator.building import OBSERVED, Site, Table
from headwater.pipeline.operator.messages import Plan, written
from headwater.pipeline.state.files import Place
from headwater.pipeline.tables.changelog import ID, apply_changes
from headwater.pipeline.time.watermark import NEVER, PLAN

FILES = 2
"""Of each input in each batch: as many as there are cores."""


class Alone:
    """Operators of a plan, their state, and how long the batches took."""

    def __init__(self, spark: SparkSession, folder: Path, shards: int) -> None:
        self.spark, self.folder = spark, folder
        (folder / "nothing").mkdir(parents=True, exist_ok=True)
        nothing = spark.readStream.schema("n INT").parquet(str(folder / "nothing"))
        self.site = Site(shards, lambda: nothing)
        self._query: Any = None
        self._chains: dict[str, Any] = {}
        self._marks: list[int] = []

    def run(self, rows: DataFrame, watermarks: list[int]) -> float:
        """Takes all that there is; the seconds of its batches. ``watermarks`` are those from the second batch on."""
        self._chains = {name: [()] * self.site.shards for name in self.site.timed}
        self._marks = [NEVER, *watermarks]
        writer = rows.writeStream.foreachBatch(self._take).outputMode("update")
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        self._query = writer.trigger(availableNow=True).start()
        self._query.awaitTermination()
        found = self._query.recentProgress
        self._query = None
        return sum(each["durationMs"]["triggerExecution"] for each in found) / 1000

    def _take(self, rows: DataFrame, batch: int) -> None:
        places = {
            name: Place(str(self.folder / "state" / name), str(self.folder / "copies" / name))
            for name in self._chains
        }
        watermark = self._marks[min(batch, len(self._marks) - 1)]
        plan = Plan(batch, places, self._chains, watermark, time.time_ns() // 1000)
        rows.sparkSession.sparkContext.setLocalProperty(PLAN, msgspec.json.encode(plan).decode())
        rows.write.format("noop").mode("overwrite").save()
        while self._query is None:
            time.sleep(0.001)  # the first batch may be faster than its start
        seen = self._query._jsq.streamingQuery().lastExecution().observedMetrics()
        for name, chains in self._chains.items():
            row = seen.get(f"{OBSERVED} {name}")
            if row.isDefined():
                files = written(list(row.get().getList(0)), self.site.shards)
                self._chains[name] = [
                    files[n].chain if n in files else chain for n, chain in enumerate(chains)
                ]


def stored(folder: Path, parts: Iterator[tuple[int, pa.Table, pa.Table]], names: tuple[str, str]) -> None:
    """The rows of both inputs as files, batch by batch in the order of their times."""
    begun = time.time() - 10_000
    for batch, *inputs in parts:
        for name, rows in zip(names, inputs, strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            size = -(-rows.num_rows // FILES)
            for number in range(FILES):
                path = folder / name / f"{batch:04}-{number}.parquet"
                pq.write_table(rows.slice(number * size, size), path, compression="lz4")
                os.utime(path, (begun + batch, begun + batch))


def read(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    kind = spark.read.parquet(str(folder / name)).schema
    return spark.readStream.schema(kind).option("maxFilesPerTrigger", FILES).parquet(str(folder / name))


# ---- the two joins -------------------------------------------------------------------------------------


def orders(folder: Path) -> list[int]:
    def as_read(rows: pa.Table) -> pa.Table:
        return rows.rename_columns([ID if name == "_key" else name for name in rows.column_names])

    parts = ((batch, as_read(order), as_read(customer)) for batch, order, customer in logic.orders())
    stored(folder, parts, ("orders", "customers"))
    return []


def joined(spark: SparkSession, folder: Path) -> DataFrame:
    keys = {"orders": "order_id", "customers": "customer_id"}
    for name, key in keys.items():
        changes = read(spark, folder, name)
        building.tables().append(Table(apply_changes(changes), changes, (key,)))
    return hw.join(*(table.rows for table in building.tables()), on="customer_id")


def trades(folder: Path) -> list[int]:
    stored(folder, logic.trades(), ("trades", "rates"))
    size = logic.EVENTS // logic.BATCHES
    return [logic.BEGIN_US + n * size * 1000 - logic.DELAY_US for n in range(1, logic.BATCHES)]


def enriched(spark: SparkSession, folder: Path) -> DataFrame:
    trades, rates = (read(spark, folder, name) for name in ("trades", "rates"))
    rates = rates.withWatermark("since", SPARK_DELAY)
    table = table_changes.offer(rates, ("account",), lambda: rates)
    return hw.enrich(trades.withWatermark("at", SPARK_DELAY), table, "account", as_of="at", valid="since")


CASES = {"as-of enrichment": (trades, enriched), "join of two tables": (orders, joined)}


def measured(what: str, spark: SparkSession, folder: Path, rounds: int, shards: int) -> list[float]:
    """Rows a second of each round; the first, in which Java and the workers get warm, is left out."""
    logic.BATCHES = -(-logic.EVENTS // BATCH_RECORDS_MAX)  # as a pipeline with a backlog would take them
    make, build = CASES[what]
    watermarks = make(folder / "rows")
    found = []
    for number in range(rounds + 1):
        place = folder / str(number)
        alone = Alone(spark, place, shards)
        with building.building(alone.site):
            rows = build(spark, folder / "rows")
        found.append(logic.EVENTS / alone.run(rows, watermarks))
        print(f"{what}, the operators alone: {found[-1]:12,.0f} rows/s", flush=True)
        shutil.rmtree(place)
    return found[1:]
