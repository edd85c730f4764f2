"""Prepare: a declared view as a streaming plan, from its topics to what its shards write. Nothing runs yet."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from headwater.config import Settings
from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.late import duration_us
from headwater.pipeline import changing, kinds, operator, plan, query, source, stage, wire
from headwater.pipeline.definition import define
from headwater.pipeline.operator import Site
from headwater.pipeline.publish import Prepared
from headwater.pipeline.split import Judge
from headwater.pipeline.time import Input

__all__ = ["planned", "prepare"]


def prepare(
    spark: SparkSession,
    settings: Settings,
    graph: Graph,
    view: View,
    shards: int,
    *,
    partitions: Mapping[str, int],
) -> Prepared:
    """Builds a view's plan. Raises UsageError, naming the view, for whatever is wrong with it. ``partitions`` are those of all topics.

    Only a view that keeps something for a time pays for a watermark: whether it does, its plan tells, so that one is built twice.
    """
    frame, site = planned(spark, settings, graph, view, shards)
    if view.latency == "realtime":
        if site.timed:
            raise UsageError(
                f"view {view.name!r} cannot run in real time: it uses {next(iter(site.timed))[:-1]}",
                hint="leave out latency='realtime'",
            )
        ready = plan.name_observations(plan.versioned(frame, view, graph))
        return Prepared(view, ready, {}, {}, shards, {}, define(view, graph, frame, site))
    judge = None
    judged = plan.keeps_time(frame) or "watermark" in site.timed.values()
    if judged:
        judge = Judge(spark, view.late.horizon_us, partitions)
        frame, site = planned(spark, settings, graph, view, shards, judge=judge)
    inputs = {
        stream.name: Input(duration_us(stream.delay), duration_us(stream.idle))
        for stream in graph.inputs(view).values()
        if judged and stream.time
    }
    definition = define(view, graph, frame, site)
    staged = stage.staged(frame, view, site, judged=judged)
    ready = plan.name_observations(staged)
    return Prepared(
        view,
        ready,
        site.timed,
        site.layouts,
        shards,
        inputs,
        definition,
        site.holds,
        judge,
        views=tuple(each.name for each in graph.upstream(view)),
        open_ended=not judged
        and any(not each.table and not each.view for each in graph.inputs(view).values()),
    )


def planned(
    spark: SparkSession,
    settings: Settings,
    graph: Graph,
    view: View,
    shards: int,
    *,
    judge: Judge | None = None,
) -> tuple[DataFrame, Site]:
    """The rows of a view as its query makes them, and the operators in it."""
    for each in graph.upstream(view):
        if not graph.knows(each):
            made, _ = planned(spark, settings, graph, each, shards)
            graph.learn(each, kinds.columns_of(made.schema))
    site = Site(
        shards, lambda: source.ticks(spark, settings.access, view.name), horizon_us=view.late.horizon_us
    )
    with operator.building(site):
        inputs = {
            parameter: source.table(spark, settings.access, stream, graph, judge=judge)
            if stream.table
            else source.stream(
                spark,
                settings.access,
                stream,
                graph,
                realtime=view.latency == "realtime",
                judge=judge,
            )
            for parameter, stream in graph.inputs(view).items()
        }
        frame = query.build(spark, view, inputs, graph.inputs(view))
    plan.check_tables(frame, view)
    if view.latency != "realtime":
        frame = changing.followed(frame, view)
    wire.check(frame, view)
    plan.check_windows(frame, view)
    return frame, site
