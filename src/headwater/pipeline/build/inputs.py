"""Inputs: the streams and tables of a view as DataFrames with event time.

Late and invalid records of a topic. Invalid records (``record_parser.py``) never reach a view; ``observe``
counts them inside the query, so that no second read is needed.
"""

import json
import uuid
from collections.abc import Sequence
from functools import cache

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.access import Log, access
from headwater.declare.graph import Graph
from headwater.declare.lateness import ARRIVAL
from headwater.declare.spec import Stream
from headwater.pipeline.asof import table_changes
from headwater.pipeline.build.record_parser import (
    KEY,
    OFFSET,
    PARTITION,
    TOPIC,
    VALID,
    VALUE,
    WHERE,
    kept_columns,
    parse,
    quoted,
)
from headwater.pipeline.build.skips import Skips
from headwater.pipeline.operator import building
from headwater.pipeline.operator.building import Table
from headwater.pipeline.tables.changelog import DELETED, ID, apply_changes
from headwater.pipeline.time import watermark
from headwater.pipeline.time.late_split import Judge, observe_times, split_by_spark, split_in_python
from headwater.pipeline.topics import Positions, pattern
from headwater.pipeline.wire import wire
from headwater.pipeline.wire.wire import INVALID
from headwater.result import TICKS

__all__ = [
    "BATCH_RECORDS_MAX",
    "PLACE",
    "batch",
    "invalid",
    "late",
    "records",
    "stream",
    "table",
    "ticks",
]

PLACE = "topic STRING, partition INT, offset BIGINT"
"""The place of a record in the log."""

BATCH_RECORDS_MAX = 1_000_000
"""The maximum number of records in a micro-batch, so that a large backlog is read in steps."""

READ = {
    "startingOffsets": "earliest",
    # Records of an aborted transaction were never published.
    "kafka.isolation.level": "read_committed",
    # A task whose connection was lost with a restart of the log is retried with a new one after this.
    "kafkaConsumer.pollTimeoutMs": "30000",
    # Measured: a third of the broker's work and two thirds of the time of Kafka's defaults.
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.max.poll.records": "5000",
    "kafka.receive.buffer.bytes": str(4 << 20),
}
FETCH_WAIT_MS = "10"
"""Spark asks for exactly the records that are there, but a task first waits for the last one's open fetch.

Kafka's default of 500 ms would be added to every micro-batch. Between batches there are no polls, so a short
wait costs nothing.
"""

SPARK_DELAY = "106751991 days"
"""The driver moves Spark's own watermark (``pipeline/run/publisher.py``).

With this delay Spark never moves it: it is longer than any time that Spark can represent, even for a record
of the year 9999.
"""


def stream(parsed: DataFrame, spec: Stream, *, realtime: bool, judge: Judge | None = None) -> DataFrame:
    """The stream's valid events as a streaming DataFrame with event time; with a judge, without late ones.

    The rows of a view that appends have no event time.
    """
    if judge is not None and spec.time and judge.places(spec):
        counts = f"{INVALID} {spec.name}", F.col(VALID), _counts()
        timed = parsed.withWatermark(spec.time, SPARK_DELAY)
        return _events(split_by_spark(timed, spec, judge, partition=PARTITION, records=counts), spec)
    valid = _valid(parsed, spec)
    if judge is not None and spec.time:
        valid = split_in_python(valid, spec, judge, partition=PARTITION, topic=TOPIC, offset=OFFSET)
    events = _events(valid, spec)
    return events.withWatermark(spec.time, spec.delay if realtime else SPARK_DELAY) if spec.time else events


def table(parsed: DataFrame, spec: Stream, *, judge: Judge | None = None) -> DataFrame:
    """The table's changelog as a streaming DataFrame (``pipeline/tables/changelog.py``).

    With a judge, its event times are observed.
    """
    valid = _valid(parsed, spec)
    if judge is not None and spec.time:
        valid = observe_times(valid, spec, judge, partition=PARTITION)
    return _table(valid, spec)


def records(
    spark: SparkSession,
    log: Log,
    spec: Stream,
    graph: Graph,
    *,
    realtime: bool,
    batch_records: int = BATCH_RECORDS_MAX,
    skips: Skips | None = None,
) -> DataFrame:
    """The parsed records of a topic as a stream, without those that are skipped.

    Each says whether it is valid.
    """
    reader = spark.readStream.format("kafka").options(**READ, **_subscription(log, spec, graph))
    if not realtime:
        reader = reader.option("maxOffsetsPerTrigger", batch_records).option(
            "kafka.fetch.max.wait.ms", FETCH_WAIT_MS
        )
    place = [PARTITION, OFFSET] if spec.time and not spec.table else []
    raw = reader.load() if skips is None else skips.applied(reader.load())
    return parse(raw, spec, [*kept_columns(spec), *place])


def _valid(parsed: DataFrame, spec: Stream) -> DataFrame:
    """The valid records; the others are counted."""
    return parsed.observe(f"{INVALID} {spec.name}", *_counts()).where(VALID)


def _counts() -> list[SparkColumn]:
    valid = F.col(VALID)
    return [F.count(F.when(~valid, 1)).alias("records"), F.count(F.when(valid, 1)).alias("valid")]


def ticks(spark: SparkSession, log: Log, view: str) -> DataFrame:
    """The ticks of a view as a stream."""
    where = {"assign": json.dumps({TICKS: [watermark.tick_partition(view)]})}
    options = READ | access(log).spark() | where | {"startingOffsets": "latest", "failOnDataLoss": "false"}
    return spark.readStream.format("kafka").options(**options).load().select("offset")


