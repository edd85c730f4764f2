"""Operators of our own: plain Python over Arrow, inside the streaming plan, with state by key.

An operator takes and returns an ordinary DataFrame, so a view goes on with ``groupBy`` behind it. As a stream it runs in
a **shell** that gives each task its shard's state and hands the names of the files it wrote to the driver, in a hidden row that an
observation collects. In batch the same logic runs once over everything, with no state before it.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import MachineError, UsageError
from headwater.pipeline import wire
from headwater.pipeline.state import Place, Shard
from headwater.result import Chain

__all__ = ["OBSERVED", "PLAN", "Applied", "Logic", "Lookup", "Plan", "Site", "building", "run", "written"]

PLAN = "headwater.plan"
"""The local property that tells the tasks of a batch where their state is."""
OBSERVED = "state"
"""What the observation of an operator's files begins with."""

Lookup = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]


class Applied(NamedTuple):
    """What a logic makes of a batch: rows to go on with, and what changes in its state. None removes a key."""

    rows: pa.Table
    changes: dict[bytes, bytes | None]


class Logic(Protocol):
    """Decides; reads and writes nothing. The same rows, in any order, and the same state give the same answer.

    Rows have a column ``_key``, the text of their key. A logic is sent to Spark's workers, so it is small and frozen.
    """

    @property
    def kind(self) -> str: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    def schema(self, rows: StructType) -> StructType:
        """The rows that it makes of such rows."""
        ...

    def apply(self, rows: pa.Table, values: Lookup) -> Applied: ...


class Plan(msgspec.Struct, frozen=True):
    """Where the operators of a batch find their state."""

    batch: int
    places: dict[str, Place]
    chains: dict[str, list[Chain]]


class Written(msgspec.Struct, frozen=True):
    """What a task has written: the chain of its shard after the batch."""

    shard: int
    chain: Chain


class Site(NamedTuple):
    """The view that is being built, and the names of its operators so far."""

    shards: int
    names: list[str]


_site: ContextVar[Site | None] = ContextVar("site", default=None)


@contextmanager
def building(shards: int) -> Iterator[Site]:
    """Operators that are applied meanwhile belong to one view."""
    site = Site(shards, [])
    token = _site.set(site)
    try:
        yield site
    finally:
        _site.reset(token)


def run(logic: Logic, frame: DataFrame) -> DataFrame:
    """Applies an operator to a DataFrame, streaming or not."""
    missing = [name for name in logic.key if name not in frame.columns]
    if missing or not logic.key:
        got = ", ".join(logic.key) or "no key"
        raise UsageError(f"{logic.kind}: a key is one or more columns of its input", got=got)
    kind = logic.schema(frame.schema)
    key = wire.key_expression(frame.schema, logic.key)
    keyed = frame.selectExpr("*", f"{key} AS _key")
    if not frame.isStreaming:
        return keyed.repartition("_key").mapInArrow(_batch_shell(logic, _arrow(kind)), kind)
    site = _site.get()
    if site is None:
        raise UsageError(f"{logic.kind} on a stream belongs into a view")
    name = f"{logic.kind}{len(site.names) + 1}"
    site.names.append(name)
    sharded = keyed.selectExpr("*", f"pmod(hash(_key), {site.shards}) AS _shard").repartition(
        site.shards, "_key"
    )
    with_files = StructType([*kind.fields]).add("_file", "string")
    out = sharded.mapInArrow(_stream_shell(name, logic, _arrow(kind)), with_files)
    files = F.collect_set("_file").alias("files")
    return out.observe(f"{OBSERVED} {name}", files).where("_file IS NULL").drop("_file")


def _batch_shell(
    logic: Logic, kind: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def shell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            yield from _cast(logic.apply(pa.Table.from_batches(found), lambda _: {}).rows, kind)

    return shell


def _stream_shell(
    name: str, logic: Logic, kind: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    out = kind.append(pa.field("_file", pa.string()))

    def shell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if not found:
            return
        rows = pa.Table.from_batches(found)
        plan = msgspec.json.decode(TaskContext.get().getLocalProperty(PLAN) or "{}", type=Plan)
        number = rows.column("_shard")[0].as_py()
        shard = Shard(plan.places[name], number, plan.chains[name][number])
        applied = logic.apply(rows.drop_columns(["_shard"]), shard.get)
        chain = shard.extended(plan.batch, uuid.uuid4().hex[:12], applied.changes)
        yield from _cast(
            applied.rows.append_column("_file", pa.nulls(applied.rows.num_rows, pa.string())), out
        )
        note = msgspec.json.encode(Written(number, chain)).decode()
        hidden = [pa.nulls(1, field.type) for field in kind]
        yield pa.record_batch([*hidden, pa.array([note])], schema=out)

    return shell


def written(notes: Sequence[str], chains: list[Chain]) -> list[Chain]:
    """The chains of all shards after a batch. Of two attempts of a task, which wrote the same, one is taken."""
    after = list(chains)
    for note in sorted(notes):
        found = msgspec.json.decode(note, type=Written)
        if not 0 <= found.shard < len(after):
            raise MachineError(f"a task speaks of shard {found.shard}", expected=f"0 to {len(after) - 1}")
        after[found.shard] = found.chain
    return after


def _cast(rows: pa.Table, kind: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield from rows.select(kind.names).cast(kind).to_batches()


def _arrow(kind: StructType) -> pa.Schema:
    schema: pa.Schema = to_arrow_schema(kind, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in schema])
