"""Turns: of the batches that wait for a slot, the one that has waited longest gets it.

Spark's fair scheduler gives a free slot to the pool with the fewest running tasks, and chooses among equal
ones by name. With a pool for each view, views late in the alphabet would wait while others run many batches.
So each batch has a pool of its own, and its name is its number: the oldest comes first.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from headwater.pipeline.spark import catalyst

__all__ = ["POOL", "Turns"]

POOL = "spark.scheduler.pool"
"""Spark's local property: the pool of the jobs that a thread starts."""


class Turns:
    """Gives each batch the next number. Safe to call from any thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._numbers = itertools.count()
        self._pool_class = catalyst.of(spark, "org.apache.spark.scheduler.Pool")
        self._fifo = catalyst.of(spark, "org.apache.spark.scheduler.SchedulingMode").FIFO()

    @contextmanager
    def turn(self) -> Iterator[str]:
        """The jobs that this thread starts inside are those of one batch, whose pool has this name."""
        pools = self._context._jsc.sc().taskScheduler().rootPool()  # noqa: SLF001
        name = f"batch-{next(self._numbers):019d}"
        pool = self._pool_class(name, self._fifo, 0, 1)
        pools.addSchedulable(pool)
        before = self._context.getLocalProperty(POOL)
        self._context.setLocalProperty(POOL, name)
        try:
            yield name
        finally:
            self._context.setLocalProperty(POOL, before)
            pools.removeSchedulable(pool)
