"""Prepare: a declared view as a streaming plan, from its topics to what its shards write. Nothing runs yet."""

import hashlib
import re

from pyspark.sql import DataFrame, SparkSession

from headwater.config import Settings
from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.late import duration_us
from headwater.pipeline import differing, operator, plan, query, source, wire
from headwater.pipeline.operator import Site
from headwater.pipeline.publish import Prepared
from headwater.pipeline.time import Input

__all__ = ["prepare"]

NUMBERS = re.compile(r"#\d+L?|@[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=\]), \d+$")
"""What Spark numbers anew each time: columns, objects, watermarks, observations."""


def prepare(spark: SparkSession, settings: Settings, graph: Graph, view: View, shards: int) -> Prepared:
    """Builds a view's plan. Raises UsageError, naming the view, for whatever is wrong with it.

    Only a view that keeps something for a time pays for a watermark: whether it does, its plan tells, so that one is built twice.
    """
    frame, site = _build(spark, settings, graph, view, shards, judged=False)
    if view.latency == "realtime":
        if site.timed:
            raise UsageError(
                f"view {view.name!r} cannot run in real time: it uses {next(iter(site.timed))[:-1]}",
                hint="leave out latency='realtime'",
            )
        ready = plan.name_observations(plan.versioned(frame, view, graph))
        return Prepared(view, ready, {}, {}, shards, {}, _definition(view, frame, site))
    judged = plan.keeps_time(frame) or "watermark" in site.timed.values()
    if judged:
        frame, site = _build(spark, settings, graph, view, shards, judged=True)
    inputs = {
        stream.name: Input(duration_us(stream.delay), duration_us(stream.idle))
        for stream in graph.inputs(view).values()
        if judged
    }
    definition = _definition(view, frame, site)
    staged = plan.name_observations(differing.staged(frame, view, site))
    return Prepared(view, staged, site.timed, site.layouts, shards, inputs, definition, site.holds)


def _build(
    spark: SparkSession, settings: Settings, graph: Graph, view: View, shards: int, *, judged: bool
) -> tuple[DataFrame, Site]:
    inputs = {
        parameter: source.stream(
            spark,
            settings.access,
            stream,
            graph,
            realtime=view.latency == "realtime",
            horizon_us=view.late.horizon_us if judged else None,
        )
        for parameter, stream in graph.inputs(view).items()
    }
    site = Site(shards, lambda: source.ticks(spark, settings.access, view.name))
    with operator.building(site):
        frame = query.build(spark, view, inputs)
    wire.check(frame, view)
    return frame, site


def _definition(view: View, frame: DataFrame, site: Site) -> str:
    """A short text that changes when the view does: its plan without the numbers that Spark gives to columns, and its settings."""
    lines = frame._jdf.queryExecution().analyzed().toString().splitlines()  # noqa: SLF001
    steps = [NUMBERS.sub("", line) for line in lines if "StreamingRelation" not in line]
    parts = [*steps, repr((view.key, view.late, view.forget, view.latency, sorted(site.timed.items())))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
