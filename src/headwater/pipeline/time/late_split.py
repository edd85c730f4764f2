"""Late split: takes the late rows of an input out, and observes the event times and counts of the rest.

Spark's own code does it if a stream has few partitions that are known beforehand. An Arrow function in
Python, which costs as much as a window, does it for streams of a pattern or of many partitions, and for views
that wait for stragglers, since these are reported by their place.

The bounds change with each batch, while the plan and the code that Spark has compiled from it stay. So the
plan has them as objects of a class of ours (``jvm/TimeBound.java``), which go to the tasks, and the driver
sets them before the batch runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.spec import Stream
from headwater.decoders import from_json
from headwater.errors import MachineError
from headwater.pipeline.spark import catalyst
from headwater.pipeline.time.watermark import FUTURE_US, NEVER, PLAN
from headwater.pipeline.topics import Positions

__all__ = [
    "BOUND",
    "HEARD",
    "Judge",
    "Values",
    "counts_in",
    "observe_times",
    "split_by_spark",
    "split_in_python",
    "stragglers_in",
    "times_in",
]

HEARD = "time"
"""The prefix of the names of observations of event times."""
PLACES_MAX = 16
"""Spark's own code splits streams of at most this many partitions: it compares each row with each of them."""
UNLIMITED_US = 1 << 62
"""A horizon for which no row is late."""
COUNTS = ("late", "kept")
"""Counts that are observed of a stream: its late rows, and the others."""
RECORDS = ("records", "valid")
"""Counts that are observed of its records: the invalid ones, and the valid ones."""
BOUND = "bound"
"""The column of a real-time query's observation with the bound by which rows were late."""
SPLIT = "late:boolean,note:string"
NAMED_MAX = 20
"""Stragglers of one Arrow batch that are reported by their place; the others are only counted."""

Values = Mapping[str, Any]
"""The observations of a stream in a batch: counts, times and notes by their names."""


class Judge:
    """Decides in the plan of a view which rows are late, batch by batch."""

    def __init__(
        self, spark: SparkSession, horizon_us: int, partitions: Mapping[str, int], *, realtime: bool = False
    ) -> None:
        """``partitions``: how many each topic has."""
        self.horizon_us = horizon_us
        self.realtime = realtime
        """Whether bounds are set while the query runs.

        Such a query runs no Python, so Spark's code splits all of it.
        """
        self._partitions = partitions
        self._places: dict[str, int] = {}
        self._late, self._future = _Bound(spark, "late"), _Bound(spark, "future")

    def places(self, stream: Stream) -> int:
        """The number of partitions if Spark's own code splits the stream, else 0."""
        count = self._partitions.get(stream.topic, 0)
        reports_stragglers = self.horizon_us and not stream.table and not self.realtime
        too_many = count > PLACES_MAX and not self.realtime
        if stream.pattern is not None or reports_stragglers or too_many:
            return 0
        self._places[stream.topic] = count
        return count

    def late(self, time_us: Column) -> Column:
        return time_us.isNotNull() & self._late.follows(time_us)

    def bound(self, time_us: Column) -> Column:
        """The bound that ``late`` uses."""
        return self._late.reached(time_us)

    def sound(self, time_us: Column) -> Column:
        """Whether a time is not that of a clock that is far ahead."""
        return time_us.isNotNull() & self._future.follows(time_us)

    def set_bounds(self, watermark: int, now_us: int) -> None:
        """Sets the bounds of the next batch."""
        self._late.set(watermark - self.horizon_us)
        self._future.set(now_us + FUTURE_US + 1)

    def set_bounds_from(self, batch: int, bounds: tuple[int, int], now_us: int) -> None:
        """Sets the bounds of a running query: one for the batches before ``batch``, and one from it on."""
        self._late.set_from(*bounds, batch)
        self._future.set(now_us + FUTURE_US + 1)

    def check(self, ends: Positions) -> None:
        """Raises MachineError if a topic has more partitions than the plan reads."""
        for topic, planned in self._places.items():
            count = max(ends.get(topic, {}), default=-1) + 1
            if count > planned:
                raise MachineError(
                    f"topic {topic} has got more partitions while the view ran",
                    got=str(count),
                    expected=str(planned),
                    hint="start it again: nothing of the batch was published",
                )