def batch(
    spark: SparkSession,
    log: Log,
    spec: Stream,
    graph: Graph,
    *,
    ends: Positions | None = None,
    starts: Positions | None = None,
    without: DataFrame | None = None,
) -> DataFrame:
    """The same events as an ordinary DataFrame, up to ``ends``, or all that the log has now.

    With ends, ``starts`` says where it begins, if that is not the beginning of the log. Records at the places
    in ``without`` are left out. Of a table: the last row of each key, with a weight of 1.
    """
    if ends is None:
        reader = spark.read.format("kafka").options(**READ, **_subscription(log, spec, graph))
        raw = reader.load()
    elif ends:
        raw = _stretch(spark, log, starts or {}, ends)
    else:
        raw = spark.createDataFrame([], f"{PLACE}, key BINARY, value BINARY, timestamp TIMESTAMP")
    if without is not None:
        raw = raw.join(F.broadcast(without), ["topic", "partition", "offset"], "left_anti")
    valid = parse(raw, spec, kept_columns(spec)).where(VALID)
    return _table(valid, spec) if spec.table else _events(valid, spec)


def invalid(spark: SparkSession, log: Log, spec: Stream, starts: Positions, ends: Positions) -> DataFrame:
    """The invalid records between two positions, as topic, partition, offset, value."""
    kept = list(dict.fromkeys([*WHERE, VALUE, *kept_columns(spec)]))
    invalid_records = parse(_stretch(spark, log, starts, ends), spec, kept).where(~F.col(VALID))
    return invalid_records.selectExpr(*_shown(WHERE), f"{VALUE} AS value")


def late(
    spark: SparkSession, log: Log, spec: Stream, starts: Positions, ends: Positions, *, before_us: int
) -> DataFrame:
    """The valid records in a range with an earlier time, as topic, partition, offset, value, time_us."""
    kept = [*WHERE, VALUE, *([ARRIVAL] if spec.time == ARRIVAL else [])]
    time_us = F.unix_micros(quoted(spec.time))
    records = parse(_stretch(spark, log, starts, ends), spec, kept).where(VALID).where(time_us < before_us)
    value = f"CAST({VALUE} AS STRING) AS value"
    return records.withColumn("_time_us", time_us).selectExpr(*_shown(WHERE), value, "_time_us AS time_us")


def _stretch(spark: SparkSession, log: Log, starts: Positions, ends: Positions) -> DataFrame:
    """The records between two positions."""
    settings = access(log).spark()
    options = {
        **settings,
        "kafka.group.id": _reader(tuple(sorted(settings.items()))),
        "assign": json.dumps({topic: list(partitions) for topic, partitions in ends.items()}),
        "startingOffsets": json.dumps(
            {t: {p: starts.get(t, {}).get(p, -2) for p in partitions} for t, partitions in ends.items()}
        ),
        "endingOffsets": json.dumps(ends),
    }
    return spark.read.format("kafka").options(**READ | options).load()


@cache
def _reader(settings: tuple[tuple[str, str], ...]) -> str:  # noqa: ARG001  the key of the cache
    """The consumer group of all reads of stretches with the same settings. It commits nothing.

    Without it Spark would give each read its own group, and keeps the consumers of a group for minutes. It
    refuses a group with other settings.
    """
    return f"headwater-stretches-{uuid.uuid4()}"


def _subscription(log: Log, spec: Stream, graph: Graph) -> dict[str, str]:
    where = {"subscribe": spec.topic} if spec.pattern is None else {"subscribePattern": pattern(spec, graph)}
    return {**access(log).spark(), **where}


def _shown(names: Sequence[str]) -> list[str]:
    return [f"{name} AS {name.removeprefix('_')}" for name in names]


def _events(valid: DataFrame, spec: Stream) -> DataFrame:
    names = [quoted(column.name) for column in spec.columns]
    return valid.select(*names, *kept_columns(spec))


def _table(valid: DataFrame, spec: Stream) -> DataFrame:
    """The changelog of a table, which also gives access to its changes through two hidden channels.

    ``building.tables()`` has the table of the view that is being built, for joins that work on its changes.
    And the DataFrame gets an attribute, from which ``pipeline/asof/table_changes.py`` makes all changes
    (``pipeline/DESIGN.md``, Hidden channels).
    """

    def every() -> DataFrame:
        names = [quoted(column.name) for column in spec.columns]
        return _timed(valid.select(*names, F.col(DELETED).alias(wire.GONE), OFFSET, ARRIVAL), spec)

    changes = _changes(valid, spec)
    rows = _timed(apply_changes(changes), spec)
    building.tables().append(Table(rows, _timed(changes, spec), () if spec.view else spec.key))
    return table_changes.offer(rows, spec.key, every)


def _timed(rows: DataFrame, spec: Stream) -> DataFrame:
    """Declares the event time of a table's rows; for those of a stream Spark knows it already."""
    return rows.withWatermark(spec.time, SPARK_DELAY) if spec.time and rows.isStreaming else rows


def _changes(valid: DataFrame, spec: Stream) -> DataFrame:
    """The records of a table as changes: its columns, the key, and the place of the record."""
    names = [quoted(column.name) for column in spec.columns]
    key = f"CAST({KEY} AS STRING)" if spec.view else wire.key_expression(valid.schema, spec.key)
    arrival = [ARRIVAL] if spec.time == ARRIVAL else []
    return valid.select(*names, *arrival, F.expr(key).alias(ID), DELETED, PARTITION, OFFSET)
