"""Source: a topic as a typed DataFrame with event time, and the records that do not fit the type.

A record is valid when it is one JSON object in which every field has its type and none that is required is
missing or null. Invalid records never reach a view; ``observe`` counts them beside the query at no extra read.
"""

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.access import Log, access
from headwater.graph import Graph, Stream
from headwater.late import ARRIVAL
from headwater.pipeline import time
from headwater.pipeline.split import Judge, late_split
from headwater.pipeline.topics import Positions, pattern
from headwater.schema import Column, columns

__all__ = ["INVALID", "PLACE", "batch", "invalid", "late", "stream", "ticks"]

INVALID = "invalid"
"""What the observation of a stream's invalid records begins with, and what their topics end in."""
PLACE = "topic STRING, partition INT, offset BIGINT"
"""Where a record stands in the log."""

BATCH_RECORDS_MAX = 1_000_000
"""Records that one micro-batch takes at most, so that a long absence is made up for in steps."""

READ = {
    "startingOffsets": "earliest",
    # A task whose connection went astray with a restart of the log is tried again with a new one after this.
    "kafkaConsumer.pollTimeoutMs": "30000",
    # Measured: a third of the broker's work and two thirds of the time of Kafka's defaults.
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.max.poll.records": "5000",
    "kafka.receive.buffer.bytes": str(4 << 20),
}
FETCH_WAIT_MS = "10"
"""Spark asks for exactly the records that are there, but a task first waits for the fetch that its last one left open:
Kafka's default of 500 ms would be added to every micro-batch. Between batches nobody polls, so it costs nothing."""

TOPIC, PARTITION, OFFSET, VALUE = "_topic", "_partition", "_offset", "_value"
WHERE = (TOPIC, PARTITION, OFFSET)
OF_RECORD = {
    TOPIC: "topic",
    PARTITION: "partition",
    OFFSET: "offset",
    VALUE: "value",
    ARRIVAL: "timestamp",
}
"""Names of ours for what belongs to a record: an event may have fields called topic, partition or value."""
CORRUPT = "_corrupt"
VALID = "_valid"


SPARK_DELAY = "100000 days"
"""Spark's own watermark is moved by the driver (``publish.py``); what Spark works out by itself never gets so far."""


def stream(
    spark: SparkSession,
    log: Log,
    spec: Stream,
    graph: Graph,
    *,
    realtime: bool,
    judge: Judge | None = None,
) -> DataFrame:
    """The stream's valid events as a streaming DataFrame with event time; with a judge, without those that come too late."""
    reader = spark.readStream.format("kafka").options(**READ, **_subscription(log, spec, graph))
    if not realtime:
        reader = reader.option("maxOffsetsPerTrigger", BATCH_RECORDS_MAX).option(
            "kafka.fetch.max.wait.ms", FETCH_WAIT_MS
        )
    kept = [*_kept(spec), *([PARTITION, OFFSET] if judge is not None else [])]
    parsed = _parsed(reader.load(), spec, kept)
    counted = parsed.observe(f"{INVALID} {spec.name}", F.count_if(~F.col(VALID)).alias("records")).where(
        VALID
    )
    if judge is not None:
        counted = late_split(counted, spec, judge, partition=PARTITION, topic=TOPIC, offset=OFFSET)
    return _events(counted, spec).withWatermark(spec.time, spec.delay if realtime else SPARK_DELAY)


def ticks(spark: SparkSession, log: Log, view: str) -> DataFrame:
    """The ticks of a view as a stream."""
    where = {"assign": json.dumps({time.TICKS: [time.tick_partition(view)]})}
    options = READ | access(log).spark() | where | {"startingOffsets": "latest", "failOnDataLoss": "false"}
    return spark.readStream.format("kafka").options(**options).load().select("offset")


def batch(
    spark: SparkSession,
    log: Log,
    spec: Stream,
    graph: Graph,
    *,
    ends: Positions | None = None,
    without: DataFrame | None = None,
) -> DataFrame:
    """The same events as an ordinary DataFrame up to given ends, or over all that the log holds now, but for the records at some places."""
    if ends is None:
        raw = spark.read.format("kafka").options(**READ, **_subscription(log, spec, graph)).load()
    elif ends:
        raw = _stretch(spark, log, {}, ends)
    else:
        raw = spark.createDataFrame([], f"{PLACE}, value BINARY, timestamp TIMESTAMP")
    if without is not None:
        raw = raw.join(F.broadcast(without), ["topic", "partition", "offset"], "left_anti")
    return _events(_parsed(raw, spec, _kept(spec)).where(VALID), spec)


