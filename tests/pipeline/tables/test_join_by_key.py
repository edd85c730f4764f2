"""The live join of two tables from their changes: whatever comes, changes, moves and goes, in any cut and order, the result is that of the tables as they are."""

import random
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from headwater.pipeline.arrow import shard_blocks
from headwater.pipeline.operator.shell import FOREVER, to_arrow
from headwater.pipeline.state import layouts, weighted_entries
from headwater.pipeline.state.layouts import shard_of
from headwater.pipeline.tables.join import KINDS
from headwater.pipeline.tables.join_by_key import NULL_ON, ROUTED, KeyedJoin, Route
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory, interleaved

MOMENT = Moment(FOREVER, NEVER, FOREVER)
LEFT = StructType().add("id", StringType()).add("k", StringType()).add("text", StringType())
RIGHT = StructType().add("k", StringType()).add("n", LongType())
CHANGES = pa.schema(
    [
        ("_left", pa.struct(list(to_arrow(LEFT)))),
        ("_right", pa.struct(list(to_arrow(RIGHT)))),
        ("_on", pa.binary()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_key", pa.string()),
    ]
)
LONG = "long " * 150
hundred = settings(max_examples=100, deadline=None)

keys = st.sampled_from(["a", "b", "ä", "", "[null]", LONG, LONG + "!", None])
lefts = st.tuples(st.sampled_from(["1", "2", LONG]), keys, st.none() | st.sampled_from(["x", LONG]))
rights = st.tuples(keys, st.none() | st.integers(0, 2))
changes = st.lists(
    st.one_of(
        st.tuples(st.just(0), lefts, st.booleans()),
        st.tuples(st.just(1), st.tuples(st.sampled_from(["1", "2", "3"]), rights), st.booleans()),
    ),
    max_size=40,
)
"""A side, a row, and whether it is there from now on. The right table's key is not a column of its rows."""


def identity(side, row, *, single: bool = False) -> str:
    """The text of a row's key; a table that is joined on its key has no other."""
    if not (single and side):
        return row[0]
    return "[null]" if joined_on(side, row) is None else joined_on(side, row)


def shown(side, row):
    return row[1] if side else row


def joined_on(side, row):
    return shown(side, row)[0 if side else 1]


def place(how: str, side: int, row, there: bool) -> bytes | None:
    """What a change is joined on, as Spark says it to the operator."""
    on = joined_on(side, row)
    if not there:
        return None
    if on is None:
        return NULL_ON[side] if how in (("left", "full"), ("right", "full"))[side] else None
    return on.encode()


def table(how: str, part, first: int, *, single: bool = False) -> pa.Table:
    rows = []
    for offset, (side, row, there) in enumerate(part, first):
        kind = RIGHT if side else LEFT
        struct = dict(zip(kind.names, shown(side, row), strict=True))
        key = identity(side, row, single=single)
        pair = (None, struct) if side else (struct, None)
        rows.append((*pair, place(how, side, row, there), 0, offset, key))
    columns = zip(*rows, strict=True) if rows else [[] for _ in CHANGES]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, CHANGES, strict=True)], schema=CHANGES
    )


