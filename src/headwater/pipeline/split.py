"""Split: which rows of an input are late, found where the rows are, and what was heard in them.

Spark's own code does it where a stream's few partitions are known beforehand. It is done in Python, by an Arrow function that costs as
much as a window, for streams of a pattern or of many partitions, and where stragglers are waited for, which have names.

The bounds are other ones in each batch, while the plan and what Spark has compiled from it stay. So the plan holds them as objects of a
class of ours (``jvm/TimeBound.java``), which are handed to the tasks, and the driver sets them before the batch runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.decoders import from_json
from headwater.errors import MachineError
from headwater.graph import Stream
from headwater.pipeline import catalyst
from headwater.pipeline.time import FUTURE_US, NEVER, PLAN
from headwater.pipeline.topics import Positions

__all__ = [
    "BOUND",
    "HEARD",
    "Judge",
    "Values",
    "heard_of",
    "listened",
    "named",
    "noted",
    "split_by_spark",
    "split_in_python",
]

HEARD = "time"
"""What the observation of a stream's times begins with."""
PLACES_MAX = 16
"""Streams of at most so many partitions are split by Spark's own code, which looks at each of them for each row."""
UNLIMITED_US = 1 << 62
"""A horizon that reaches back before everything."""
COUNTS = ("late", "kept")
"""What is observed of a stream besides its times: how many rows came too late, and how many did not."""
RECORDS = ("records", "valid")
"""What is observed of all its records: how many were invalid, and how many were not."""
BOUND = "bound"
"""What is observed in a real-time query: by what rows were late."""
SPLIT = "late:boolean,note:string"
NAMED_MAX = 20
"""So many stragglers are named in a stretch of rows; the others are counted."""

Values = Mapping[str, Any]
"""What was observed of a stream in a batch: counts, times and notes by their names."""


class Judge:
    """Decides in the plan of a view which rows are late, batch by batch. ``partitions`` says how many each topic has."""

    def __init__(
        self, spark: SparkSession, horizon_us: int, partitions: Mapping[str, int], *, realtime: bool = False
    ) -> None:
        self.horizon_us = horizon_us
        self.realtime = realtime
        """Whether the query runs on while bounds are set; it takes no Python, so Spark's own code tells all partitions apart."""
        self._partitions = partitions
        self._places: dict[str, int] = {}
        self._late, self._future = _Bound(spark, "late"), _Bound(spark, "future")

    def places(self, stream: Stream) -> int:
        """How many partitions Spark's own code can tell apart in a stream; 0 when it cannot do it."""
        count = self._partitions.get(stream.topic, 0)
        named = self.horizon_us and not stream.table and not self.realtime
        if stream.pattern is not None or named or (count > PLACES_MAX and not self.realtime):
            return 0
        self._places[stream.topic] = count
        return count

    def late(self, time_us: Column) -> Column:
        return time_us.isNotNull() & self._late.follows(time_us)

    def bound(self, time_us: Column) -> Column:
        """What ``late`` goes by."""
        return self._late.reached(time_us)

    def sound(self, time_us: Column) -> Column:
        """Whether a time is not that of a clock which is far ahead."""
        return time_us.isNotNull() & self._future.follows(time_us)

    def tell(self, watermark: int, now_us: int) -> None:
        """Sets the bounds of the batch that runs next."""
        self._late.set(watermark - self.horizon_us)
        self._future.set(now_us + FUTURE_US + 1)

    def tell_from(self, batch: int, bounds: tuple[int, int], now_us: int) -> None:
        """Sets the bounds of a query that runs on: by what rows are late before a batch, and from it on."""
        self._late.set_from(*bounds, batch)
        self._future.set(now_us + FUTURE_US + 1)

    def check(self, ends: Positions) -> None:
        """Raises MachineError when a topic has got more partitions than the plan looks at."""
        for topic, planned in self._places.items():
            found = max(ends.get(topic, {}), default=-1) + 1
            if found > planned:
                raise MachineError(
                    f"topic {topic} has got more partitions while the view ran",
                    got=str(found),
                    expected=str(planned),
                    hint="start it again: nothing of the batch was published",
                )


class _Bound:
    """A time in a plan that can be set anew for each batch, before its tasks are sent out."""

    def __init__(self, spark: SparkSession, about: str) -> None:
        self._spark = spark
        self._time = catalyst.of(spark, "headwater.TimeBound")(about)
        self.set(NEVER)

    def set(self, time_us: int) -> None:
        self._time.set(time_us)

    def set_from(self, time_us: int, later_us: int, batch: int) -> None:
        self._time.setFrom(time_us, later_us, batch)

    def follows(self, time_us: Column) -> Column:
        """Whether a time, which is not null, is before it."""
        return self._asked("follows", "BOOLEAN", time_us)

    def reached(self, time_us: Column) -> Column:
        """What it is, for any time that is not null."""
        return self._asked("reached", "BIGINT", time_us)

    def _asked(self, method: str, kind: str, time_us: Column) -> Column:
        known = catalyst.of(self._spark, "org.apache.spark.sql.types.DataType").fromDDL(kind)
        return catalyst.invoked(self._spark, self._time, method, known, time_us)


def listened(rows: DataFrame, stream: Stream, judge: Judge, *, partition: str) -> DataFrame:
    """Observes what was heard and leaves every row: those of a table are never late."""
    places = judge.places(stream)
    name, never = f"{HEARD} {stream.name}", _split_counts(F.lit(False))
    if places:
        return rows.observe(name, *never, *_heard(stream, judge, F.col(partition)))
    split = F.arrow_udf(_split(stream.name, UNLIMITED_US), f"struct<{SPLIT}>")
    judged = rows.withColumn("_split", split(F.col(partition), F.col(f"`{stream.time}`")))
    return judged.observe(name, *never, F.collect_set("_split.note").alias("notes")).drop("_split")


