"""The live join: whatever is inserted, updated and deleted on either side, in any cut, the result is that of the tables as they are."""

import random
from collections import Counter
from itertools import pairwise, product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.tables.join import KINDS
from headwater.pipeline.tables.join_by_row import RowJoin
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory, interleaved

MOMENT = Moment(FOREVER, NEVER, FOREVER)
LEFT = pa.struct([("id", pa.int64()), ("k", pa.string()), ("text", pa.string())])
RIGHT = pa.struct([("k", pa.string()), ("n", pa.int64())])
ROWS = pa.schema([("_on1", pa.string()), ("_left", LEFT), ("_right", RIGHT), ("_weight", pa.int32()), ("_key", pa.string())])  # fmt: skip
LONG = "long " * 150
hundred = settings(max_examples=100, deadline=None)

keys = st.sampled_from(["a", "b", "ä", "", "[null]", LONG, None])
lefts = st.tuples(st.integers(0, 3), keys, st.none() | st.sampled_from(["x", "", LONG, LONG + "!"]))
rights = st.tuples(keys, st.none() | st.integers(0, 2))
sides = st.one_of(lefts.map(lambda row: (0, row)), rights.map(lambda row: (1, row)))
changes = st.lists(st.tuples(sides, st.booleans()), max_size=40)


def table(weighted) -> pa.Table:
    """Changes as a logic gets them."""
    columns = [[], [], [], [], []]
    for (side, row), weight in weighted:
        kind = RIGHT if side else LEFT
        found = dict(zip((kind.field(n).name for n in range(kind.num_fields)), row, strict=True))
        key = found["k"]
        values = (
            key,
            None if side else found,
            found if side else None,
            weight,
            "[null]" if key is None else key,
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return pa.table(
        [pa.array(column, each.type) for column, each in zip(columns, ROWS, strict=True)], schema=ROWS
    )


def naive(how: str, left: Counter, right: Counter) -> Counter:
    """The join of two tables as they are."""
    out = Counter()
    for (one, n), (two, m) in product(left.items(), right.items()):
        if one[1] is not None and one[1] == two[0]:
            out[(*one, two[1])] += n * m
    if how in ("left", "full"):
        for one, n in left.items():
            if one[1] is None or all(two[0] != one[1] for two in right):
                out[(*one, None)] += n
    if how in ("right", "full"):
        for two, n in right.items():
            if two[0] is None or all(one[1] != two[0] for one in left):
                out[(None, two[0], None, two[1])] += n
    return out


def weighted(steps):
    """Changes that make sense: only what is there goes away. What is taken out that is not there comes in instead."""
    there: Counter = Counter()
    for row, comes in steps:
        weight = 1 if comes or not there[row] else -1
        there[row] += weight
        yield row, weight


class Stage:
    """What the stage does around a logic, and the table that its rows make."""

    def __init__(self, logic, seed: int = 0) -> None:
        self.logic, self.random = logic, random.Random(seed)
        self.state, self.rows = Memory(), Counter()

    def take(self, part: list) -> pa.Table:
        applied = self.logic.apply(table(part), self.state, MOMENT)
        again = self.logic.apply(table(self.random.sample(part, len(part))), self.state, MOMENT)
        assert list(again.changes.items()) == list(applied.changes.items())
        assert again.rows.equals(applied.rows)
        assert max(map(len, self.state), default=0) <= 511
        self.state.take(applied.changes)
        out = [tuple(row.values()) for row in applied.rows.to_pylist()]
        assert len({row[:-1] for row in out}) == len(out), "not consolidated"
        for *row, weight in out:
            assert weight
            self.rows[tuple(row)] += weight
            assert self.rows[tuple(row)] >= 0
        self.rows = +self.rows
        return applied.rows


def tables(steps) -> tuple[Counter, Counter]:
    found: tuple[Counter, Counter] = (Counter(), Counter())
    for (side, row), weight in steps:
        found[side][row] += weight
    return +found[0], +found[1]


def logic(how: str) -> RowJoin:
    return RowJoin(key=("_on1",), how=how, shared=("k",))


@pytest.mark.parametrize("how", KINDS)
@hundred
@given(steps=changes, cuts=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 9))
def test_the_result_is_the_join_of_both_tables_after_every_batch(how, steps, cuts, seed):
    steps = list(weighted(steps))
    stage = Stage(logic(how), seed)
    bounds = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    for start, end in pairwise(bounds):
        stage.take(steps[start:end])
        assert stage.rows == naive(how, *tables(steps[:end]))
    for side in (0, 1):
        kept = [row for row in tables(steps)[side] if row[1 - side] is not None]
        assert sum(b"\xff%c" % b"lr"[side] in entry for entry in stage.state) >= len(kept)
    assert len(stage.state) == sum(
        row[1 - side] is not None for side in (0, 1) for row in tables(steps)[side]
    )