class Stage:
    """What the stage does around both operators, and the table that their rows make."""

    def __init__(self, how: str, seed: int = 0, *, single: bool = False) -> None:
        self.how, self.single, self.random = how, single, random.Random(seed)
        self.join = KeyedJoin(
            key=("_on",), how=how, shared=("k",), left=LEFT, right=RIGHT, single=(False, single)
        )
        self.routes, self.state = Memory(), Memory()
        self.rows: Counter = Counter()
        self.taken = 0

    def take(self, part: list) -> pa.Table:
        rows = table(self.how, part, self.taken, single=self.single)
        self.taken += len(part)
        shuffled = rows.take(pa.array(self.random.sample(range(len(part)), len(part)), pa.int64()))
        sent, again = (Route().apply(each, self.routes, MOMENT) for each in (rows, shuffled))
        assert sent.rows.equals(again.rows)
        assert list(sent.changes.items()) == list(again.changes.items())
        self.routes.take(sent.changes)
        moved = sent.rows.take(
            pa.array(self.random.sample(range(len(sent.rows)), len(sent.rows)), pa.int64())
        )
        applied, again = (self.join.apply(each, self.state, MOMENT) for each in (sent.rows, moved))
        assert list(again.changes.items()) == list(applied.changes.items())
        assert again.rows.equals(applied.rows)
        assert max(map(len, self.state), default=0) <= 511
        self.state.take(applied.changes)
        for *row, weight in (tuple(row.values()) for row in applied.rows.to_pylist()):
            assert weight
            self.rows[tuple(row)] += weight
        assert min(self.rows.values(), default=0) >= 0
        self.rows = +self.rows
        return applied.rows


def tables(steps, *, single: bool = False) -> list[dict]:
    """Both tables as they are."""
    found: list[dict] = [{}, {}]
    for side, row, there in steps:
        key = identity(side, row, single=single)
        if there:
            found[side][key] = shown(side, row)
        else:
            found[side].pop(key, None)
    return found


def naive(how: str, left: dict, right: dict) -> Counter:
    out: Counter = Counter()
    for one in left.values():
        met = [two for two in right.values() if one[1] is not None and one[1] == two[0]]
        out.update((*one, two[1]) for two in met)
        if not met and how in ("left", "full"):
            out[(*one, None)] += 1
    if how in ("right", "full"):
        met = {one[1] for one in left.values()} - {None}
        out.update((None, two[0], None, two[1]) for two in right.values() if two[0] not in met)
    return out


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("how", KINDS)
@hundred
@given(steps=changes, cuts=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 9))
def test_the_result_is_the_join_of_both_tables_after_every_batch(how, single, steps, cuts, seed):
    stage = Stage(how, seed, single=single)
    bounds = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    for start, end in pairwise(bounds):
        stage.take(steps[start:end])
        assert stage.rows == naive(how, *tables(steps[:end], single=single))
    there = tables(steps, single=single)
    outer = (how in ("left", "full"), how in ("right", "full"))
    kept = [
        row for side in (0, 1) for row in there[side].values() if row[1 - side] is not None or outer[side]
    ]
    assert len(stage.state) == len(stage.routes) == len(kept)


@pytest.mark.parametrize("how", KINDS)
@hundred
@given(steps=changes, seed=st.integers(0, 99))
def test_the_order_of_one_side_against_the_other_does_not_matter(how, steps, seed):
    choose = random.Random(seed)
    queues = [[each for each in steps if each[0] == side] for side in (0, 1)]
    stage = Stage(how, seed)
    for part in interleaved(queues, choose):
        stage.take(part)
    assert stage.rows == naive(how, *tables(steps))


def out(stage: Stage, *part) -> list[str]:
    return sorted(str(tuple(row.values())) for row in stage.take(list(part)).to_pylist())


def test_a_row_that_moves_leaves_one_pair_and_makes_another():
    stage = Stage("inner")
    stage.take([(1, ("1", ("a", 1)), True), (1, ("2", ("b", 2)), True), (0, ("1", "a", "x"), True)])
    assert out(stage, (0, ("1", "b", "x"), True)) == ["('1', 'a', 'x', 1, -1)", "('1', 'b', 'x', 2, 1)"]


def test_a_row_that_moves_and_comes_back_in_one_batch_has_not_moved():
    stage = Stage("inner")
    stage.take([(1, ("1", ("a", 1)), True), (0, ("1", "a", "x"), True)])
    assert out(stage, (0, ("1", "b", "y"), True), (0, ("1", "a", "x"), True)) == []
    assert out(stage, (0, ("1", "b", "y"), True), (0, ("1", "a", "z"), True)) == [
        "('1', 'a', 'x', 1, -1)",
        "('1', 'a', 'z', 1, 1)",
    ]


