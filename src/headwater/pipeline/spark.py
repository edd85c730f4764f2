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
from headwater.errors import UsageError
from headwater.graph import Graph, Stream, View
from headwater.pipeline import batch, query, session, shuffles, source, time, wire
from headwater.pipeline.engine import Computed, Fault, Launch, Prepared, Take
from headwater.pipeline.failed import Failure
from headwater.pipeline.groups import Groups
from headwater.pipeline.observed import Observed
from headwater.pipeline.operator import Plan
from headwater.pipeline.prepare import prepare
from headwater.pipeline.shared import check_shared
from headwater.pipeline.topics import Positions

__all__ = ["Spark"]

REALTIME_BATCH = "5 seconds"
DATA_FAULT = "22"
"""The class of SQL states for values that an expression cannot take."""
OUT_OF_RANGE = "22003"
OWN_ERROR = "headwater."
NOT_OF_A_RECORD = (
    "MemoryError",
    "ImportError",
    "ModuleNotFoundError",
    "OSError",
    "ConnectionError",
    "TimeoutError",
)
"""Exceptions in Python functions that say something of the machine."""
ADVICE = re.compile(r' If necessary set "spark\.sql\.ansi\.enabled".*| SQLSTATE: \w+$')
"""What Spark's messages end with: not all of it is for an application to set."""
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class Spark:
    """Runs queries in the process's Spark session."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self, slots: int, folder: Path | None) -> None:
        self._session = session.start(self._settings, slots=slots, import_folder=folder)
        self.groups = Groups(self._session, self._settings.access)
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
        frame.sparkSession.conf.set(
            STATE_FORMAT, "2"
        )  # as real-time mode wants it; a query keeps what it finds
        try:
            return self._started(prepared, launch, writer, {"realTime": REALTIME_BATCH})
        finally:
            frame.sparkSession.conf.unset(STATE_FORMAT)

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
        context.setLocalProperty("spark.scheduler.pool", prepared.view.name)
        try:
            return writer.start()
        except PySparkException as error:
            raise UsageError(
                f"view {prepared.view.name!r} cannot run as a stream: {query.first_line(error)}"
            ) from error
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)

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
        _tell(rows, plan)
        notes = [row[0] for row in rows.collect()]
        return Computed(notes, Observed.of_query(query))

    def fault(self, error: Exception) -> Fault | None:
        if not isinstance(error, PySparkException):
            return None
        state = error.getSqlState() or ""
        said = ADVICE.sub("", query.first_line(error))
        if isinstance(error, PythonException):
            raised = said.partition(":")[0]
            ours = raised.startswith(OWN_ERROR) or raised.rpartition(".")[2] in NOT_OF_A_RECORD
            return None if ours else Fault(said)
        return Fault(said, state == OUT_OF_RANGE) if state.startswith(DATA_FAULT) else None

    def forget_attempt(self, rows: DataFrame, query: Any) -> None:
        if query is not None:
            query._jsq.streamingQuery().lastExecution().executedPlan().resetMetrics()  # noqa: SLF001
        shuffles.forget(self._session, rows)

    def keys_alone(self, graph: Graph, view: View, failure: Failure) -> list[str] | None:
        try:
            place = batch.Place(failure.topic, failure.partition, failure.offset)
            return batch.keys_alone(self._session, self._settings, graph, view, place)
        except PySparkException as error:
            if self.fault(error) is None:
                raise
            return None

    def repeat(self, rows: DataFrame, plan: Plan) -> None:
        _tell(rows, plan)
        rows.write.format("noop").mode("overwrite").save()

    # ---- records that are read once more -----------------------------------------------------------------

    def late(self, stream: Stream, starts: Positions, ends: Positions, *, before_us: int) -> Iterable[Any]:
        found: DataFrame = source.late(
            self._session, self._settings.access, stream, starts, ends, before_us=before_us
        )
        rows: Iterable[Any] = found.toLocalIterator()
        return rows

    def invalid(self, stream: Stream, starts: Positions, ends: Positions) -> Iterable[Any]:
        found: DataFrame = source.invalid(self._session, self._settings.access, stream, starts, ends)
        rows: Iterable[Any] = found.toLocalIterator()
        return rows


def _tell(rows: DataFrame, plan: Plan) -> None:
    """Tells the tasks of a batch, whose frame has not run yet."""
    spark: SparkSession = rows.sparkSession
    spark.sparkContext.setLocalProperty(time.PLAN, msgspec.json.encode(plan).decode())