def noted(stream: str, row: Values) -> dict[str, int]:
    """The greatest time of each place in a batch, from what was observed."""
    if "notes" in row:
        return _greatest(row["notes"])
    times = {name: time_us for name, time_us in row.items() if name not in (*COUNTS, *RECORDS)}
    return {f"{stream}/{name}": time_us for name, time_us in times.items() if time_us is not None}


def named(row: Values) -> tuple[int, list[str]] | None:
    """How many stragglers were observed, and the places of those that have names; None when there were none."""
    if "named" not in row or not row["stragglers"]:
        return None
    return row["stragglers"], sorted(place for place in row["named"] if place)


def heard_of(row: Values) -> tuple[int, int] | None:
    """How many rows were late and how many were not, from what was observed; None when nobody has listened."""
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
    """Takes the late rows and the invalid ones out, and observes what was heard together with the counts of records.

    These are under their name, beside what says that a record is valid. Spark compiles no query across an observation, nor across
    a declaration of event time: so there is one of each, with nothing between them.
    """
    name, valid, counts = records
    time_us = F.unix_micros(f"`{stream.time}`")
    late = judge.late(time_us)
    split = F.count(F.when(valid & late, 1)).alias("late"), F.count(F.when(valid & ~late, 1)).alias("kept")
    heard = _heard(stream, judge, F.col(partition), valid)
    bound = [F.max(judge.bound(time_us)).alias(BOUND)] if judge.realtime else []
    return parsed.observe(name, *counts, *split, *heard, *bound).where(valid & ~late)


def _heard(stream: Stream, judge: Judge, partition: Column, valid: Column | None = None) -> list[Column]:
    """The greatest time of each partition."""
    time_us = F.unix_micros(f"`{stream.time}`")
    sound = judge.sound(time_us) if valid is None else valid & judge.sound(time_us)
    return [
        F.max(F.when((partition == place) & sound, time_us)).alias(str(place))
        for place in range(judge.places(stream))
    ]


# ---- in Python -----------------------------------------------------------------------------------------


class _Moment(msgspec.Struct, frozen=True):
    """What a split needs of a batch's plan."""

    watermark: int
    now_us: int


def split_in_python(
    rows: DataFrame, stream: Stream, judge: Judge, *, partition: str, topic: str, offset: str
) -> DataFrame:
    """Takes the late rows out and observes ``late``, ``kept``, ``notes`` and, with a horizon, ``stragglers`` and ``named``."""
    time, horizon_us = f"`{stream.time}`", judge.horizon_us
    place = F.col(partition) if stream.pattern is None else F.concat_ws("/", topic, partition)
    notes = F.collect_set("_split.note").alias("notes")
    counts = _split_counts(F.col("_split.late"))
    if horizon_us:
        split = F.arrow_udf(_split(stream.name, horizon_us), f"struct<{SPLIT},straggler:string>")
        judged = rows.withColumn("_split", split(place, F.col(time), F.col(offset)))
        named = F.collect_set("_split.straggler").alias("named")
        seen = [*counts, notes, F.count("_split.straggler").alias("stragglers"), named]
    else:
        split = F.arrow_udf(_split(stream.name, horizon_us), f"struct<{SPLIT}>")
        judged = rows.withColumn("_split", split(place, F.col(time)))
        seen = [*counts, notes]
    return judged.observe(f"{HEARD} {stream.name}", *seen).where("NOT _split.late").drop("_split")


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
    """For each row whether it is late, and at the last one the greatest time of each place; with offsets, which rows are stragglers."""
    late = pc.fill_null(pc.less(time, moment.watermark - horizon_us), False)
    sound = pc.less_equal(time, moment.now_us + FUTURE_US)
    times = pa.table({"place": place, "time": pc.if_else(sound, time, None)}).group_by("place")
    greatest = times.aggregate([("time", "max")]).to_pylist()
    note = {f"{stream}/{row['place']}": row["time_max"] for row in greatest if row["time_max"] is not None}
    text = msgspec.json.encode(note, order="sorted").decode()
    notes = pa.array([*[None] * (len(time) - 1), text][: len(time)], pa.string())
    if offset is None:
        return pa.StructArray.from_arrays([late, notes], ["late", "note"])
    behind = pc.fill_null(pc.and_not(pc.less(time, moment.watermark), late), False)
    return pa.StructArray.from_arrays(
        [late, notes, _named(place, offset, behind)], ["late", "note", "straggler"]
    )


def _named(place: pa.Array, offset: pa.Array, behind: pa.Array) -> pa.Array:
    """The first few stragglers by where they stand, PLACE@OFFSET, the others as empty texts; null for all else."""
    names: list[str | None] = [None] * len(behind)
    for number, at in enumerate(pc.indices_nonzero(behind).to_pylist()):
        names[at] = f"{place[at]}@{offset[at]}" if number < NAMED_MAX else ""
    return pa.array(names, pa.string())


def _greatest(notes: Iterable[str]) -> dict[str, int]:
    """The greatest time of each place, from the notes of a batch's tasks."""
    greatest: dict[str, int] = {}
    for text in notes:
        for place, time_us in from_json(text, dict[str, int]).items():
            greatest[place] = max(time_us, greatest.get(place, time_us))
    return greatest
