"""Shuffles: what Spark keeps of the shuffles of a frame between two runs of it, and how it is forgotten.

Spark takes what an earlier run of the same frame has shuffled, which is right as long as both read the same records. A batch that is computed once
more with other records must read the log again.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headwater.pipeline import catalyst

__all__ = ["forget"]


def forget(spark: SparkSession, rows: DataFrame) -> None:
    """Lets the next run of a frame begin from its sources. No run of it may be under way."""
    # By hand what Spark does itself once a frame is garbage: blocks, and where they are, go on the driver and on all executors.
    cleaner = spark.sparkContext._jsc.sc().cleaner().get()  # noqa: SLF001
    for shuffle in set(_shuffles(rows._jdf.queryExecution().toRdd())):  # noqa: SLF001
        cleaner.doCleanupShuffle(shuffle, True)


def _shuffles(rdd: Any) -> Iterator[int]:
    for dependency in catalyst.items(rdd.dependencies()):
        if dependency.getClass().getSimpleName() == "ShuffleDependency":
            yield int(dependency.shuffleId())
        yield from _shuffles(dependency.rdd())
