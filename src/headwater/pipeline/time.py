"""Time: the watermark of a view, decided by the driver for each batch and the same for all of its tasks.

The watermark says up to when a view's inputs are complete. It is the smallest, over the partitions of all inputs, of the greatest event
time less the stream's ``delay``. A partition that has said nothing for ``idle`` holds nobody up. When all are silent, time
goes on by the clock from where they stopped, so that a session closes with no further input; while the
pipeline is down the clock stands. The watermark never goes back.

    batch b    is judged by a watermark made from what batches up to b-1 have heard; b's result holds it, so that b can be repeated
    split      a task asks for each row of an input whether it is late: only its time goes to Python and back
    tick       a record in ``headwater.ticks`` that makes the shards of a view look at their time-outs when there is no input
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.late import duration_us
from headwater.result import Heard

__all__ = [
    "HEARD",
    "NEVER",
    "PLAN",
    "TICKS",
    "TICK_PARTITIONS",
    "Input",
    "Watermark",
    "due_ms",
    "heard",
    "late_split",
    "listened",
    "noted",
    "passed",
    "resumed",
    "tick_partition",
    "watermark",
]

NEVER = -(1 << 62)
"""The watermark before anything was heard."""
UNLIMITED_US = 1 << 62
"""A horizon that reaches back before everything."""
FUTURE_US = duration_us("1 hour")
"""A time so far ahead of the clock is a wrong clock's: the row counts, its time moves nothing."""
HEARD = "time"
"""What the observation of a stream's times begins with."""
PLAN = "headwater.plan"
"""The local property that tells the tasks of a batch its time and where their state is."""
TICKS = "headwater.ticks"
TICK_PARTITIONS = 64
SPLIT = "late:boolean,note:string"
NAMED_MAX = 20
"""So many stragglers are named in a stretch of rows; the others are counted."""


class Input(NamedTuple):
    """What a watermark has to know of a stream."""

    delay_us: int
    idle_us: int


Watermark = Callable[[Mapping[str, Input], Mapping[str, Heard], int, int], int]
"""How a watermark is decided: ``watermark`` below, or a test's own."""


def watermark(inputs: Mapping[str, Input], known: Mapping[str, Heard], now_ms: int, before: int) -> int:
    """The watermark now, in microseconds. ``known`` is by ``stream/place``; ``before`` is the last one."""
    active: list[tuple[int, int]] = []
    silent: list[tuple[int, int]] = []
    for place, entry in known.items():
        stream = inputs.get(place.partition("/")[0])
        if stream is None:
            continue
        quiet_us = now_ms * 1000 - entry.at_ms * 1000 - stream.idle_us
        (active if quiet_us <= 0 else silent).append((entry.time_us - stream.delay_us, quiet_us))
    if active:
        return max(before, min(time for time, _ in active))
    if silent:
        return max(before, max(time for time, _ in silent) + min(quiet for _, quiet in silent))
    return before


def due_ms(
    inputs: Mapping[str, Input], known: Mapping[str, Heard], reached: int, open_us: int | None
) -> int | None:
    """When the watermark will pass a time-out if nothing more is heard; 0 when it has, None when nothing is open."""
    if open_us is None:
        return None
    times = [
        (entry.at_ms * 1000 + stream.idle_us, entry.time_us - stream.delay_us)
        for place, entry in known.items()
        if (stream := inputs.get(place.partition("/")[0]))
    ]
    if open_us <= reached or not times:
        return 0
    missing_us = max(0, open_us - max(time for _, time in times))
    return (max(quiet for quiet, _ in times) + missing_us) // 1000 + 1


def passed(reached: int | None, opens: Iterable[int | None]) -> int:
    """Up to when an operator has handed on all that it got, when the watermark has reached so far and these time-outs are open in its shards."""
    held = [open_us - 1 for open_us in opens if open_us is not None]
    return min([NEVER if reached is None else reached, *held])


def heard(notes: Mapping[str, int], before: Mapping[str, Heard], now_ms: int) -> dict[str, Heard]:
    """What is known of all places after a batch has noted the greatest times it met."""
    after = dict(before)
    for place, time_us in notes.items():
        known = after.get(place)
        after[place] = Heard(max(time_us, known.time_us) if known else time_us, now_ms)
    return after


def resumed(last: Mapping[str, Heard], at_ms: int, now_ms: int) -> dict[str, Heard]:
    """What is known after a pause of the pipeline since ``at_ms``, in which the clock stood for all of them."""
    return {place: Heard(entry.time_us, entry.at_ms + now_ms - at_ms) for place, entry in last.items()}


# ---- in the plan ---------------------------------------------------------------------------------------


class _Moment(msgspec.Struct, frozen=True):
    """What a split needs of a batch's plan."""

    watermark: int
    now_us: int


def late_split(
    rows: DataFrame, stream: str, time: str, *, place: Column, offset: Column, horizon_us: int
) -> DataFrame:
    """Takes the late rows out and observes what was heard: ``time STREAM`` with ``notes``, ``late`` and, with a horizon, ``stragglers``."""
    notes = F.collect_set("_split.note").alias("notes")
    late = F.count_if("_split.late").alias("late")
    if horizon_us:
        split = F.arrow_udf(_split(stream, horizon_us), f"struct<{SPLIT},straggler:string>")
        judged = rows.withColumn("_split", split(place, F.col(time), offset))
        named = F.collect_set("_split.straggler").alias("named")
        seen = [notes, late, F.count("_split.straggler").alias("stragglers"), named]
    else:
        split = F.arrow_udf(_split(stream, horizon_us), f"struct<{SPLIT}>")
        judged = rows.withColumn("_split", split(place, F.col(time)))
        seen = [notes, late]
    return judged.observe(f"{HEARD} {stream}", *seen).where("NOT _split.late").drop("_split")


def listened(rows: DataFrame, stream: str, time: str, *, place: Column) -> DataFrame:
    """Observes what was heard and leaves every row: those of a table are never late."""
    split = F.arrow_udf(_split(stream, UNLIMITED_US), f"struct<{SPLIT}>")
    judged = rows.withColumn("_split", split(place, F.col(time)))
    seen = [F.collect_set("_split.note").alias("notes"), F.count_if("_split.late").alias("late")]
    return judged.observe(f"{HEARD} {stream}", *seen).drop("_split")


def _split(stream: str, horizon_us: int) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    def judge(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        moment = msgspec.json.decode(TaskContext.get().getLocalProperty(PLAN) or "{}", type=_Moment)
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


def tick_partition(view: str) -> int:
    """The partition of ``headwater.ticks`` that a view listens to."""
    return crc32(view.encode()) % TICK_PARTITIONS


def noted(notes: Iterable[str]) -> dict[str, int]:
    """The greatest time of each place in a batch, from the notes of its tasks."""
    greatest: dict[str, int] = {}
    for text in notes:
        for place, time_us in msgspec.json.decode(text, type=dict[str, int]).items():
            greatest[place] = max(time_us, greatest.get(place, time_us))
    return greatest
