"""Real time: what a real-time query cannot do while it runs is settled behind it.

Spark lets no code of ours into such a query. Every few seconds it closes a batch and reports positions and counts;
then the invalid records of that stretch are published and the positions committed to the view's group. The commit
comes last, so that after a crash the group tells from where to look again.
"""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from headwater.graph import View
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.groups import Groups
from headwater.pipeline.invalid import InvalidRecords

__all__ = ["Settlement"]


class Settlement:
    """Follows one real-time view. Owned by the runner's watching thread, and by its stopping one after that."""

    def __init__(self, view: View, checkpoint: Checkpoint, groups: Groups, invalid: InvalidRecords) -> None:
        self._view = view
        self._checkpoint = checkpoint
        self._groups = groups
        self._invalid = invalid
        self._settled = groups.committed(view.name)
        self._batch: int | None = None

    def settle(self, spark: SparkSession, query: StreamingQuery | None) -> None:
        """Settles up to the last complete batch; without a new one since the last call it does nothing.

        Counts are used when they are those of exactly this stretch; otherwise all of it is read again.
        """
        last = self._checkpoint.last()
        if last == self._batch:
            return
        progress: Any = query.lastProgress if query is not None else None
        exact = (
            progress is not None
            and self._batch is not None
            and progress["batchId"] == last == self._batch + 1
        )
        counts = (
            {name: row["records"] for name, row in progress["observedMetrics"].items()} if exact else None
        )
        ends = self._checkpoint.reached(last)
        starts = {
            t: {p: min(self._settled.get(t, {}).get(p, 0), end) for p, end in ps.items()}
            for t, ps in ends.items()
        }
        if starts != ends:
            self._invalid.publish(spark, self._view, counts, starts, ends)
            if not self._groups.commit(self._view.name, ends):
                return
        self._batch, self._settled = last, ends
