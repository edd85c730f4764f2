"""Shuffles: what Spark keeps of a frame's shuffles between two runs, and how to discard it.

Spark reuses the shuffled rows of an earlier run of the same frame, which is correct as long as both read the
same records. A batch that is computed again with other records must read the log again.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headwater.pipeline.spark import catalyst

__all__ = ["forget"]


def forget(spark: SparkSession, rows: DataFrame) -> None:
    """Lets the next run of a frame begin from its sources. The frame must not be running."""
    # As Spark does when a frame is garbage: removes blocks and their places, on driver and executors.
    cleaner = spark.sparkContext._jsc.sc().cleaner().get()  # noqa: SLF001
    for shuffle in set(_shuffles(rows._jdf.queryExecution().toRdd())):  # noqa: SLF001
        cleaner.doCleanupShuffle(shuffle, True)


def _shuffles(rdd: Any) -> Iterator[int]:
    for dependency in catalyst.items(rdd.dependencies()):
        if dependency.getClass().getSimpleName() == "ShuffleDependency":
            yield int(dependency.shuffleId())
        yield from _shuffles(dependency.rdd())
