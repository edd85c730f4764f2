"""Applying a logic to a DataFrame, streaming or not.

An operator is plain Python over Arrow inside Spark's plan, with state by key. It takes and returns an
ordinary DataFrame, so a view may continue with ``groupBy``. In a stream it runs in a **shell**, which gives
each task the state of its shard. The names of the files that a task wrote reach the driver in a hidden row,
which an observation collects. In batch the same logic runs once over all rows, with empty state. The last
operator of every view is the one that publishes its rows.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import UsageError
from headwater.pipeline import refusals
from headwater.pipeline.arrow import shard_blocks
from headwater.pipeline.arrow.flatten import Spread, spread
from headwater.pipeline.operator import weights
from headwater.pipeline.operator.building import OBSERVED, Site, current_site
from headwater.pipeline.operator.logic import GROUPS, Logic
from headwater.pipeline.operator.shell import FILE, batch_shell, nullable, shell, to_arrow
from headwater.pipeline.wire import wire

__all__ = ["run", "run_both", "sharded"]


def run(logic: Logic, frame: DataFrame) -> DataFrame:
    """Applies an operator to a DataFrame, streaming or not."""
    frame = weights.carry_weights(logic.kind, frame)
    if wire.WEIGHT in frame.columns and not logic.takes_retractions:
        raise refusals.TAKES_STAYING.error(kind=logic.kind)
    if not logic.key:
        raise UsageError(f"{logic.kind}: the key is empty", expected=f"one or more of {_columns(frame)}")
    missing = [name for name in logic.key if name not in frame.columns]
    if missing:
        raise UsageError(
            f"{logic.kind}: the key {missing[0]!r} is not a column of its input", expected=_columns(frame)
        )
    if logic.kind in GROUPS:
        frame = _with_group_keys(frame, logic.key)
    schema = logic.schema(frame.schema)
    keyed, encoding = _with_key_text(logic, frame)
    if not frame.isStreaming:
        function = batch_shell(logic, encoding, to_arrow(schema))
        return keyed.repartition("_key").mapInArrow(function, nullable(schema))
    site = current_site()
    if site is None:
        raise _outside_view(logic)
    name = site.name(logic, frame)
    rows = sharded(keyed, site, logic.timed)
    return _observe(name, shell(name, logic, rows, schema, encoding.gathered))


def run_both(first: Logic, second: Logic, frame: DataFrame) -> DataFrame:
    """Applies two operators without time-outs to a stream, the second to the rows of the first.

    Between them the rows are in blocks (``pipeline/arrow/shard_blocks.py``). The rows of the first operator
    have a binary ``_key``, by which they are sharded.
    """
    site = current_site()
    if site is None:
        raise _outside_view(second)
    keyed, encoding = _with_key_text(first, frame)
    name = site.name(first, frame)
    rows = sharded(keyed, site, "")
    cut = shard_blocks.Cut(site.shards)
    blocks = _observe(name, shell(name, first, rows, shard_blocks.KIND, encoding.gathered, to_output=cut))
    name = site.name(second, blocks)
    schema = second.schema(first.schema(frame.schema))
    blocks = blocks.repartitionById(site.shards, "_shard")
    return _observe(name, shell(name, second, blocks, schema, shard_blocks.opened))


def sharded(keyed: DataFrame, site: Site, timed: str) -> DataFrame:
    """The rows repartitioned by ``_shard``, the shard of their ``_key``.

    With ``timed``, each shard gets a row without key for a tick.
    """
    rows = keyed.selectExpr("*", f"CAST(pmod(crc32(_key), {site.shards}) AS INT) AS _shard")
    if timed:
        ticks = site.ticks().selectExpr(f"explode(sequence(0, {site.shards - 1})) AS _shard")
        rows = rows.unionByName(ticks, allowMissingColumns=True)
    return rows.repartitionById(site.shards, "_shard")


def _with_group_keys(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows with equal keys in one form, like 0.0 for -0.0, as in Spark's groupBy."""
    forms = {name: wire.without_sign(wire.quoted(name), frame.schema[name].dataType) for name in key}
    changed = {name: F.expr(form) for name, form in forms.items() if form != wire.quoted(name)}
    return frame.withColumns(changed) if changed else frame


def _with_key_text(logic: Logic, frame: DataFrame) -> tuple[DataFrame, Spread]:
    """The columns as they are sent to Python, with the text of the key, and how to restore them there."""
    key = wire.identity_expression(frame.schema, logic.key)
    columns, encoding = spread(frame.schema, without=logic.key_only)
    return frame.selectExpr(*columns, f"{key} AS _key"), encoding


def _observe(name: str, out: DataFrame) -> DataFrame:
    """The rows of a shell without its hidden rows, which an observation collects."""
    files = F.collect_set(FILE).alias("files")
    return out.observe(f"{OBSERVED} {name}", files).where(f"{FILE} IS NULL").drop(FILE)


def _outside_view(logic: Logic) -> UsageError:
    return UsageError(
        f"{logic.kind}: a stream can only be processed inside a view",
        hint="call it in a function with @app.view(…)",
    )


def _columns(frame: DataFrame) -> str:
    return ", ".join(name for name in frame.columns if not name.startswith("_"))