def test_a_tombstone_for_an_unknown_key_and_an_unchanged_row_change_nothing():
    stage = Stage("full")
    assert out(stage, (0, ("1", "a", "x"), False), (1, ("1", ("a", 1)), False)) == []
    assert (stage.routes, stage.state) == ({}, {})
    stage.take([(0, ("1", "a", "x"), True)])
    before = dict(stage.state)
    assert out(stage, (0, ("1", "a", "x"), True)) == []
    assert stage.state == before


def test_a_delete_before_the_insert_in_one_batch_counts_by_offset():
    stage = Stage("left")
    stage.take([(0, ("1", "a", "x"), True)])
    assert out(stage, (0, ("1", "a", "x"), False), (0, ("1", "a", "y"), True)) == [
        "('1', 'a', 'x', None, -1)",
        "('1', 'a', 'y', None, 1)",
    ]


def test_both_operators_name_the_owner_of_an_entry_so_that_shards_can_be_divided():
    stage = Stage("full")
    stage.take([(0, ("1", LONG, "x"), True), (0, (LONG, "a", "x"), True), (1, ("2", (None, 1)), True)])
    routes, rows = layouts.layout(Route().layout), layouts.layout(stage.join.layout)
    assert {routes.owner(*entry) for entry in stage.routes.items()} == {b"1", LONG.encode(), b"2"}
    owners = {rows.owner(*entry) for entry in stage.state.items()}
    assert owners == {LONG.encode(), b"a", NULL_ON[1]}
    assert any(entry[:1] == weighted_entries.CUT for entry in stage.state)


def test_a_struct_whose_fields_are_always_there_is_null_without_a_match():
    info = StructType().add("kind", StringType(), nullable=False)
    right = StructType().add("k", StringType()).add("info", info)
    join = KeyedJoin(key=("_on",), how="left", shared=("k",), left=LEFT, right=right)
    struct = pa.struct(list(to_arrow(right)))
    schema = CHANGES.set(1, pa.field("_right", struct))
    one = {"id": "1", "k": "a", "text": "x"}
    two = {"k": "b", "info": None}
    rows = [
        (one, None, b"a", 0, 0, "1"),
        (None, two, b"b", 0, 1, "2"),
        ({**one, "k": "b"}, None, b"b", 0, 2, "3"),
    ]
    columns = [
        pa.array(each, field.type) for each, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    sent = Route().apply(pa.table(columns, schema=schema), Memory(), MOMENT).rows
    out = join.apply(sent, Memory(), MOMENT).rows
    shown = to_arrow(join.schema(StructType()))
    assert [row["info"] for row in out.select(shown.names).cast(shown).to_pylist()] == [None, None]


# ---- blocks --------------------------------------------------------------------------------------------


@hundred
@given(
    keys=st.lists(st.binary(max_size=9) | st.just(b"long" * 300), max_size=50),
    shards=st.integers(1, 5),
    size=st.sampled_from([1, 100, 1 << 20]),
)
def test_rows_come_out_of_blocks_at_the_shard_of_their_key(keys, shards, size):
    columns = [keys, [n % 2 == 0 for n in range(len(keys))], keys, [None] * len(keys), [True] * len(keys)]
    rows = pa.table([pa.array(each, field.type) for each, field in zip(columns, ROUTED, strict=True)], schema=ROUTED)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_blocks, "BLOCK_BYTES", size)
        cut = shard_blocks.Cut(shards)(rows)
    assert cut.schema.names == ["_shard", "_block"]
    if not keys:
        assert cut.num_rows == 0
        return
    assert max(len(each.as_py()) for each in cut.column("_block")) < size + 4_000
    found = [row for part in cut.to_batches() for row in shard_blocks.opened(part).to_pylist()]
    for row in found:
        assert row["_shard"] == shard_of(row["_key"], shards)
    assert Counter((row["_key"], row["_side"]) for row in found) == Counter(
        zip(keys, columns[1], strict=True)
    )
