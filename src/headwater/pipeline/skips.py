"""Skips: the records that a view's plan leaves out, set before each batch as the bounds of late rows are (``split.py``).

A view that fails on a record is run without it (``isolation.py``). The plan holds one object of a class of ours (``jvm/Skips.java``), and each of its sources
asks it: so a batch can be run with other records left out, and nothing is planned or compiled again.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.pipeline import catalyst

__all__ = ["Range", "Skips"]


class Range(NamedTuple):
    """Some offsets of a partition: from the first one up to, and not including, the end."""

    topic: str
    partition: int
    first: int
    end: int


class Skips:
    """What the plan of one view leaves out. Belongs to the thread of the view's query."""

    def __init__(self, spark: SparkSession) -> None:
        self.aggregates = False
        """Whether the plan has aggregates of Spark's own: their sums may overflow without a fault of the record that comes last."""
        self._spark = spark
        self._records = catalyst.of(spark, "headwater.Skips")()
        self._set: tuple[Range, ...] = ()

    def set(self, ranges: Iterable[Range]) -> None:
        """From the next batch on, just these are left out. Ranges of one partition do not overlap."""
        wanted = tuple(sorted(ranges))
        if wanted != self._set:
            self._records.set("\n".join("\t".join(map(str, each)) for each in wanted))
            self._set = wanted

    def applied(self, records: DataFrame) -> DataFrame:
        """The records of a source, without those that are left out when the batch runs."""
        kind = catalyst.of(self._spark, "org.apache.spark.sql.types.DataType").fromDDL("BOOLEAN")
        place = [F.col(name) for name in ("topic", "partition", "offset")]
        return records.where(catalyst.invoked(self._spark, self._records, "takes", kind, *place))