class _Bound:
    """A time in a plan that can be set for each batch, before its tasks are sent out."""

    def __init__(self, spark: SparkSession, about: str) -> None:
        self._spark = spark
        self._time = catalyst.of(spark, "headwater.TimeBound")(about)
        self.set(NEVER)

    def set(self, time_us: int) -> None:
        self._time.set(time_us)

    def set_from(self, time_us: int, later_us: int, batch: int) -> None:
        self._time.setFrom(time_us, later_us, batch)

    def follows(self, time_us: Column) -> Column:
        """Whether it is after a time, which is not null."""
        return self._call("follows", "BOOLEAN", time_us)

    def reached(self, time_us: Column) -> Column:
        """Its value, for any time that is not null."""
        return self._call("reached", "BIGINT", time_us)

    def _call(self, method: str, kind: str, time_us: Column) -> Column:
        data_type = catalyst.of(self._spark, "org.apache.spark.sql.types.DataType").fromDDL(kind)
        return catalyst.invoked(self._spark, self._time, method, data_type, time_us)


def observe_times(rows: DataFrame, stream: Stream, judge: Judge, *, partition: str) -> DataFrame:
    """Observes event times and keeps every row: rows of a table are never late."""
    places = judge.places(stream)
    name, never = f"{HEARD} {stream.name}", _split_counts(F.lit(False))
    if places:
        return rows.observe(name, *never, *_greatest_times(stream, judge, F.col(partition)))
    split = F.arrow_udf(_split(stream.name, UNLIMITED_US), f"struct<{SPLIT}>")
    judged = rows.withColumn("_split", split(F.col(partition), F.col(f"`{stream.time}`")))
    return judged.observe(name, *never, F.collect_set("_split.note").alias("notes")).drop("_split")


def times_in(stream: str, row: Values) -> dict[str, int]:
    """The greatest time of each place in a batch, from its observation."""
    if "notes" in row:
        return _greatest(row["notes"])
    times = {name: time_us for name, time_us in row.items() if name not in (*COUNTS, *RECORDS)}
    return {f"{stream}/{name}": time_us for name, time_us in times.items() if time_us is not None}


def stragglers_in(row: Values) -> tuple[int, list[str]] | None:
    """The number of stragglers in an observation, and the places of the first ones.

    None without stragglers.
    """
    if "named" not in row or not row["stragglers"]:
        return None
    return row["stragglers"], sorted(place for place in row["named"] if place)


def counts_in(row: Values) -> tuple[int, int] | None:
    """How many rows were late and how many were not, from an observation; None if it has no event times."""
    return (row["late"], row["kept"]) if "late" in row else None


def _split_counts(late: Column) -> tuple[Column, Column]:
    return F.count_if(late).alias("late"), F.count_if(~late).alias("kept")


# ---- by Spark's own code -------------------------------------------------------------------------------


def split_by_spark(
    parsed: DataFrame,
    stream: Stream,
    judge: Judge,
    *,
    partition: str,
    records: tuple[str, Column, Sequence[Column]],
) -> DataFrame:
    """Takes the late and the invalid rows out, and observes event times together with the counts of records.

    ``records``: the name of the observation, the condition of a valid record, and the counts. Spark compiles
    no query across an observation, nor across a declaration of event time: so there is one of each, with
    nothing between them.
    """
    name, valid, counts = records
    time_us = F.unix_micros(f"`{stream.time}`")
    late = judge.late(time_us)
    split = F.count(F.when(valid & late, 1)).alias("late"), F.count(F.when(valid & ~late, 1)).alias("kept")
    times = _greatest_times(stream, judge, F.col(partition), valid)
    bound = [F.max(judge.bound(time_us)).alias(BOUND)] if judge.realtime else []
    return parsed.observe(name, *counts, *split, *times, *bound).where(valid & ~late)


