"""Source: a topic as a typed DataFrame with event time, and the records that do not fit the type.

A record is valid when it is one JSON object in which every field has its type and none that is required is
missing or null. In a table a record without value is valid too: it deletes the row of its key, whose columns are read from the
text of the record's key. Invalid records never reach a view; ``observe`` counts them beside the query at no extra read.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from functools import cache, reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.access import Log, access
from headwater.graph import Graph, Stream
from headwater.late import ARRIVAL
from headwater.pipeline import enveloped, history, operator, reading, time, wire
from headwater.pipeline.current import DELETED, ID, current
from headwater.pipeline.operator import Table
from headwater.pipeline.skips import Skips
from headwater.pipeline.split import Judge, listened, split_by_spark, split_in_python
from headwater.pipeline.topics import Positions, pattern
from headwater.pipeline.wire import literal
from headwater.schema import Column

__all__ = [
    "BATCH_RECORDS_MAX",
    "INVALID",
    "PLACE",
    "batch",
    "invalid",
    "late",
    "records",
    "stream",
    "table",
    "ticks",
]

INVALID = "invalid"
"""What the observation of a stream's invalid records begins with, and what their topics end in."""
PLACE = "topic STRING, partition INT, offset BIGINT"
"""Where a record stands in the log."""

BATCH_RECORDS_MAX = 1_000_000
"""Records that one micro-batch takes at most, so that a long absence is made up for in steps."""

