"""Prepare: a declared view as a streaming plan, from its topics to the files that its shards write.

Nothing runs.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headwater.config import Settings
from headwater.declare.duration import duration_us
from headwater.declare.graph import Graph
from headwater.declare.spec import View
from headwater.errors import UsageError
from headwater.follow.pace import batch_records
from headwater.pipeline import refusals
from headwater.pipeline.build import (
    hidden_columns,
    last_step,
    plan_checks,
    plan_edits,
    query,
    window_ends,
)
from headwater.pipeline.build import inputs as source
from headwater.pipeline.build.skips import Skips
from headwater.pipeline.definition.definition import Definition, define
from headwater.pipeline.operator.building import Site, building
from headwater.pipeline.operator.logic import GROUPS
from headwater.pipeline.spark import catalyst
from headwater.pipeline.time.late_split import Judge
from headwater.pipeline.time.watermark import Input
from headwater.pipeline.topics import pattern
from headwater.pipeline.wire import view_columns, wire
from headwater.pipeline.wire.wire import INVALID

__all__ = ["Prepared", "planned", "prepare"]


class Prepared(msgspec.Struct, frozen=True):
    """A view whose plan is built, ready to be run."""

    view: View
    frame: Any
    """What the engine runs."""
    timed: dict[str, str]
    """By operator, including the publication: what its time-outs go by, or ''."""
    layouts: dict[str, str]
    """By operator, how its state is laid out."""
    shards: int
    inputs: dict[str, Input]
    """Its streams, if it has a watermark; empty otherwise."""
    definition: Definition
    holds: dict[str, dict[str, int]] = {}
    """For operators downstream of others that delay rows: these, and their allowance in microseconds.

    The allowance is how much older than the watermark the rows may be that such an operator emits.
    """
    judge: Judge | None = None
    """Decides which of its rows are late."""
    views: tuple[str, ...] = ()
    """The views among its inputs."""
    sources: dict[str, str] = {}
    """By the name of each stream its topic.

    Without streams of a pattern, and without those that are read twice.
    """
    open_ended: bool = False
    """Whether it reads streams and has no watermark: none of its rows is ever complete."""
    dated: bool = False
    """Whether its shards report when rows become complete."""
    columns: dict[str, str] = {}
    """The columns of its rows, in Spark's notation."""
    batch_records: int = 0
    """The maximum number of records that a batch takes from each input."""
    skips: Skips | None = None
    """The records that its plan leaves out; None for a view that runs in real time."""

    @property
    def reads_twice(self) -> bool:
        """Whether it may read a topic twice, with sources of which one is ahead of the other."""
        return len(self.sources) < len(set(self.view.inputs.values()))


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
    """Builds a view's plan. Raises UsageError, naming the view, for anything wrong with it.

    ``partitions`` are those of all topics. With ``in_groups`` the number of shards is Spark's number of
    partitions, so rows may stay where a groupBy has left them.

    Only a view that keeps state for a time pays for a watermark. Whether it does is known from its plan, so
    the plan of such a view is built twice, over the same records.
    """
    plans = _Plans(spark, settings, graph, shards)
    skips = Skips(spark) if view.latency == "batch" else None
    records = plans.records(view, skips)
    frame, site = plans.build(view, records)
    plan_checks.check_stream(frame, view)
    judge = None
    if plan_edits.keeps_time(frame) or "watermark" in site.timed.values():
        judge = Judge(spark, view.late.horizon_us, partitions, realtime=view.latency == "realtime")
    if view.latency == "realtime":
        _check_realtime(view, graph, site, judge)
    if judge is not None:
        frame, site = plans.build(view, records, judge)
    built = _QueryPlan(view, graph, frame, site, judge)
    return built.realtime(shards) if skips is None else built.micro_batch(plans, skips, in_groups=in_groups)


def _check_realtime(view: View, graph: Graph, site: Site, judge: Judge | None) -> None:
    """Raises UsageError for a plan that cannot run in real time."""
    if site.timed:
        raise refusals.REALTIME_OPERATOR.error(view=f"view {view.name!r}", kind=next(iter(site.timed))[:-1])
    if judge is not None and any(stream.pattern is not None for stream in graph.inputs(view).values()):
        raise UsageError(
            f"view {view.name!r} cannot run in real time: it keeps windows over the topics of a pattern",
            expected="a stream of one topic",
            hint="leave out latency='realtime'",
        )