def _greatest_times(
    stream: Stream, judge: Judge, partition: Column, valid: Column | None = None
) -> list[Column]:
    """An aggregate for each partition: its greatest time."""
    time_us = F.unix_micros(f"`{stream.time}`")
    sound = judge.sound(time_us) if valid is None else valid & judge.sound(time_us)
    return [
        F.max(F.when((partition == place) & sound, time_us)).alias(str(place))
        for place in range(judge.places(stream))
    ]


# ---- in Python -----------------------------------------------------------------------------------------


class _Moment(msgspec.Struct, frozen=True):
    """The part of a batch's plan that a split needs."""

    watermark: int
    now_us: int


def split_in_python(
    rows: DataFrame, stream: Stream, judge: Judge, *, partition: str, topic: str, offset: str
) -> DataFrame:
    """Takes the late rows out.

    Observes ``late``, ``kept``, ``notes`` and, with a horizon, ``stragglers`` and ``named``.
    """
    time, horizon_us = f"`{stream.time}`", judge.horizon_us
    place = F.col(partition) if stream.pattern is None else F.concat_ws("/", topic, partition)
    notes = F.collect_set("_split.note").alias("notes")
    counts = _split_counts(F.col("_split.late"))
    if horizon_us:
        split = F.arrow_udf(_split(stream.name, horizon_us), f"struct<{SPLIT},straggler:string>")
        judged = rows.withColumn("_split", split(place, F.col(time), F.col(offset)))
        named = F.collect_set("_split.straggler").alias("named")
        observed = [*counts, notes, F.count("_split.straggler").alias("stragglers"), named]
    else:
        split = F.arrow_udf(_split(stream.name, horizon_us), f"struct<{SPLIT}>")
        judged = rows.withColumn("_split", split(place, F.col(time)))
        observed = [*counts, notes]
    return judged.observe(f"{HEARD} {stream.name}", *observed).where("NOT _split.late").drop("_split")


def _split(stream: str, horizon_us: int) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    def judge(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        moment = from_json(TaskContext.get().getLocalProperty(PLAN) or "{}", _Moment)
        for place, time, *offset in batches:
            times = time.cast(pa.int64())
            yield _judged(stream, place, times, moment, horizon_us, offset=offset[0] if offset else None)

    judge.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return judge


def _judged(
    stream: str,
    place: pa.Array,
    time: pa.Array,
    moment: _Moment,
    horizon_us: int,
    *,
    offset: pa.Array | None = None,
) -> pa.Array:
    """For each row whether it is late.

    At the last one the greatest time of each place; with offsets, the stragglers.
    """
    late = pc.fill_null(pc.less(time, moment.watermark - horizon_us), False)
    sound = pc.less_equal(time, moment.now_us + FUTURE_US)
    times = pa.table({"place": place, "time": pc.if_else(sound, time, None)}).group_by("place")
    greatest = times.aggregate([("time", "max")]).to_pylist()
    note = {f"{stream}/{row['place']}": row["time_max"] for row in greatest if row["time_max"] is not None}
    text = msgspec.json.encode(note, order="sorted").decode()
    notes = pa.array([*[None] * (len(time) - 1), text][: len(time)], pa.string())
    if offset is None:
        return pa.StructArray.from_arrays([late, notes], ["late", "note"])
    straggles = pc.fill_null(pc.and_not(pc.less(time, moment.watermark), late), False)
    return pa.StructArray.from_arrays(
        [late, notes, _straggler_places(place, offset, straggles)], ["late", "note", "straggler"]
    )


def _straggler_places(place: pa.Array, offset: pa.Array, straggles: pa.Array) -> pa.Array:
    """The places of the first few stragglers, PLACE@OFFSET.

    Empty texts for the others; null for all other rows.
    """
    names: list[str | None] = [None] * len(straggles)
    for number, at in enumerate(pc.indices_nonzero(straggles).to_pylist()):
        names[at] = f"{place[at]}@{offset[at]}" if number < NAMED_MAX else ""
    return pa.array(names, pa.string())


def _greatest(notes: Iterable[str]) -> dict[str, int]:
    """The greatest time of each place, from the notes of a batch's tasks."""
    greatest: dict[str, int] = {}
    for text in notes:
        for place, time_us in from_json(text, dict[str, int]).items():
            greatest[place] = max(time_us, greatest.get(place, time_us))
    return greatest
