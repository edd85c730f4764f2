"""Publish: a view's rows into its topic, as change records by key.

Micro-batch views pass through ``Publisher``, the function that Spark calls with each batch. A batch that is
repeated after a crash computes the same rows and writes them again: the newest record of every key is the same,
so a reader of the topic ends at the same table.
"""

import threading
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from headwater.access import Log, access
from headwater.graph import View
from headwater.pipeline import wire
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.groups import Groups
from headwater.pipeline.invalid import InvalidRecords

__all__ = ["Publisher", "Stopping", "sink_options"]

START_SECONDS_MAX = 60.0


class Stopping(Exception):  # noqa: N818 (not an error: it ends a query between two batches)
    """Raised instead of taking another batch once the runner is stopping."""


def sink_options(log: Log, view: View) -> dict[str, str]:
    """Options of Spark's Kafka sink for a view's topic."""
    return {**access(log).spark(), "topic": view.name}


class Publisher:
    """Publishes the batches of one view, in order; called by its query's thread.

    After each batch the rows are in the log, the invalid records it met are published and its positions committed.
    """

    def __init__(
        self, view: View, checkpoint: Checkpoint, log: Log, groups: Groups, invalid: InvalidRecords
    ) -> None:
        self.stopping = threading.Event()
        self.failure: Exception | None = None
        self._view = view
        self._checkpoint = checkpoint
        self._log = log
        self._groups = groups
        self._invalid = invalid
        self._run = checkpoint.run()
        self._sql: tuple[str, str] | None = None
        self._started = threading.Event()
        self._query: StreamingQuery | None = None

    def attach(self, query: StreamingQuery) -> None:
        """Gives the publisher its query; its first batch waits for this."""
        self._query = query
        self._started.set()

    def __call__(self, rows: DataFrame, batch: int) -> None:
        if self.stopping.is_set() or not self._started.wait(START_SECONDS_MAX):
            raise Stopping
        try:
            self._publish(rows, batch)
        except Exception as error:
            self.failure = error  # Spark only hands on a text with both sides' stack traces
            raise
        self._groups.commit(self._view.name, self._checkpoint.reached(batch))

    def _publish(self, rows: DataFrame, batch: int) -> None:
        if self._sql is None:
            self._sql = wire.expressions(rows.schema, self._view)
        records = wire.records(rows, self._sql, view=self._view.name, run=self._run, batch=str(batch))
        records.write.format("kafka").options(**sink_options(self._log, self._view)).save()
        counts = _observed(self._query)
        if any(counts.values()):
            starts, ends = self._checkpoint.starts(batch), self._checkpoint.ends(batch)
            self._invalid.publish(rows.sparkSession, self._view, counts, starts, ends)


def _observed(query: Any) -> dict[str, int]:
    """What ``observe`` has counted in the batch that has just run: progress events come too late for that."""
    pairs = query._jsq.streamingQuery().lastExecution().observedMetrics().iterator()  # noqa: SLF001
    counts = {}
    while pairs.hasNext():
        pair = pairs.next()
        counts[pair._1()] = int(pair._2().getLong(0))  # noqa: SLF001
    return counts