def invalid(spark: SparkSession, log: Log, spec: Stream, starts: Positions, ends: Positions) -> DataFrame:
    """The invalid records between two positions, as topic, partition, offset, value."""
    found = _parsed(_stretch(spark, log, starts, ends), spec, [*WHERE, VALUE]).where(~F.col(VALID))
    return found.selectExpr(*_shown(WHERE), f"{VALUE} AS value")


def late(
    spark: SparkSession, log: Log, spec: Stream, starts: Positions, ends: Positions, *, before_us: int
) -> DataFrame:
    """The valid records between two positions whose time is before another, as topic, partition, offset, value, time_us."""
    kept = [*WHERE, VALUE, *([ARRIVAL] if spec.time == ARRIVAL else [])]
    time_us = F.unix_micros(_quoted(spec.time))
    found = _parsed(_stretch(spark, log, starts, ends), spec, kept).where(VALID).where(time_us < before_us)
    value = f"CAST({VALUE} AS STRING) AS value"
    return found.withColumn("_time_us", time_us).selectExpr(*_shown(WHERE), value, "_time_us AS time_us")


def _stretch(spark: SparkSession, log: Log, starts: Positions, ends: Positions) -> DataFrame:
    """The records between two positions."""
    options = {
        **access(log).spark(),
        "assign": json.dumps({topic: list(partitions) for topic, partitions in ends.items()}),
        "startingOffsets": json.dumps(
            {t: {p: starts.get(t, {}).get(p, -2) for p in partitions} for t, partitions in ends.items()}
        ),
        "endingOffsets": json.dumps(ends),
    }
    return spark.read.format("kafka").options(**READ | options).load()


def _subscription(log: Log, spec: Stream, graph: Graph) -> dict[str, str]:
    where = {"subscribe": spec.topic} if spec.pattern is None else {"subscribePattern": pattern(spec, graph)}
    return {**access(log).spark(), **where}


def _kept(spec: Stream) -> list[str]:
    """What a stream needs of a record besides its value."""
    topic = [TOPIC] if spec.pattern is not None else []
    return [*topic, ARRIVAL] if spec.time == ARRIVAL else topic


def _shown(names: Sequence[str]) -> list[str]:
    return [f"{name} AS {name.removeprefix('_')}" for name in names]


def _events(valid: DataFrame, spec: Stream) -> DataFrame:
    names = [_quoted(column.name) for column in columns(spec.type)]
    return valid.select(*names, *_kept(spec))


def _parsed(raw: DataFrame, spec: Stream, kept: list[str]) -> DataFrame:
    """The event's columns and whether the record is valid, for every record.

    ``inline`` keeps Spark from parsing once more for each filter behind it. Timestamps are read as text first:
    Spark would take a number for seconds, and one record in milliseconds would end event time for good.
    """
    fields = columns(spec.type)
    text = F.col("value").cast("string")
    json_object = F.when(F.ltrim(text).startswith("{"), text).otherwise(F.lit("-"))
    parse = F.from_json(json_object, _parse_schema(fields), {"columnNameOfCorruptRecord": CORRUPT})
    of_record = raw.select(F.col("value"), *[F.col(OF_RECORD[name]).alias(name) for name in kept])
    rows = of_record.select(*kept, F.inline(F.array(parse)))
    typed = rows.select(*kept, *[_typed(field) for field in fields], CORRUPT)
    present = [check for field in fields for check in _present(F.col(_quoted(field.name)), field)]
    return typed.withColumn(VALID, reduce(SparkColumn.__and__, present, F.col(CORRUPT).isNull())).drop(
        CORRUPT
    )


def _parse_schema(fields: tuple[Column, ...]) -> str:
    kinds = [
        f"{_quoted(field.name)} {'STRING' if field.kind == 'TIMESTAMP' else field.kind}" for field in fields
    ]
    return ", ".join([*kinds, f"{CORRUPT} STRING"])


def _typed(field: Column) -> SparkColumn:
    column = F.col(_quoted(field.name))
    if field.kind == "TIMESTAMP":
        column = column.try_cast("timestamp")
    if field.default is not None:
        column = F.coalesce(column, F.from_json(F.lit(f'{{"v":{field.default}}}'), f"v {field.kind}")["v"])
    return column.alias(field.name)


def _present(column: SparkColumn, field: Column) -> list[SparkColumn]:
    """Conditions that a required field, and the required fields inside it, are there."""
    here = [column.isNotNull()] if field.required else []
    inner = [check for part in field.nested for check in _present(column[part.name], part)]
    return [*here, *(inner if field.required else [column.isNull() | check for check in inner])]


def _quoted(name: str) -> str:
    return f"`{name}`"