READ = {
    "startingOffsets": "earliest",
    # What stands in a topic of a transaction that came to nothing was never published, whoever has written it.
    "kafka.isolation.level": "read_committed",
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

TOPIC, PARTITION, OFFSET, KEY, VALUE = "_topic", "_partition", "_offset", "_record", "_value"
WHERE = (TOPIC, PARTITION, OFFSET)
OF_RECORD = {
    TOPIC: "topic",
    PARTITION: "partition",
    OFFSET: "offset",
    KEY: "key",
    VALUE: "value",
    DELETED: "value IS NULL",
    ARRIVAL: "timestamp",
}
"""Names of ours for what belongs to a record: an event may have fields called topic, partition or value."""
PLAIN = {"timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"}
"""How views write times without a zone; they end in a Z all the same."""
TEXTS = {"TIMESTAMP": "try_cast({0} AS TIMESTAMP)"}
"""What is read as text first, and how it is made of that. Spark would take a number for seconds, and one record in milliseconds
would end event time for good."""
CORRUPT = "_corrupt"
VALID = "_valid"


SPARK_DELAY = "106751991 days"
"""Spark's own watermark is moved by the driver (``publish.py``); what Spark works out by itself never gets anywhere, not even from a
record of the year 9999: it is longer than any time that Spark can say."""


def stream(parsed: DataFrame, spec: Stream, *, realtime: bool, judge: Judge | None = None) -> DataFrame:
    """The stream's valid events as a streaming DataFrame with event time; with a judge, without those that come too late.

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
    """The table's rows as a streaming DataFrame in which they come in and go out (``current.py``); with a judge, its times are heard."""
    valid = _valid(parsed, spec)
    if judge is not None and spec.time:
        valid = listened(valid, spec, judge, partition=PARTITION)
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
    """The records of a topic as they come, at most so many in a batch and without those that are skipped, each with whether it is valid."""
    reader = spark.readStream.format("kafka").options(**READ, **_subscription(log, spec, graph))
    if not realtime:
        reader = reader.option("maxOffsetsPerTrigger", batch_records).option(
            "kafka.fetch.max.wait.ms", FETCH_WAIT_MS
        )
    place = [PARTITION, OFFSET] if spec.time and not spec.table else []
    raw = reader.load() if skips is None else skips.applied(reader.load())
    return _parsed(raw, spec, [*_kept(spec), *place])


def _valid(parsed: DataFrame, spec: Stream) -> DataFrame:
    """The valid ones; the others are counted."""
    return parsed.observe(f"{INVALID} {spec.name}", *_counts()).where(VALID)


def _counts() -> list[SparkColumn]:
    valid = F.col(VALID)
    return [F.count(F.when(~valid, 1)).alias("records"), F.count(F.when(valid, 1)).alias("valid")]


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
    starts: Positions | None = None,
    without: DataFrame | None = None,
) -> DataFrame:
    """The same events as an ordinary DataFrame up to given ends, or over all that the log holds now, but for the records at some places.

    With ends, ``starts`` says from where on, where that is not the beginning of the log.

    Of a table: the last row of each key, with a weight of 1.
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
    valid = _parsed(raw, spec, _kept(spec)).where(VALID)
    return _table(valid, spec) if spec.table else _events(valid, spec)


def invalid(spark: SparkSession, log: Log, spec: Stream, starts: Positions, ends: Positions) -> DataFrame:
    """The invalid records between two positions, as topic, partition, offset, value."""
    kept = list(dict.fromkeys([*WHERE, VALUE, *_kept(spec)]))
    found = _parsed(_stretch(spark, log, starts, ends), spec, kept).where(~F.col(VALID))
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
def _reader(settings: tuple[tuple[str, str], ...]) -> str:  # noqa: ARG001  what it is for
    """The group of all reads of stretches with the same settings. It commits nothing.

    Spark keeps the consumers of a group for minutes, and would give each read a group, and so consumers, of its own. It refuses a
    group that comes with other settings.
    """
    return f"headwater-stretches-{uuid.uuid4()}"


def _subscription(log: Log, spec: Stream, graph: Graph) -> dict[str, str]:
    where = {"subscribe": spec.topic} if spec.pattern is None else {"subscribePattern": pattern(spec, graph)}
    return {**access(log).spark(), **where}


def _kept(spec: Stream) -> list[str]:
    """What a stream or a table needs of a record besides its value."""
    if spec.table:
        return [KEY, DELETED, PARTITION, OFFSET, ARRIVAL]
    own = [TOPIC] if spec.pattern is not None else []
    return [*own, ARRIVAL] if spec.time == ARRIVAL else own


def _shown(names: Sequence[str]) -> list[str]:
    return [f"{name} AS {name.removeprefix('_')}" for name in names]


def _events(valid: DataFrame, spec: Stream) -> DataFrame:
    names = [_quoted(column.name) for column in spec.columns]
    return valid.select(*names, *_kept(spec))


def _table(valid: DataFrame, spec: Stream) -> DataFrame:
    """The rows of a table as they come in and go out; each of its changes can be had from the frame as well (``history.py``)."""

    def every() -> DataFrame:
        names = [_quoted(column.name) for column in spec.columns]
        return _timed(valid.select(*names, F.col(DELETED).alias(wire.GONE), OFFSET, ARRIVAL), spec)

    changes = _changes(valid, spec)
    rows = _timed(current(changes), spec)
    operator.tables().append(Table(rows, _timed(changes, spec), () if spec.view else spec.key))
    return history.offer(rows, spec.key, every)


def _timed(rows: DataFrame, spec: Stream) -> DataFrame:
    """The rows of a table that has a time; of a stream Spark knows that it has one."""
    return rows.withWatermark(spec.time, SPARK_DELAY) if spec.time and rows.isStreaming else rows


def _changes(valid: DataFrame, spec: Stream) -> DataFrame:
    """The records of a table as changes: its columns, and which row of which key comes from where."""
    names = [_quoted(column.name) for column in spec.columns]
    key = f"CAST({KEY} AS STRING)" if spec.view else wire.key_expression(valid.schema, spec.key)
    arrival = [ARRIVAL] if spec.time == ARRIVAL else []
    return valid.select(*names, *arrival, F.expr(key).alias(ID), DELETED, PARTITION, OFFSET)


def _parsed(raw: DataFrame, spec: Stream, kept: list[str]) -> DataFrame:
    """The event's columns and whether the record is valid, for every record.

    ``inline`` keeps Spark from parsing once more for each filter behind it.
    """
    fields = spec.columns
    if spec.envelope:
        raw = enveloped.opened(raw, spec)
    own = [f"{OF_RECORD[name]} AS {name}" for name in kept]
    texts = TEXTS | ({"DATE": enveloped.DATE} if spec.envelope else {})
    row = F.expr(_from_json(fields, texts))
    read = reading.column(raw.sparkSession, fields, _timed_row(fields, texts), texts)
    unread = texts
    if read is not None:
        row, unread = read, {kind: made for kind, made in texts.items() if kind not in TEXTS}
    rows = raw.selectExpr("value", *own).select(*kept, F.inline(F.array(row)))
    typed = rows.selectExpr(*kept, *(_typed(field, unread) for field in fields), CORRUPT)
    present = [check for field in fields for check in _present(_quoted(field.name), field)]
    valid = " AND ".join([f"{CORRUPT} IS NULL", *present])
    if spec.table:
        return _keyed(typed, spec, F.expr(valid), texts).drop(CORRUPT)
    names = [_quoted(field.name) for field in fields]
    return typed.selectExpr(*kept, *names, f"{valid} AS {VALID}")


def _from_json(fields: tuple[Column, ...], texts: Mapping[str, str]) -> str:
    """SQL for the record's columns; of text that is no object, none."""
    text = "CAST(value AS STRING)"
    options = {"columnNameOfCorruptRecord": CORRUPT, **PLAIN}
    pairs = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in options.items())
    whole = f"IF(startswith(ltrim({text}), '{{'), {text}, '-')"
    return f"from_json({whole}, {literal(_parse_schema(fields, texts))}, map({pairs}))"


