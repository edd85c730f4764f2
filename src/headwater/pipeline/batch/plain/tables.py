"""Tables as a plain batch: the final rows of a table, and the versions of each key."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.lateness import ARRIVAL
from headwater.pipeline.asof import table_changes
from headwater.pipeline.tables.changelog import DELETED, ID, OFFSET, OWN, PARTITION
from headwater.pipeline.wire.wire import GONE, quoted

__all__ = ["FROM", "TO", "VERSION", "columns", "final", "micros", "spans"]

FROM, TO, VERSION = "_plain_from", "_plain_to", "_plain_version"
"""Of a version: the first microsecond at which it is valid, the first at which it is not, and its id."""


def final(rows: DataFrame, changes: DataFrame) -> DataFrame:
    """The newest record of each key, if it is not a delete.

    ``rows``: the table as a view gets it, with its changes.
    """
    newest = Window.partitionBy(ID).orderBy(F.desc(OFFSET), F.desc(PARTITION))
    last = changes.withColumn("_place", F.row_number().over(newest)).where("_place = 1")
    present = last.where(~F.col(DELETED)).drop("_place", *OWN)
    offered = table_changes.offered(rows)
    return present if offered is None else table_changes.offer(present, offered.key, offered.changes)


def spans(changes: DataFrame, key: Sequence[str], time: str) -> DataFrame:
    """Each version of a key with its time of validity.

    Of two with the same start, the later one in the log wins.
    The input is rows, each a version, or changes (``asof/table_changes.py``), some of which are deletes.
    """
    gone = F.coalesce(F.col(GONE), F.lit(False)) if GONE in changes.columns else F.lit(False)
    since = micros(F.col(quoted(time)))
    if GONE in changes.columns and ARRIVAL in changes.columns:
        since = F.when(gone, F.coalesce(since, micros(F.col(ARRIVAL)))).otherwise(since)
    order = F.col(OFFSET) if OFFSET in changes.columns else F.lit(-1)
    shown = [F.col(quoted(name)) for name in columns(changes)]
    key_columns = [F.col(quoted(name)) for name in key]
    rows = changes.select(*shown, since.alias(FROM), gone.alias("_no_row"), order.alias("_place"))
    for column in (*key_columns, F.col(FROM)):
        rows = rows.where(column.isNotNull())
    of_one = Window.partitionBy(*key_columns, FROM).orderBy(F.desc("_place"), F.struct(*shown).desc())
    rows = rows.withColumn("_best", F.row_number().over(of_one)).where("_best = 1")
    rows = rows.withColumn(TO, F.lead(FROM).over(Window.partitionBy(*key_columns).orderBy(FROM)))
    stamp = F.date_format(F.timestamp_micros(FROM), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    numbered = F.when(F.col("_place") >= 0, F.concat(stamp, F.lit("#"), F.col("_place").cast("string")))
    valid = rows.where("NOT _no_row").withColumn(VERSION, F.coalesce(numbered, stamp))
    return valid.drop("_no_row", "_place", "_best")


def columns(rows: DataFrame) -> list[str]:
    """The columns that are not hidden."""
    return [name for name in rows.columns if not name.startswith("_")]


def micros(time: Column) -> Column:
    return F.unix_micros(time)
