"""The shell of an operator: it runs the logic in Spark's tasks, with the state of their shards."""

import gc
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from headwater.decoders import from_json
from headwater.pipeline.arrow.flatten import NOTHING, Spread
from headwater.pipeline.kill_points import passes
from headwater.pipeline.operator.logic import Logic
from headwater.pipeline.operator.messages import Plan, Written
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.state.delta import stateless_file
from headwater.pipeline.state.shard import Shard
from headwater.pipeline.time.watermark import NEVER, PLAN, Moment

__all__ = ["FILE", "FOREVER", "answers", "batch_shell", "nullable", "shell", "to_arrow"]


FILE = "_file"
"""The hidden column: it is null, except in the last row of each shard, which reports what was written."""
FOREVER = 1 << 62
"""The watermark in batch: all rows are there."""
FromInput = Callable[[pa.RecordBatch], pa.RecordBatch]
ToOutput = Callable[[pa.Table], pa.Table]
Shell = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def shell(
    name: str,
    logic: Logic,
    rows: DataFrame,
    schema: StructType,
    from_input: FromInput = NOTHING.gathered,
    *,
    to_output: ToOutput | None = None,
) -> DataFrame:
    """The logic over sharded rows of a stream: its rows, and hidden rows that report what was written.

    ``from_input`` decodes the rows that Spark sends, ``to_output`` encodes those that it gets.
    """
    out = nullable(schema).add(FILE, StringType())
    return rows.mapInArrow(_stream_shell(name, logic, to_arrow(schema), from_input, to_output), out)


def batch_shell(logic: Logic, encoding: Spread, schema: pa.Schema) -> Shell:
    """The function that runs a logic once over all rows, with empty state."""

    def in_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoded = [encoding.gathered(batch) for batch in batches]
        if decoded:
            moment = Moment(FOREVER, NEVER, FOREVER)
            yield from _cast(logic.apply(pa.Table.from_batches(decoded), Nothing(), moment).rows, schema)

    in_batch.__name__ = logic.kind  # by which the plan's reader recognizes an aggregate
    return in_batch


def _stream_shell(
    name: str, logic: Logic, schema: pa.Schema, from_input: FromInput, to_output: ToOutput | None
) -> Shell:
    def in_stream(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_modules()
        decoded = [from_input(batch) for batch in batches]
        if decoded:
            plan = from_json(TaskContext.get().getLocalProperty(PLAN) or "{}", Plan)
            yield from answers(name, logic, decoded, plan, schema, to_output=to_output)

    return in_stream


def answers(
    name: str,
    logic: Logic,
    batches: Sequence[pa.RecordBatch],
    plan: Plan,
    schema: pa.Schema,
    *,
    to_output: ToOutput | None = None,
) -> Iterator[pa.RecordBatch]:
    """The output of a task: for each shard its rows, then a hidden row that reports what was written."""
    out_schema = schema.append(pa.field(FILE, pa.string()))
    table = pa.Table.from_batches(batches)
    shards = sorted(pc.unique(table.column("_shard")).to_pylist())
    for number in shards:
        shard_rows = table.filter(pc.equal(table.column("_shard"), number)) if len(shards) > 1 else table
        rows = shard_rows.drop_columns(["_shard"])
        if logic.timed:
            rows = rows.filter(pc.is_valid(rows.column("_key")))
        place, attempt = plan.places[name], uuid.uuid4().hex[:12]
        with _without_garbage_collection():
            shard = Shard(place, number, plan.chains[name][number]) if logic.keeps else None
            applied = logic.apply(rows, shard or Nothing(), plan.moment(name))
            if shard is not None:
                chain = shard.extended(plan.batch, attempt, applied.changes)
            else:
                chain = stateless_file(place, number, plan.batch, attempt, applied.changes)
        out = to_output(applied.rows) if to_output is not None else applied.rows
        yield from _cast(out.append_column(FILE, pa.nulls(out.num_rows, pa.string())), out_schema)
        report = msgspec.json.encode(Written(number, chain, applied.open, applied.ends)).decode()
        nulls = [pa.nulls(1, field.type) for field in schema]
        yield pa.record_batch([*nulls, pa.array([report])], schema=out_schema)
        passes("shard has answered")


@cache
def _freeze_modules() -> None:
    """Exempts the loaded modules from garbage collection.

    Spark runs one after each task, which took 50 ms or more for them.
    """
    gc.freeze()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A batch has very many objects and no cycles: collections would only take time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _cast(rows: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield from rows.select(schema.names).cast(schema).to_batches()


def nullable(schema: StructType) -> StructType:
    """The same columns for Spark, all nullable.

    Hidden rows consist of nulls, and Spark's generated code trusts the schema.
    """
    return StructType([_nullable_field(field) for field in schema.fields])


def _nullable_field(field: StructField) -> StructField:
    kind = field.dataType
    return StructField(
        field.name, nullable(kind) if isinstance(kind, StructType) else kind, True, field.metadata
    )


def to_arrow(schema: StructType) -> pa.Schema:
    """The columns in Arrow, all nullable, the fields of structs too."""
    return pa.schema([_nullable_arrow(field) for field in to_arrow_schema(schema, timezone="UTC")])


def _nullable_arrow(field: pa.Field) -> pa.Field:
    if pa.types.is_struct(field.type):
        field = field.with_type(pa.struct([_nullable_arrow(inner) for inner in field.type]))
    return field.with_nullable(True)