def _timed_row(fields: tuple[Column, ...], texts: Mapping[str, str]) -> str:
    """SQL for the same with times that are made of their texts already."""
    parts = [
        f"{literal(field.name)}, {TEXTS.get(field.kind, '{0}').format(f'row.{_quoted(field.name)}')}"
        for field in fields
    ]
    made = f"named_struct({', '.join([*parts, f'{literal(CORRUPT)}, row.{CORRUPT}'])})"
    return f"transform(array({_from_json(fields, texts)}), row -> {made})[0]"


def _keyed(typed: DataFrame, spec: Stream, valid: SparkColumn, texts: Mapping[str, str]) -> DataFrame:
    """The records of a table; one that deletes a row has the columns of its key, and is valid if these could be read.

    What is read as text is made of it as in the rows: a delete that reads its key otherwise deletes nothing.
    """
    text = f"CAST({KEY} AS STRING)"
    if spec.view:  # its topic has the keys that we wrote ourselves, windows among them
        there = F.expr(f"{text} IS NOT NULL")
        return typed.withColumn(VALID, F.when(F.col(DELETED), there).otherwise(valid))
    kinds = {column.name: column.kind for column in spec.columns}
    if len(spec.key) == 1:
        whole, parts = F.expr(f"{text} IS NOT NULL"), [_lone(text)]
    else:
        array = f"from_json({text}, 'ARRAY<STRING>')"
        whole = F.expr(f"coalesce(size({array}) = {len(spec.key)}, false)")
        parts = [f"get({array}, {n})" for n in range(len(spec.key))]
    made = {"BINARY": "try_to_binary({0}, 'base64')", **texts}
    read = {
        name: F.expr(made.get(kinds[name], f"try_cast({{0}} AS {kinds[name]})").format(part))
        for name, part in zip(spec.key, parts, strict=True)
    }
    fits = (
        F.expr(part).isNull() | value.isNotNull() for part, value in zip(parts, read.values(), strict=True)
    )
    judged = typed.withColumn(
        VALID, F.when(F.col(DELETED), reduce(SparkColumn.__and__, fits, whole)).otherwise(valid)
    )
    keys = {
        name: F.when(F.col(DELETED), value).otherwise(F.col(_quoted(name))) for name, value in read.items()
    }
    return judged.select(*[keys[n].alias(n) if n in keys else _quoted(n) for n in judged.columns])


def _lone(text: str) -> str:
    """SQL for the one value of a key; a text that looks like an array may be one (``headwater.schema.key_text``)."""
    array = f"from_json({text}, 'ARRAY<STRING>')"
    is_array = f"{wire.like_array(text)} AND coalesce(size({array}) = 1, false)"
    return f"if({is_array}, get({array}, 0), {text})"


def _parse_schema(fields: tuple[Column, ...], texts: Mapping[str, str]) -> str:
    kinds = [f"{_quoted(field.name)} {'STRING' if field.kind in texts else field.kind}" for field in fields]
    return ", ".join([*kinds, f"{CORRUPT} STRING"])


def _typed(field: Column, texts: Mapping[str, str]) -> str:
    column = name = _quoted(field.name)
    if field.kind in texts:
        column = texts[field.kind].format(column)
    if field.default is not None:
        default = literal(f'{{"v":{field.default}}}')
        column = f"coalesce({column}, from_json({default}, {literal(f'v {field.kind}')}).v)"
    return f"{column} AS {name}"


def _present(column: str, field: Column) -> list[str]:
    """Conditions that a required field, and the required fields inside it, are there."""
    here = [f"{column} IS NOT NULL"] if field.required else []
    inner = [check for part in field.nested for check in _present(f"{column}.{_quoted(part.name)}", part)]
    return [*here, *(inner if field.required else [f"({column} IS NULL OR {check})" for check in inner])]


def _quoted(name: str) -> str:
    return f"`{name}`"
