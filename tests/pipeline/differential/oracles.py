"""What is expected of views: Spark's own SQL over plain rows, or plain Python where SQL has no word for it. Never our operators."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

import headwater as hw
from headwater.declare.schema import ddl, wire
from pipeline.differential.programs import Program
from pipeline.differential.values import STREAMS, TABLES

__all__ = ["Batch", "Record", "expected", "plain_spark", "rows_in_time", "tables"]

EVER = -(1 << 60)
MINUTE_US = 60_000_000
CHEAP = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}


class Record(NamedTuple):
    """A change or an event, and where the log has it."""

    topic: str
    key: tuple[Any, ...]
    row: hw.Event | None
    partition: int = 0
    offset: int = 0


class Batch(NamedTuple):
    """What a batch of a view has taken, and the watermark by which it judged."""

    watermark: int | None
    records: list[Record]

    def late(self, record: Record, horizon_us: int) -> bool:
        """Whether a record of it came too late."""
        if self.watermark is None or record.topic not in STREAMS or record.row is None:
            return False
        at = micros(getattr(record.row, STREAMS[record.topic][2]))
        return at is not None and at < self.watermark - horizon_us


def micros(at: datetime | None) -> int | None:
    return (
        None if at is None else round((at - datetime.fromtimestamp(0, at.tzinfo)) / timedelta(microseconds=1))
    )


def rows_in_time(program: Program, batches: Sequence[Batch]) -> dict[str, list[hw.Event]]:
    """The events of each stream that were not late."""
    found: dict[str, list[hw.Event]] = {name: [] for name in STREAMS}
    for batch in batches:
        for record in batch.records:
            if record.topic in found and record.row and not batch.late(record, program.correct * MINUTE_US):
                found[record.topic].append(record.row)
    return found


@contextmanager
def plain_spark(spark: SparkSession) -> Iterator[None]:
    """Spark for a few rows."""
    known = {name: spark.conf.get(name, None) for name in CHEAP}
    for name, value in CHEAP.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in known.items():
            if before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)
        for name in [*TABLES, *STREAMS]:
            spark.catalog.dropTempView(name)


def tables(spark: SparkSession, rows: dict[str, list[hw.Event]]) -> None:
    """Shows rows to Spark's SQL, each table as one partition, so that nothing is shuffled."""
    kinds = {name: event for name, (event, *_) in [*TABLES.items(), *STREAMS.items()]}
    for name, held in rows.items():
        table = pa.table({"json": pa.array([json.dumps(wire(each)) for each in held], pa.string())})
        parsed = f"from_json(json, '{ddl(kinds[name])}', map('mode', 'FAILFAST')) AS row"
        frame = spark.createDataFrame(table).selectExpr(parsed).select("row.*")
        frame.coalesce(1).createOrReplaceTempView(name)


def expected(spark: SparkSession, program: Program, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """The rows that a view must have after these batches. For SQL its tables are there already, and the streams are made here."""
    if program.oracle != "sql":
        return IN_PYTHON[program.oracle](program, batches)
    if program.correct or any(each.watermark is not None for each in batches):
        tables(spark, rows_in_time(program, batches))
    return [_plain(each.asDict(recursive=True)) for each in spark.sql(program.whole).collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytearray):
        value = bytes(value)
    return wire(value)


class Answer:
    """An event on its way out: what it has met, and whether it is out."""

    def __init__(self, event: Any) -> None:
        self.event = event
        self.at = micros(event.at)
        self.out = event.item is None or self.at is None
        self.lone = self.out
        self.met: Any = None


class AsOf:
    """Clicks beside the rates that held at their time, batch by batch."""

    def __init__(self, program: Program) -> None:
        options = dict(program.options)
        self.missing, self.hold = options["missing"], options["hold"] * MINUTE_US
        self.horizon = program.correct * MINUTE_US
        self.lag = max(self.horizon, options["correct"] * MINUTE_US, self.hold)
        self.rates: dict[tuple[Any, ...], Any] = {}
        self.answers: list[Answer] = []

    def take(self, batch: Batch) -> None:
        """All changes of rates, all clicks that are in time, and what that does to clicks that are known."""
        for record in batch.records:
            if record.topic == "rates":
                self.rates.pop(record.key, None)
                if record.row is not None:
                    self.rates[record.key] = record.row
            elif record.topic == "clicks" and not batch.late(record, self.horizon):
                self.answers.append(Answer(record.row))
        now = EVER if batch.watermark is None else batch.watermark
        for each in self.answers:
            if not each.lone:
                self._answer(each, now)

    def _answer(self, each: Answer, now: int) -> None:
        waits = each.at + self.hold >= now
        if self.missing == "final":
            if not each.out and not waits:
                each.met, each.out = self._met(each.event), True
        elif not each.out:
            each.met = self._met(each.event)
            each.out = not (self.missing == "wait" and each.met is None and waits)
        elif each.at >= now - self.lag:
            each.met = self._met(each.event)

    def _met(self, event: Any) -> Any:
        held = [each for each in self.rates.values() if each.land == event.item and each.since <= event.at]
        return max(held, key=lambda each: each.since, default=None)

    def shown(self) -> list[Answer]:
        """Those that are out."""
        return [
            each for each in self.answers if each.out and not (self.missing == "drop" and each.met is None)
        ]


def _as_of(program: Program, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    work = AsOf(program)
    for batch in batches:
        work.take(batch)
    if dict(program.options).get("grouped"):
        return _by_percent(work.shown())
    return [
        {
            "id": each.event.id,
            "item": each.event.item,
            "n": each.event.n,
            "percent": each.met.percent if each.met else None,
            "since": wire(each.met.since) if each.met else None,
        }
        for each in work.shown()
    ]


def _by_percent(shown: list[Answer]) -> list[dict[str, Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for each in shown:
        groups[each.met.percent if each.met else None].append(each.event.n)
    known = {percent: [n for n in found if n is not None] for percent, found in groups.items()}
    return [
        {"percent": percent, "s0": len(found), "s1": sum(known[percent]) if known[percent] else None}
        for percent, found in groups.items()
    ]


def _unmatched(program: Program, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """What nothing has met, and nothing can meet any more by the last watermark."""
    options = dict(program.options)
    before, after = timedelta(minutes=options["before"]), timedelta(minutes=options["after"])
    seen = rows_in_time(program, batches)
    passed = max((each.watermark for each in batches if each.watermark is not None), default=EVER)

    def alone(click: Any) -> bool:
        if click.user is None or click.at is None:
            return True
        near = [hit for hit in seen["hits"] if hit.who == click.user and hit.seen_at is not None]
        if any(click.at - before <= hit.seen_at <= click.at + after for hit in near):
            return False
        return bool(micros(click.at + after) < passed - program.correct * MINUTE_US)

    return [{"id": each.id, "user": each.user, "at": wire(each.at)} for each in seen["clicks"] if alone(each)]


def _distinct(program: Program, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    options = dict(program.options)
    within, gone = timedelta(minutes=options["within"]), list[tuple[Any, datetime]]()
    for batch in batches:
        rows = rows_in_time(program, [batch])["clicks"]
        for each in sorted((row for row in rows if row.at is not None), key=lambda row: row.at):
            key = getattr(each, options["by"])
            if not any(known == key and abs(at - each.at) <= within for known, at in gone):
                gone.append((key, each.at))
    return [{options["by"]: key, "at": wire(at)} for key, at in gone]


IN_PYTHON: dict[str, Callable[[Program, Sequence[Batch]], list[dict[str, Any]]]] = {
    "as_of": _as_of,
    "unmatched": _unmatched,
    "distinct": _distinct,
}
