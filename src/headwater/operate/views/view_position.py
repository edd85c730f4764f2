"""One position of a view: the records that it has read and left out, and the rows that it had published."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from headwater.config import Settings
from headwater.declare.duration import duration_us
from headwater.declare.graph import Graph
from headwater.declare.spec import View
from headwater.errors import UsageError
from headwater.follow.results import results
from headwater.operate.views import inspect_state
from headwater.pipeline.batch.batch import Place
from headwater.pipeline.batch.plain.moment import At
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.lag_offsets import group
from headwater.pipeline.left_out import failed_records, late_records
from headwater.pipeline.left_out.failed_records import FailedRecord
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.spark import session
from headwater.pipeline.topics import Positions, Topics
from headwater.result import Result

__all__ = [
    "LeftOut",
    "ViewPosition",
    "count_records",
    "left_out",
    "moment_of",
    "position_of",
    "result_before_forget",
]


class ViewPosition(msgspec.Struct, frozen=True):
    """The offsets that a view has read, and the offsets of its topic with the rows made from them."""

    inputs: Positions
    outputs: dict[int, int]
    result: Result | None
    """None for a real-time view, which has no results."""


def position_of(topics: Topics, settings: Settings, graph: Graph, view: View) -> ViewPosition:
    """The newest position at which a view can be compared with a batch. UsageError if there is none now."""
    if view.latency == "realtime":
        return _realtime_position(topics, graph, view)
    return _newest_position(settings, view.name)


def _newest_position(settings: Settings, view: str) -> ViewPosition:
    """The newest result whose batch contains exactly the records up to one position."""
    by_batch = inspect_state.results_of(settings, view)
    for batch in sorted(by_batch, reverse=True):
        result = by_batch[batch]
        checkpoint = Checkpoint(session.data(settings) / "checkpoints" / view / result.run)
        # A view that reads a topic twice may be at two offsets of it; the result has only the smaller one.
        if checkpoint.ends(result.batch) in ({}, result.inputs):
            return ViewPosition(result.inputs, result.outputs, result)
    raise UsageError(
        f"view {view!r} cannot be checked now: it reads a topic twice, and has read less of it in one place",
        hint="try again when the view has caught up",
    )


def _realtime_position(topics: Topics, graph: Graph, view: View) -> ViewPosition:
    """The end of all inputs.

    A real-time view publishes its offsets only now and then, so its rows are exact at no other position.
    """
    names = [topic for stream in graph.inputs(view).values() for topic in topics.of(stream, graph)]
    ends = topics.ends(names)
    read = topics.committed(group(view.name), [(t, p) for t, partitions in ends.items() for p in partitions])
    lag = sum(end - read.get((t, p), 0) for t, partitions in ends.items() for p, end in partitions.items())
    if lag:
        raise UsageError(
            f"view {view.name!r} runs in real time and still has {lag:,} records to read",
            expected="a view that has read all records: its rows are exact only there",
            hint="try again when its streams are quiet; it commits its offsets every few seconds",
        )
    return ViewPosition(ends, topics.ends([view.name]).get(view.name, {}), None)


class LeftOut(NamedTuple):
    """The records that a run has left out."""

    late: list[Place]
    failed: list[Place]

    def all(self) -> list[Place]:
        return sorted({*self.late, *self.failed})


def left_out(topics: Topics, view: str, result: Result | None, inputs: Positions) -> LeftOut:
    """The records left out by the run of a result, up to that result.

    A real-time view has neither runs nor results.
    """
    runs = {result.run, ""} if result is not None else None

    def places(records: Iterable[LateRecord | FailedRecord]) -> list[Place]:
        return sorted(
            {
                Place(record.topic, record.partition, record.offset)
                for record in records
                if (runs is None or record.run in runs)
                and record.offset < inputs.get(record.topic, {}).get(record.partition, 0)
            }
        )

    timed = result is None or result.watermark is not None
    late = places(late_records.published(topics, view)) if timed else []
    return LeftOut(late, places(failed_records.published(topics, view)))


def count_records(topics: Topics, inputs: Positions, without: Collection[Place]) -> tuple[int, int]:
    """The number of records that a batch reads, and of those that the log no longer holds."""
    total = lost = 0
    for topic, partitions in inputs.items():
        bounds = topics.bounds(topic)
        for number, end in partitions.items():
            start = min(bounds.get(number, (0, 0))[0], end)
            total, lost = total + end - start, lost + start
    return total - len(without), lost


def moment_of(view: View, result: Result | None) -> At:
    """The watermark and the clock of a view at a result."""
    if result is None:
        return At(view=view.name)
    return At(
        view=view.name,
        now_us=result.now_us or None,
        watermark_us=result.watermark,
        horizon_us=view.late.horizon_us,
        opens=result.opens,
    )


def result_before_forget(topics: Topics, view: View, result: Result | None) -> Result | None:
    """For a view with ``forget``: its newest result that is at least so old.

    Rows that have not changed since then may be gone.

    If the log holds no such result, the oldest one: rows that have changed since then must be there, of
    others nothing is known.
    """
    if view.forget is None or result is None:
        return None
    by_batch = {other.batch: other for other in results(topics, view.name) if other.run == result.run}
    bound = result.now_us - duration_us(view.forget)
    old = [batch for batch, other in by_batch.items() if other.now_us <= bound]
    if old:
        return by_batch[max(old)]
    return by_batch[min(by_batch)] if min(by_batch) > 0 else None
