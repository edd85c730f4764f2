"""Prepare: a declared view as a streaming plan, from its topics to what its shards write. Nothing runs yet."""

from pyspark.sql import DataFrame, SparkSession

from headwater.config import Settings
from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.late import duration_us
from headwater.pipeline import changing, operator, plan, query, source, stage, wire
from headwater.pipeline.definition import define
from headwater.pipeline.operator import Site
from headwater.pipeline.publish import Prepared
from headwater.pipeline.time import Input

__all__ = ["prepare"]


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
        return Prepared(view, ready, {}, {}, shards, {}, define(view, graph, frame, site))
    judged = plan.keeps_time(frame) or "watermark" in site.timed.values()
    if judged:
        frame, site = _build(spark, settings, graph, view, shards, judged=True)
    inputs = {
        stream.name: Input(duration_us(stream.delay), duration_us(stream.idle))
        for stream in graph.inputs(view).values()
        if judged
    }
    definition = define(view, graph, frame, site)
    staged = stage.staged(frame, view, site, judged=judged)
    ready = plan.name_observations(staged)
    return Prepared(view, ready, site.timed, site.layouts, shards, inputs, definition, site.holds)


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
    site = Site(
        shards, lambda: source.ticks(spark, settings.access, view.name), horizon_us=view.late.horizon_us
    )
    with operator.building(site):
        frame = query.build(spark, view, inputs)
    if view.latency != "realtime":
        frame = changing.followed(frame, view)
    wire.check(frame, view)
    plan.check_windows(frame, view)
    return frame, site
