"""Operators of our own: plain Python over Arrow, inside the streaming plan, with state by key.

An operator takes and returns an ordinary DataFrame, so a view goes on with ``groupBy`` behind it. As a stream it runs in
a **shell** that gives each task its shard's state and hands the names of the files it wrote to the driver, in a hidden row that an
observation collects. In batch the same logic runs once over everything, with no state before it. The publication of a view is
the last operator of its plan.
"""

import gc
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from headwater.decoders import from_json
from headwater.errors import MachineError, UsageError
from headwater.late import duration_us
from headwater.pipeline import blocks, refusals, weights, wire
from headwater.pipeline.delta import alone
from headwater.pipeline.layout import PLAIN
from headwater.pipeline.plan import observations
from headwater.pipeline.points import passes
from headwater.pipeline.spread import NOTHING, Spread, spread
from headwater.pipeline.state import Shard
from headwater.pipeline.statefile import Place
from headwater.pipeline.time import NEVER, PLAN
from headwater.result import Chain

__all__ = [
    "FILE",
    "OBSERVED",
    "Applied",
    "Logic",
    "Moment",
    "Nothing",
    "Plan",
    "Site",
    "Spec",
    "State",
    "Staying",
    "Stretch",
    "Table",
    "Written",
    "answers",
    "arrow",
    "building",
    "horizon_us",
    "run",
    "run_both",
    "sharded",
    "shell",
    "tables",
    "written",
]

OBSERVED = "state"
"""What the observation of an operator's files begins with."""
FILE = "_file"
"""The hidden column: in a row of a task's own, what it has written."""
FOREVER = 1 << 62
Enter = Callable[[pa.RecordBatch], pa.RecordBatch]
Leave = Callable[[pa.Table], pa.Table]


class Moment(NamedTuple):
    """The time of a batch, the same in all of its tasks, in microseconds."""

    watermark: int
    """Up to when the inputs are complete, but for stragglers."""
    now_us: int
    """What the clock says."""
    horizon: int = NEVER
    """No row from before it will come any more, not even a straggler: what only such a row could change may be forgotten."""


GROUPS = {"count", "group", "sessions", "sliding"}
"""Logics that show the key of each group, and no row of it."""

Stretch = tuple[bytes, bytes, int]
"""Entries beside each other: from one up to, not with, another, and at most so many."""


class State(Protocol):
    """What a logic may ask of its shard."""

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """The values of those keys that have one."""
        ...

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What stands at each key, None for nothing: for logics whose changes are a `Delta`."""
        ...

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` up to, not with, ``end``, in order."""
        ...

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        """The entries of many such stretches, of each no more than so many; fastest for those that are in order."""
        ...


class Applied(NamedTuple):
    """What a logic makes of a batch: rows to go on with, what changes in its state (None removes a key), its earliest time-out."""

    rows: pa.Table
    changes: Mapping[bytes, bytes | None]
    open: int | None = None


class Logic(Protocol):
    """Decides; reads and writes nothing. The same rows, in any order, the same state and moment give the same answer.

    Rows have a column ``_key``, the text of their key. A logic is sent to Spark's workers, so it is small and frozen.
    """

    @property
    def kind(self) -> str: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def timed(self) -> str:
        """By what its time-outs go: 'watermark', 'clock', or '' without any. One that has some is also called without rows."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether it has state. Without, what changes is only written down."""
        ...

    @property
    def behind(self) -> str:
        """For one that holds rows back until the watermark has passed: how far before it the event time of what goes on may be."""
        ...

    @property
    def weighs(self) -> bool:
        """Whether it knows rows with a ``_weight``, which are taken out again; one that does not is not applied to them."""
        ...

    @property
    def spares(self) -> tuple[str, ...]:
        """Columns of its input that it takes nothing from but the key that is made of them."""
        ...

    @property
    def layout(self) -> str:
        """How its entries belong to keys (``layout.py``): '' when each is a key and its value."""
        ...

    def schema(self, rows: StructType) -> StructType:
        """The rows that it makes of such rows."""
        ...

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied: ...


