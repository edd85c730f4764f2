"""Spark as the engine of a pipeline (``engine.py``)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from headwater.access import access
from headwater.config import Settings
from headwater.declare.graph import Graph
from headwater.declare.spec import Stream, View
from headwater.errors import UsageError
from headwater.pipeline.batch import aggregate_inputs, batch
from headwater.pipeline.build import inputs, python_errors, query
from headwater.pipeline.build.prepare import Prepared, prepare
from headwater.pipeline.engine.engine import Computed, Failure, Fault, Launch, Take
from headwater.pipeline.engine.lag_offsets import Groups
from headwater.pipeline.engine.observed import Observed
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.spark import catalyst, session, shuffles
from headwater.pipeline.spark.shared_folder import check_shared
from headwater.pipeline.spark.turns import POOL, Turns
from headwater.pipeline.time import watermark
from headwater.pipeline.topics import Positions
from headwater.pipeline.wire import wire

__all__ = ["Spark"]

REALTIME_BATCH = "5 seconds"
DATA_FAULT = "22"
"""The class of SQL states for values that an expression cannot handle."""
OUT_OF_RANGE = "22003"
KAFKA = "KAFKA_"
"""The conditions of Spark's connector; records that have gone from the log are of that class too."""
ADVICE = re.compile(r' If necessary set "spark\.sql\.ansi\.enabled".*| SQLSTATE: \w+$')
"""The end of Spark's messages: applications do not set this."""


