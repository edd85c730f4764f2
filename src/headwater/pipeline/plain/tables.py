"""Tables in plain batch: the rows that a table has in the end, and the versions that each key has had."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from headwater.late import ARRIVAL
from headwater.pipeline import history
from headwater.pipeline.current import DELETED, ID, OFFSET, OWN, PARTITION
from headwater.pipeline.wire import GONE, quoted

__all__ = ["FROM", "TO", "VERSION", "columns", "final", "micros", "spans"]

FROM, TO, VERSION = "_plain_from", "_plain_to", "_plain_version"
"""Of a version: the first microsecond at which it holds, the first at which it does not any more, and its id."""


def final(rows: DataFrame, changes: DataFrame) -> DataFrame:
    """The newest record of each key, if it is not a delete. ``rows`` is the table as a view gets it, which knows its history."""
    newest = Window.partitionBy(ID).orderBy(F.desc(OFFSET), F.desc(PARTITION))
    last = changes.withColumn("_place", F.row_number().over(newest)).where("_place = 1")
    there = last.where(~F.col(DELETED)).drop("_place", *OWN)
    known = history.offered(rows)
    return there if known is None else history.offer(there, known.key, known.changes)


def spans(changes: DataFrame, key: Sequence[str], time: str) -> DataFrame:
    """Each version of a key with the time from which and up to which it holds. Of two from the same time the later in the log counts.

    The input is rows, of which each is a version, or changes (``history.py``), of which some are deletes.
    """
    gone = F.coalesce(F.col(GONE), F.lit(False)) if GONE in changes.columns else F.lit(False)
    since = micros(F.col(quoted(time)))
    if GONE in changes.columns and ARRIVAL in changes.columns:
        since = F.when(gone, F.coalesce(since, micros(F.col(ARRIVAL)))).otherwise(since)
    order = F.col(OFFSET) if OFFSET in changes.columns else F.lit(-1)
    shown = [F.col(quoted(name)) for name in columns(changes)]
    named = [F.col(quoted(name)) for name in key]
    found = changes.select(*shown, since.alias(FROM), gone.alias("_no_row"), order.alias("_place"))
    for each in (*named, F.col(FROM)):
        found = found.where(each.isNotNull())
    of_one = Window.partitionBy(*named, FROM).orderBy(F.desc("_place"), F.struct(*shown).desc())
    found = found.withColumn("_best", F.row_number().over(of_one)).where("_best = 1")
    found = found.withColumn(TO, F.lead(FROM).over(Window.partitionBy(*named).orderBy(FROM)))
    stamp = F.date_format(F.timestamp_micros(FROM), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    numbered = F.when(F.col("_place") >= 0, F.concat(stamp, F.lit("#"), F.col("_place").cast("string")))
    there = found.where("NOT _no_row").withColumn(VERSION, F.coalesce(numbered, stamp))
    return there.drop("_no_row", "_place", "_best")


def columns(rows: DataFrame) -> list[str]:
    """Those that are not hidden."""
    return [name for name in rows.columns if not name.startswith("_")]


def micros(time: Column) -> Column:
    return F.unix_micros(time)
