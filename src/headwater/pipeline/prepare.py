"""Prepare: a declared view as a streaming plan, from its topics to what its shards write. Nothing runs yet."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from headwater.config import Settings
from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.late import duration_us
from headwater.pace import batch_records
from headwater.pipeline import catalyst, changing, kinds, operator, plan, query, refusals, source, stage, wire
from headwater.pipeline.definition import define
from headwater.pipeline.engine import Prepared
from headwater.pipeline.operator import Site
from headwater.pipeline.skips import Skips
from headwater.pipeline.split import Judge
from headwater.pipeline.time import Input
from headwater.pipeline.topics import pattern

__all__ = ["planned", "prepare"]


def prepare(
    spark: SparkSession,
    settings: Settings,
    graph: Graph,
    view: View,
    shards: int,
    *,
    partitions: Mapping[str, int],
    in_groups: bool = False,
) -> Prepared:
    """Builds a view's plan. Raises UsageError, naming the view, for whatever is wrong with it. ``partitions`` are those of all topics.

    With ``in_groups`` what it has published stands, or may stand, in as many shards as Spark has partitions.

    Only a view that keeps something for a time pays for a watermark: whether it does, its plan tells, so that one is built twice,
    over the same records.
    """
    plans = _Plans(spark, settings, graph, shards)
    skips = Skips(spark) if view.latency == "batch" else None
    records = plans.records(view, skips)
    frame, site = plans.build(view, records)
    if view.latency == "realtime" and site.timed:
        raise refusals.REALTIME_OPERATOR.error(view=f"view {view.name!r}", kind=next(iter(site.timed))[:-1])
    judge, realtime = None, view.latency == "realtime"
    judged = plan.keeps_time(frame) or "watermark" in site.timed.values()
    if judged:
        judge = Judge(spark, view.late.horizon_us, partitions, realtime=realtime)
        if realtime and any(each.pattern is not None for each in graph.inputs(view).values()):
            raise UsageError(
                f"view {view.name!r} cannot run in real time: it keeps windows over the topics of a pattern",
                expected="a stream of one topic",
                hint="leave out latency='realtime'",
            )
        frame, site = plans.build(view, records, judge)
    inputs = {
        stream.name: Input(
            duration_us(stream.delay),
            duration_us(stream.idle),
            topic="" if stream.pattern else stream.topic,
            pattern=pattern(stream, graph) if stream.pattern else "",
        )
        for stream in graph.inputs(view).values()
        if judged and stream.time
    }
    definition = define(view, graph, frame, site)
    if realtime:
        ready = plan.name_observations(plan.versioned(frame, view, graph))
        return Prepared(view, ready, {}, {}, shards, inputs, definition, judge=judge)
    rows = frame if judged else plan.timeless(frame)
    staged = stage.staged(rows, view, site, judged=judged, in_groups=in_groups)
    ready = plan.name_observations(staged)
    if skips is not None:
        skips.aggregates = bool(catalyst.find(catalyst.plan(ready), ["Aggregate"]))
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
        sources=_read_once(ready, graph, view),
        columns={column.name: column.kind for column in kinds.columns_of(frame.schema)},
        batch_records=plans.batch_records(view),
        skips=skips,
    )


def planned(
    spark: SparkSession, settings: Settings, graph: Graph, view: View, shards: int
) -> tuple[DataFrame, Site]:
    """The rows of a view as its query makes them, and the operators in it."""
    plans = _Plans(spark, settings, graph, shards)
    return plans.build(view, plans.records(view))


def _read_once(rows: DataFrame, graph: Graph, view: View) -> dict[str, str]:
    """By the name of each stream its topic, where the plan reads that once: only then its positions say which records were counted."""
    seen = Counter(plan.observed(name) for name in plan.observations(rows))
    streams = set(graph.inputs(view).values())
    topics = Counter(each.topic for each in streams)
    return {
        each.name: each.topic
        for each in streams
        if each.pattern is None and topics[each.topic] == 1 and seen[f"{source.INVALID} {each.name}"] == 1
    }


class _Plans(NamedTuple):
    """What all plans of an application have in common."""

    spark: SparkSession
    settings: Settings
    graph: Graph
    shards: int

    def records(self, view: View, skips: Skips | None = None) -> dict[str, DataFrame]:
        """The valid records of each input. What columns a view has that is read is learned from its plan."""
        for each in self.graph.upstream(view):
            if not self.graph.knows(each):
                made, _ = self.build(each, self.records(each))
                self.graph.learn(each, kinds.columns_of(made.schema))
        most = self.batch_records(view)
        return {
            parameter: source.records(
                self.spark,
                self.settings.access,
                stream,
                self.graph,
                realtime=view.latency == "realtime",
                batch_records=most,
                skips=skips,
            )
            for parameter, stream in self.graph.inputs(view).items()
        }

    def batch_records(self, view: View) -> int:
        """How many records a batch takes from each input at most."""
        most = source.BATCH_RECORDS_MAX
        return min(most, batch_records(self.settings.pace_records, len(view.inputs))) if view.pace else most

    def build(
        self, view: View, records: Mapping[str, DataFrame], judge: Judge | None = None
    ) -> tuple[DataFrame, Site]:
        """The view's rows, and what its operators need."""
        site = Site(
            self.shards,
            lambda: source.ticks(self.spark, self.settings.access, view.name),
            horizon_us=view.late.horizon_us,
        )
        realtime = view.latency == "realtime"
        with operator.building(site):
            inputs = {
                parameter: source.table(records[parameter], stream, judge=judge)
                if stream.table
                else source.stream(records[parameter], stream, realtime=realtime, judge=judge)
                for parameter, stream in self.graph.inputs(view).items()
            }
            frame = query.build(self.spark, view, inputs, self.graph.inputs(view))
        plan.check_tables(frame, view)
        if not realtime:
            plan.check_duplicates(frame, view)
            frame = changing.followed(frame, view)
        wire.check(frame, view)
        plan.check_windows(frame, view)
        return frame, site