@pytest.mark.parametrize("how", KINDS)
@hundred
@given(steps=changes, seed=st.integers(0, 99))
def test_the_order_of_one_side_against_the_other_does_not_matter(how, steps, seed):
    steps, choose = list(weighted(steps)), random.Random(seed)
    queues = [[each for each in steps if each[0][0] == side] for side in (0, 1)]
    stage = Stage(logic(how), seed)
    for part in interleaved(queues, choose):
        stage.take(part)
    assert stage.rows == naive(how, *tables(steps))
    whole = logic(how).apply(table(steps), Nothing(), MOMENT)
    assert (
        Counter({tuple(row[:-1]): row[-1] for row in map(list, map(dict.values, whole.rows.to_pylist()))})
        == stage.rows
    )
    assert {**whole.changes} == stage.state


def one_by_one(how: str, *parts: list) -> list[list[tuple]]:
    """What goes out with each batch."""
    stage = Stage(logic(how))
    return [sorted(map(str, map(tuple, map(dict.values, stage.take(part).to_pylist())))) for part in parts]


def left(number: int, key: str | None, text: str = "x"):
    return (0, (number, key, text))


def right(key: str | None, n: int = 1):
    return (1, (key, n))


def test_the_row_without_a_partner_goes_with_the_first_match_and_comes_back_after_the_last():
    out = one_by_one(
        "left",
        [(left(1, "a"), 1)],
        [(right("a", 1), 1)],
        [(right("a", 2), 1)],
        [(right("a", 1), -1)],
        [(right("a", 2), -1)],
    )
    assert out == [
        ["(1, 'a', 'x', None, 1)"],
        ["(1, 'a', 'x', 1, 1)", "(1, 'a', 'x', None, -1)"],
        ["(1, 'a', 'x', 2, 1)"],
        ["(1, 'a', 'x', 1, -1)"],
        ["(1, 'a', 'x', 2, -1)", "(1, 'a', 'x', None, 1)"],
    ]


def test_an_update_that_changes_the_key_leaves_one_pair_and_makes_another():
    rights = [(right("a", 1), 1), (right("b", 2), 1)]
    out = one_by_one("inner", [*rights, (left(1, "a"), 1)], [(left(1, "a"), -1), (left(1, "b"), 1)])
    assert out[1] == ["(1, 'a', 'x', 1, -1)", "(1, 'b', 'x', 2, 1)"]


def test_what_comes_and_goes_in_one_batch_was_never_there():
    out = one_by_one("full", [(left(1, "a"), 1), (right("a"), 1)], [(left(1, "a"), -1), (left(1, "a"), 1)])
    assert out == [["(1, 'a', 'x', 1, 1)"], []]
    out = one_by_one("full", [(right("a"), -1), (right("a"), 1)])
    assert out == [[]]


def test_a_row_that_leaves_while_its_partner_changes_goes_out_once():
    out = one_by_one(
        "inner",
        [(left(1, "a"), 1), (right("a", 1), 1)],
        [(left(1, "a"), -1), (right("a", 1), -1), (right("a", 2), 1)],
    )
    assert out[1] == ["(1, 'a', 'x', 1, -1)"]


class Counted(Memory):
    """State that counts what is read of it."""

    read = 0

    def get(self, asked):
        found = super().get(asked)
        self.read += len(found)
        return found

    def each(self, asked):
        found = super().each(asked)
        self.read += len(found) - found.count(None)
        return found

    def between(self, start, end):
        for entry in super().between(start, end):
            self.read += 1
            yield entry

    def stretches(self, wanted):
        found = super().stretches(wanted)
        self.read += sum(map(len, found)) - sum(len(list(Memory.between(self, *each[:2]))) for each in wanted)
        return found


@pytest.mark.parametrize("how", KINDS)
def test_a_key_with_very_many_rows_costs_what_changes(how):
    many = [(left(n, "a"), 1) for n in range(5000)]
    state = Counted(logic(how).apply(table([*many, (right("a"), 1)]), Nothing(), MOMENT).changes)
    for part in ([(left(9000, "a"), 1)], [(left(7, "a"), -1)], [(left(7, "a"), -1), (left(7, "a", "y"), 1)]):
        state.read = 0
        applied = logic(how).apply(table(part), state, MOMENT)
        assert applied.rows.num_rows == len(part)
        assert list(applied.changes) == sorted(applied.changes)
        assert len(applied.changes) == len(part)
        assert state.read <= 5


@pytest.mark.parametrize("empty", [0, 1])
def test_a_side_that_is_empty_and_one_that_is_filled_later(empty):
    rows = [(left(1, "a"), 1), (right("a"), 1)]
    out = one_by_one("full", [rows[1 - empty]], [], [rows[empty]])
    assert [len(each) for each in out] == [1, 0, 2]