class Spark:
    """Runs queries in the process's Spark session."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self, slots: int, folder: Path | None) -> None:
        self._session = session.start(self._settings, slots=slots, import_folder=folder)
        self.groups = Groups(self._session, self._settings.access)
        self._turns = Turns(self._session)
        check_shared(self._session, self._settings, session.data(self._settings) / "checkpoints")

    def partitions(self) -> int:
        return int(self._session.conf.get("spark.sql.shuffle.partitions") or 0)

    def prepare(
        self, graph: Graph, view: View, shards: int, *, partitions: Mapping[str, int], in_groups: bool
    ) -> Prepared:
        return prepare(
            self._session,
            self._settings,
            graph,
            view,
            shards,
            partitions=partitions,
            in_groups=in_groups,
        )

    # ---- queries ---------------------------------------------------------------------------------------

    def run(self, prepared: Prepared, launch: Launch, take: Take) -> StreamingQuery:
        writer = prepared.frame.writeStream.foreachBatch(take)
        interval = {"processingTime": f"{launch.interval_ms} milliseconds"}
        return self._started(prepared, launch, writer, interval)

    def run_in_real_time(self, prepared: Prepared, launch: Launch) -> StreamingQuery:
        """Starts a query that runs without a publisher, from Kafka to Kafka."""
        view, frame = prepared.view, prepared.frame
        sql = wire.expressions(frame.schema, view)
        records = wire.records(frame, sql, view=view.name, run=launch.checkpoint.run, batch="realtime")
        options = {**access(self._settings.access).spark(), "topic": view.name}
        writer = records.writeStream.format("kafka").options(**options)
        return self._started(prepared, launch, writer, {"realTime": REALTIME_BATCH})

    def _started(
        self, prepared: Prepared, launch: Launch, writer: DataStreamWriter, interval: dict[str, Any]
    ) -> StreamingQuery:
        trigger: dict[str, Any] = {"availableNow": True} if launch.interval_ms is None else interval
        writer = (
            writer.trigger(**trigger)
            .outputMode("update")
            .queryName(launch.name)
            .option("checkpointLocation", str(launch.checkpoint.folder))
        )
        context = self._session.sparkContext
        context.setLocalProperty(POOL, prepared.view.name)
        try:
            return writer.start()
        except PySparkException as error:
            raise UsageError(
                f"view {prepared.view.name!r} cannot run as a stream: {query.first_line(error)}"
            ) from error
        finally:
            context.setLocalProperty(POOL, None)

    @contextmanager
    def held(self, query: Any) -> Iterator[None]:
        """Spark plans a batch under this lock."""
        lock = query._jsq.streamingQuery().awaitProgressLock()  # noqa: SLF001
        lock.lock()
        try:
            yield
        finally:
            lock.unlock()

    def began_ms(self, query: Any) -> int:
        context = query._jsq.streamingQuery().getLatestExecutionContext()  # noqa: SLF001
        return int(context.currentTriggerStartTimestamp())

    def forget(self, query: Any, reached_us: int) -> None:
        tracker = query._jsq.streamingQuery().watermarkTracker()  # noqa: SLF001
        if reached_us // 1000 > tracker.currentWatermark():
            tracker.setWatermark(reached_us // 1000)

    # ---- batches ---------------------------------------------------------------------------------------

    def compute(self, rows: DataFrame, plan: Plan, query: Any) -> Computed:
        """Runs the tasks of a batch.

        The rows that ``foreachBatch`` passes are not rows of the view: the plan ends with the publication,
        whose only column is ``_file``, the note of each shard about the file that it has written
        (``operator/shell.py``).
        """
        _set_plan(rows, plan)
        with self._turns.turn():
            notes = [row[0] for row in rows.collect()]
        return Computed(notes, Observed.of_query(query))

    def fault(self, error: Exception) -> Fault | None:
        if not isinstance(error, PySparkException):
            return None
        state = error.getSqlState() or ""
        line = ADVICE.sub("", query.first_line(error))
        if isinstance(error, PythonException):
            return Fault(line) if python_errors.is_of_a_record(str(error)) else None
        of_the_log = (error.getCondition() or "").startswith(KAFKA)
        of_a_record = state.startswith(DATA_FAULT) and not of_the_log
        return Fault(line, state == OUT_OF_RANGE) if of_a_record else None

    def forget_attempt(self, rows: DataFrame, query: Any) -> None:
        if query is not None:
            catalyst.forget_run(query._jsq.streamingQuery().lastExecution().executedPlan())  # noqa: SLF001
        shuffles.forget(self._session, rows)

    def keys_alone(self, graph: Graph, view: View, failure: Failure) -> list[str] | None:
        place = batch.Place(failure.topic, failure.partition, failure.offset)
        rows = batch.alone(self._session, self._settings, graph, view, place)
        try:
            for part in aggregate_inputs.below(rows):
                part.write.format("noop").mode("overwrite").save()
        except PySparkException as error:
            if self.fault(error) is None:
                raise
            return None
        try:
            return sorted({key for key, _ in batch.records(rows, view)})
        except PySparkException as error:
            if self.fault(error) is None:
                raise
            return []

    def reading(self) -> int:
        """Executors report it with each sign of life (``spark.executor.heartbeatInterval``)."""
        store = self._session.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
        return sum(int(stage.inputRecords()) for stage in catalyst.items(store.activeStages()))

    def repeat(self, rows: DataFrame, plan: Plan) -> None:
        _set_plan(rows, plan)
        with self._turns.turn():
            rows.write.format("noop").mode("overwrite").save()

    # ---- records that are read again -----------------------------------------------------------------------

    def late(self, stream: Stream, starts: Positions, ends: Positions, *, before_us: int) -> Iterable[Any]:
        frame: DataFrame = inputs.late(
            self._session, self._settings.access, stream, starts, ends, before_us=before_us
        )
        rows: Iterable[Any] = frame.toLocalIterator()
        return rows

    def invalid(self, stream: Stream, starts: Positions, ends: Positions) -> Iterable[Any]:
        frame: DataFrame = inputs.invalid(self._session, self._settings.access, stream, starts, ends)
        rows: Iterable[Any] = frame.toLocalIterator()
        return rows


def _set_plan(rows: DataFrame, plan: Plan) -> None:
    """Gives the plan to the tasks of a batch, which has not run yet, as a local property of this thread."""
    spark: SparkSession = rows.sparkSession
    spark.sparkContext.setLocalProperty(watermark.PLAN, msgspec.json.encode(plan).decode())