class _QueryPlan(NamedTuple):
    """The plan of a view's query, before its last step."""

    view: View
    graph: Graph
    frame: DataFrame
    site: Site
    judge: Judge | None

    def realtime(self, shards: int) -> Prepared:
        """A plan that runs from Kafka to Kafka: its rows get a version instead of being compared."""
        ready = plan_edits.name_observations(plan_edits.versioned(self.frame, self.view, self.graph))
        return Prepared(
            self.view, ready, {}, {}, shards, self._inputs(), self._definition(), judge=self.judge
        )

    def micro_batch(self, plans: "_Plans", skips: Skips, *, in_groups: bool) -> Prepared:
        """A plan that ends with the publication, whose shards write what has changed."""
        view, graph, site = self.view, self.graph, self.site
        inputs, definition = self._inputs(), self._definition()
        judged = self.judge is not None
        rows, until = (
            window_ends.ended(self.frame, view) if judged else (plan_edits.timeless(self.frame), None)
        )
        published = last_step.publication(rows, view, site, until=until, in_groups=in_groups)
        ready = plan_edits.name_observations(published)
        grouped = any(logic.kind in GROUPS for logic in site.logics.values())
        skips.aggregates = grouped or bool(catalyst.find(catalyst.plan(ready), ["Aggregate"]))
        reads_streams = any(not stream.table and not stream.view for stream in graph.inputs(view).values())
        return Prepared(
            view,
            ready,
            site.timed,
            site.layouts,
            plans.shards,
            inputs,
            definition,
            site.holds,
            self.judge,
            views=tuple(upstream.name for upstream in graph.upstream(view)),
            open_ended=not judged and reads_streams,
            dated=until is not None,
            sources=_read_once(ready, graph, view),
            columns={column.name: column.kind for column in view_columns.columns_of(self.frame.schema)},
            batch_records=plans.batch_records(view),
            skips=skips,
        )

    def _definition(self) -> Definition:
        return define(self.view, self.graph, self.frame, self.site)

    def _inputs(self) -> dict[str, Input]:
        """What the watermark needs to know of each stream; nothing without a watermark."""
        return {
            stream.name: Input(
                duration_us(stream.delay),
                duration_us(stream.idle),
                topic="" if stream.pattern else stream.topic,
                pattern=pattern(stream, self.graph) if stream.pattern else "",
            )
            for stream in self.graph.inputs(self.view).values()
            if self.judge is not None and stream.time
        }


def planned(
    spark: SparkSession, settings: Settings, graph: Graph, view: View, shards: int
) -> tuple[DataFrame, Site]:
    """The rows of a view as its query returns them, and the operators in it."""
    plans = _Plans(spark, settings, graph, shards)
    frame, site = plans.build(view, plans.records(view))
    plan_checks.check_stream(frame, view)
    return frame, site


def _read_once(rows: DataFrame, graph: Graph, view: View) -> dict[str, str]:
    """By the name of each stream its topic, if the plan reads it once.

    Only then the positions of the topic say which records were counted.
    """
    seen = Counter(plan_edits.observed(name) for name in plan_edits.observations(rows))
    streams = set(graph.inputs(view).values())
    topics = Counter(stream.topic for stream in streams)
    return {
        stream.name: stream.topic
        for stream in streams
        if stream.pattern is None and topics[stream.topic] == 1 and seen[f"{INVALID} {stream.name}"] == 1
    }


class _Plans(NamedTuple):
    """Builds the plans of an application."""

    spark: SparkSession
    settings: Settings
    graph: Graph
    shards: int

    def records(self, view: View, skips: Skips | None = None) -> dict[str, DataFrame]:
        """The records of each input, parsed.

        The columns of an input that is a view are taken from its plan.
        """
        for upstream in self.graph.upstream(view):
            if not self.graph.knows(upstream):
                rows, _ = self.build(upstream, self.records(upstream))
                self.graph.learn(upstream, view_columns.columns_of(rows.schema))
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
        """The maximum number of records that a batch takes from each input."""
        most = source.BATCH_RECORDS_MAX
        return min(most, batch_records(self.settings.pace_records, len(view.inputs))) if view.pace else most

    def build(
        self, view: View, records: Mapping[str, DataFrame], judge: Judge | None = None
    ) -> tuple[DataFrame, Site]:
        """The view's rows, and its operators.

        The operators that the view's function applies find the view in a context variable, which ``building``
        sets for this block (``pipeline/DESIGN.md``, Hidden channels): their public functions take only rows.
        """
        site = Site(
            self.shards,
            lambda: source.ticks(self.spark, self.settings.access, view.name),
            horizon_us=view.late.horizon_us,
        )
        realtime = view.latency == "realtime"
        with building(site):
            inputs = {
                parameter: source.table(records[parameter], stream, judge=judge)
                if stream.table
                else source.stream(records[parameter], stream, realtime=realtime, judge=judge)
                for parameter, stream in self.graph.inputs(view).items()
            }
            frame = query.build(self.spark, view, inputs, self.graph.inputs(view))
        plan_edits.check_tables(frame, view)
        if not realtime:
            plan_edits.check_duplicates(frame, view)
            frame = hidden_columns.followed(frame, view)
        wire.check(frame, view)
        plan_edits.check_windows(frame, view)
        return frame, site
