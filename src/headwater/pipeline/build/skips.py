"""Skips: the records that a view's plan leaves out, set before each batch.

A batch that fails on a record is run without it (``pipeline/run/isolation.py``). The plan has one object of a
class of ours (``jvm/Skips.java``), and a filter on each source asks it: so a batch can run with other records
left out, and nothing is planned or compiled again. The bounds of late rows work alike
(``pipeline/time/late_split.py``).
"""

from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.pipeline.spark import catalyst

__all__ = ["Range", "Skips"]


class Range(NamedTuple):
    """Offsets of a partition: from the first one up to, not including, the end."""

    topic: str
    partition: int
    first: int
    end: int


class Skips:
    """The records that the plan of one view leaves out. Belongs to the thread of the view's query."""

    def __init__(self, spark: SparkSession) -> None:
        self.aggregates = False
        """Whether the plan has aggregates: one of their rows may fail without a fault of the last record."""
        self._spark = spark
        self._records = catalyst.of(spark, "headwater.Skips")()
        self._set: tuple[Range, ...] = ()

    def set(self, ranges: Iterable[Range]) -> None:
        """Leaves out exactly these from the next batch on. Ranges of one partition do not overlap."""
        wanted = tuple(sorted(ranges))
        if wanted != self._set:
            self._records.set("\n".join("\t".join(map(str, part)) for part in wanted))
            self._set = wanted

    def applied(self, records: DataFrame) -> DataFrame:
        """The records of a source, with a filter that leaves records out when the batch runs."""
        kind = catalyst.of(self._spark, "org.apache.spark.sql.types.DataType").fromDDL("BOOLEAN")
        place = [F.col(name) for name in ("topic", "partition", "offset")]
        return records.where(catalyst.invoked(self._spark, self._records, "takes", kind, *place))