class Spec(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What is true of most logics: no time-outs, rows of tables are known, and state that is keys and values."""

    timed: str = ""
    keeps: bool = True
    behind: str = ""
    weighs: bool = True
    spares: tuple[str, ...] = ()
    layout: str = PLAIN


class Staying(Spec, frozen=True, kw_only=True):
    """A logic for which every row comes in and stays: it is not applied to rows of tables."""

    weighs: bool = False


class Nothing:
    """The state before the first batch."""

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:  # noqa: ARG002
        return {}

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:  # noqa: ARG002
        return iter(())

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        return [[] for _ in wanted]


class Plan(msgspec.Struct, frozen=True):
    """What the driver tells the tasks of a batch: its time, and where operators find their state."""

    batch: int
    places: dict[str, Place]
    chains: dict[str, list[Chain]]
    watermark: int = NEVER
    now_us: int = 0
    horizon_us: int = 0
    """How long stragglers are waited for behind the watermark."""
    passed: dict[str, int] = {}
    """The watermark of those operators whose rows have been held back by others before them."""

    def moment(self, operator: str) -> Moment:
        watermark = self.passed.get(operator, self.watermark)
        return Moment(watermark, self.now_us, watermark - self.horizon_us)


class Table(NamedTuple):
    """The rows of a table as a view gets them, which come in and go out, and the changes that they are made of (``current.py``)."""

    rows: DataFrame
    changes: DataFrame
    key: tuple[str, ...]
    """The columns whose text is the id of a change; none when it is something else."""


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task has written: the chain of its shard after the batch, and its earliest time-out."""

    shard: int
    chain: Chain
    open: int | None = None


@dataclass(frozen=True)
class Site:
    """The view that is being built, and its operators so far."""

    shards: int
    ticks: Callable[[], DataFrame]
    """The ticks of the view as a stream, for operators with time-outs."""
    timed: dict[str, str] = field(default_factory=dict)
    """The names of its operators, and by what their time-outs go."""

    layouts: dict[str, str] = field(default_factory=dict)
    """How the state of those is laid out that is not simply keys and values."""
    specs: dict[str, str] = field(default_factory=dict)
    """What each of them is, as text."""

    logics: dict[str, Logic] = field(default_factory=dict)

    behind: dict[str, int] = field(default_factory=dict)
    """Those that hold rows back, and how far behind the watermark these may then be, in microseconds."""

    tables: list[Table] = field(default_factory=list)
    """The tables that it reads."""

    holds: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each operator behind such ones, which they are."""

    horizon_us: int = 0
    """How long the view waits for stragglers."""

    def name(self, logic: Logic, rows: DataFrame) -> str:
        name = f"{logic.kind}{len(self.timed) + 1}"
        self.add(name, logic, rows)
        return name

    def add(self, name: str, logic: Logic, rows: DataFrame) -> None:
        before = {seen.removeprefix(f"{OBSERVED} ") for seen in observations(rows)}
        holds = {each: lag for each, lag in self.behind.items() if each in before}
        if holds:
            self.holds[name] = holds
        if logic.behind:
            self.behind[name] = duration_us(logic.behind)
        self.timed[name] = logic.timed
        kinds = [each.dataType for each in rows.schema.fields if each.name in logic.key]
        exact = "" if all(map(wire.has_plain_identity, kinds)) else " by exact keys"
        self.specs[name] = f"{logic!r}{exact}"
        self.logics[name] = logic
        if logic.layout:
            self.layouts[name] = logic.layout


_site: ContextVar[Site | None] = ContextVar("site", default=None)


@contextmanager
def building(site: Site) -> Iterator[Site]:
    """Operators that are applied meanwhile belong to one view."""
    token = _site.set(site)
    try:
        yield site
    finally:
        _site.reset(token)


def tables() -> list[Table]:
    """The tables of the view that is being built, to add to and to look up; in batch nobody asks for them."""
    site = _site.get()
    return site.tables if site is not None else []


def horizon_us() -> int:
    """How long the view that is being built waits for stragglers; in batch there are none."""
    site = _site.get()
    return site.horizon_us if site is not None else 0


def run(logic: Logic, frame: DataFrame) -> DataFrame:
    """Applies an operator to a DataFrame, streaming or not."""
    frame = weights.carried(logic.kind, frame)
    if wire.WEIGHT in frame.columns and not logic.weighs:
        raise refusals.TAKES_STAYING.error(kind=logic.kind)
    missing = [name for name in logic.key if name not in frame.columns]
    if missing or not logic.key:
        got = ", ".join(logic.key) or "no key"
        raise UsageError(f"{logic.kind}: a key is one or more columns of its input", got=got)
    if logic.kind in GROUPS:
        frame = _grouping(frame, logic.key)
    kind = logic.schema(frame.schema)
    keyed, together = _keyed(logic, frame)
    if not frame.isStreaming:
        return keyed.repartition("_key").mapInArrow(
            _batch_shell(logic, together, arrow(kind)), nullable(kind)
        )
    site = _site.get()
    if site is None:
        raise UsageError(f"{logic.kind} on a stream belongs into a view")
    name = site.name(logic, frame)
    return _observed(name, shell(name, logic, sharded(keyed, site, logic.timed), kind, together.gathered))


def run_both(first: Logic, second: Logic, frame: DataFrame) -> DataFrame:
    """Applies two operators without time-outs to a stream, of which the second takes what the first makes: in blocks (``blocks.py``).

    Rows of the first have a binary ``_key``, whose shard they go to.
    """
    site = _site.get()
    if site is None:
        raise UsageError(f"{second.kind} on a stream belongs into a view")
    keyed, together = _keyed(first, frame)
    name = site.name(first, frame)
    cut = blocks.Cut(site.shards)
    made = _observed(
        name, shell(name, first, sharded(keyed, site, ""), blocks.KIND, together.gathered, leave=cut)
    )
    name = site.name(second, made)
    kind = second.schema(first.schema(frame.schema))
    return _observed(
        name, shell(name, second, made.repartitionById(site.shards, "_shard"), kind, blocks.opened)
    )


def _grouping(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Rows by whose key is grouped: all of a group show the same one, as in Spark's groupBy."""
    forms = {name: wire.without_sign(wire.quoted(name), frame.schema[name].dataType) for name in key}
    changed = {name: F.expr(form) for name, form in forms.items() if form != wire.quoted(name)}
    return frame.withColumns(changed) if changed else frame


def _keyed(logic: Logic, frame: DataFrame) -> tuple[DataFrame, Spread]:
    """The columns as they go into Python, with the text of the key; and how they come together again."""
    key = wire.identity_expression(frame.schema, logic.key)
    columns, together = spread(frame.schema, without=logic.spares)
    return frame.selectExpr(*columns, f"{key} AS _key"), together


def _observed(name: str, out: DataFrame) -> DataFrame:
    """What a shell puts out, without the rows that say what was written, which an observation collects."""
    files = F.collect_set(FILE).alias("files")
    return out.observe(f"{OBSERVED} {name}", files).where(f"{FILE} IS NULL").drop(FILE)


def sharded(keyed: DataFrame, site: Site, timed: str) -> DataFrame:
    """The rows at the shard of their ``_key``, as ``_shard``. With ``timed``, a tick is a row without key in each shard."""
    rows = keyed.selectExpr("*", f"CAST(pmod(crc32(_key), {site.shards}) AS INT) AS _shard")
    if timed:
        every = site.ticks().selectExpr(f"explode(sequence(0, {site.shards - 1})) AS _shard")
        rows = rows.unionByName(every, allowMissingColumns=True)
    return rows.repartitionById(site.shards, "_shard")


def shell(
    name: str,
    logic: Logic,
    rows: DataFrame,
    kind: StructType,
    enter: Enter = NOTHING.gathered,
    *,
    leave: Leave | None = None,
) -> DataFrame:
    """The logic over sharded rows of a stream: its rows, and the hidden ones with what was written. ``enter`` and ``leave``: how rows come in, and go out."""
    out = nullable(kind).add(FILE, StringType())
    return rows.mapInArrow(_stream_shell(name, logic, arrow(kind), enter, leave), out)


def _batch_shell(
    logic: Logic, together: Spread, kind: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def in_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [together.gathered(each) for each in batches]
        if found:
            moment = Moment(FOREVER, NEVER, FOREVER)
            yield from _cast(logic.apply(pa.Table.from_batches(found), Nothing(), moment).rows, kind)

    return in_batch


def _stream_shell(
    name: str, logic: Logic, kind: pa.Schema, enter: Enter, leave: Leave | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def in_stream(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _settled()
        found = [enter(each) for each in batches]
        if found:
            plan = from_json(TaskContext.get().getLocalProperty(PLAN) or "{}", Plan)
            yield from answers(name, logic, found, plan, kind, leave=leave)

    return in_stream


def answers(
    name: str,
    logic: Logic,
    batches: Sequence[pa.RecordBatch],
    plan: Plan,
    kind: pa.Schema,
    *,
    leave: Leave | None = None,
) -> Iterator[pa.RecordBatch]:
    """What a task makes of its rows, shard by shard: theirs, and behind those of each shard a row with what was written."""
    out = kind.append(pa.field(FILE, pa.string()))
    table = pa.Table.from_batches(batches)
    shards = sorted(pc.unique(table.column("_shard")).to_pylist())
    for number in shards:
        mine = table.filter(pc.equal(table.column("_shard"), number)) if len(shards) > 1 else table
        rows = mine.drop_columns(["_shard"])
        if logic.timed:
            rows = rows.filter(pc.is_valid(rows.column("_key")))
        place, attempt = plan.places[name], uuid.uuid4().hex[:12]
        with _uncollected():
            shard = Shard(place, number, plan.chains[name][number]) if logic.keeps else None
            applied = logic.apply(rows, shard or Nothing(), plan.moment(name))
            if shard is not None:
                chain = shard.extended(plan.batch, attempt, applied.changes)
            else:
                chain = alone(place, number, plan.batch, attempt, applied.changes)
        made = leave(applied.rows) if leave is not None else applied.rows
        yield from _cast(made.append_column(FILE, pa.nulls(made.num_rows, pa.string())), out)
        note = msgspec.json.encode(Written(number, chain, applied.open)).decode()
        yield pa.record_batch([*[pa.nulls(1, each.type) for each in kind], pa.array([note])], schema=out)
        passes("shard has answered")


@cache
def _settled() -> None:
    """What a worker has loaded stays. Spark has it collected behind each task: to go through all modules took 50 ms and more, however few the rows."""
    gc.freeze()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles, which would go through all objects of a batch again and again: they are many, and make no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def written(notes: Sequence[str], shards: int) -> dict[int, Written]:
    """What the shards have written in a batch. Of two attempts of a task, which wrote the same, one is taken."""
    found = [from_json(note, Written) for note in sorted(notes)]
    strange = [each.shard for each in found if not 0 <= each.shard < shards]
    if strange:
        raise MachineError(f"a task speaks of shard {strange[0]}", expected=f"0 to {shards - 1}")
    return {each.shard: each for each in found}


def _cast(rows: pa.Table, kind: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield from rows.select(kind.names).cast(kind).to_batches()


def nullable(kind: StructType) -> StructType:
    """The same columns for Spark, where each may be null: the row that ends a shard is all nulls, and code that Spark generates trusts the schema."""
    return StructType([_may_be_null(each) for each in kind.fields])


def _may_be_null(field: StructField) -> StructField:
    kind = field.dataType
    return StructField(
        field.name, nullable(kind) if isinstance(kind, StructType) else kind, True, field.metadata
    )


def arrow(kind: StructType) -> pa.Schema:
    """Columns as they are in Python: any may be null, and what is in a struct is where the struct is."""
    return pa.schema([_nullable(each) for each in to_arrow_schema(kind, timezone="UTC")])


def _nullable(field: pa.Field) -> pa.Field:
    if pa.types.is_struct(field.type):
        field = field.with_type(pa.struct([_nullable(each) for each in field.type]))
    return field.with_nullable(True)
