"""Tables without Spark: what changes of rows come to, in whatever batches."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.pipeline.output.changed_rows import ChangedRows
from headwater.pipeline.output.complete_rows import CompleteRows
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.tables.changelog import Changelog
from headwater.pipeline.time.watermark import Moment
from support.memorystate import Memory

KIND = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("_deleted", pa.bool_()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_key", pa.string()),
    ]
)
MOMENT = Moment(0, 0)
LOGIC = Changelog(rows="…")

changes = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([None, "a", "b", "c"])), max_size=30
)  # a key, and its row from then on
cuts = st.lists(st.integers(0, 30), max_size=4)


def batch(log):
    """Changes as (offset, key, name or None) as the source hands them on."""
    rows = [
        {"id": key if name else None, "name": name, "_deleted": name is None, "_offset": offset}
        | {"_partition": 0, "_key": str(key)}
        for offset, key, name in log
    ]
    return pa.Table.from_pylist(rows, schema=KIND)


def taken(state, log):
    """The weighted rows that a batch makes."""
    applied = LOGIC.apply(batch(log), state, MOMENT)
    state.take(applied.changes)
    return [(row["id"], row["name"], row["_weight"]) for row in applied.rows.to_pylist()]


def apply(rows, weighted):
    """Takes weighted rows into a bag of rows, in which no weight may be below nothing."""
    for key, name, weight in weighted:
        rows[key, name] = rows.get((key, name), 0) + weight
    assert set(rows.values()) <= {0, 1}
    return {row for row, weight in rows.items() if weight}


@given(changes, cuts, st.randoms())
def test_weights_come_to_the_last_row_of_each_key_however_the_changes_are_cut(log, at, chance):
    numbered = [(offset, *change) for offset, change in enumerate(log)]
    state, bag = Memory(), {}
    for start, end in zip([0, *sorted(at)], [*sorted(at), len(numbered)], strict=True):
        part = numbered[start:end]
        chance.shuffle(part)
        weighted = taken(state, part)
        apply(bag, weighted)
        assert len({row[:2] for row in weighted}) == len(weighted)  # nothing that comes and goes at once
    last = dict(log)
    assert apply(bag, []) == {(key, name) for key, name in last.items() if name is not None}
    assert {int(key) for key in state} == {key for key, name in last.items() if name is not None}


@given(changes, st.randoms())
def test_the_answer_does_not_depend_on_the_order_of_rows(log, chance):
    numbered = [(offset, *change) for offset, change in enumerate(log)]
    first = LOGIC.apply(batch(numbered), Nothing(), MOMENT)
    chance.shuffle(numbered)
    again = LOGIC.apply(batch(numbered), Nothing(), MOMENT)
    assert first.rows.equals(again.rows)
    assert list(first.changes.items()) == list(again.changes.items())


@pytest.mark.parametrize(
    ("before", "then", "made"),
    [
        ([], [(0, 1, "a")], [(1, "a", 1)]),
        ([(0, 1, "a")], [(1, 1, "b")], [(1, "a", -1), (1, "b", 1)]),
        ([(0, 1, "a")], [(1, 1, None)], [(1, "a", -1)]),
        ([(0, 1, "a")], [(1, 1, "a")], []),  # a repetition
        ([], [(0, 1, None)], []),  # a key never seen
        ([], [(0, 1, None), (1, 1, "a")], [(1, "a", 1)]),  # delete before insert
        ([(0, 1, "a")], [(1, 1, "b"), (2, 1, "c")], [(1, "a", -1), (1, "c", 1)]),  # twice in a batch
        ([(0, 1, "a")], [(1, 1, "b"), (2, 1, "a")], []),  # and back
        ([], [(0, 1, "a"), (1, 1, None)], []),
        ([(0, 1, "a")], [], []),
    ],
)
def test_a_change_becomes_weights(before, then, made):
    state = Memory()
    taken(state, before)
    assert taken(state, then) == made


def published(state, *rows, logic=None, watermark=0):
    """What a view publishes of weighted rows (key, value, weight): by key, the row or None."""
    columns = {
        "_key": pa.array([key for key, _, _ in rows], pa.string()),
        "_value": pa.array([f'{{"v":{value}}}' for _, value, _ in rows], pa.string()),
        "_weight": pa.array([weight for _, _, weight in rows], pa.int32()),
        "_until": pa.array([10] * len(rows), pa.int64()),
    }
    found = (logic or ChangedRows(weighted=True)).apply(pa.table(columns), state, Moment(watermark, 0))
    state.take(found.changes)
    return {
        key.decode(errors="replace"): value and value.decode(errors="replace")
        for key, value in found.changes.items()
    }


def test_weighted_rows_are_published_as_rows_and_deletions():
    state = Memory()
    assert published(state, ("a", 1, 1), ("b", 1, 1)) == {
        "a": '{"v":1,"_revision":1}',
        "b": '{"v":1,"_revision":1}',
    }
    assert published(state, ("a", 1, -1), ("a", 2, 1)) == {"a": '{"v":2,"_revision":2}'}
    assert published(state, ("a", 2, -1), ("a", 2, 1), ("b", 1, -1)) == {
        "b": None
    }  # the first comes to nothing
    assert published(state, ("b", 1, -1), ("c", 5, -1)) == {}  # of a row that never was
    assert published(state) == {}
    assert list(state) == [b"a"]


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 2, 1)],  # and the one that was published stays
        [("b", 1, 1), ("b", 2, 1)],
        [("a", 1, -1), ("a", 2, 1), ("a", 3, 1)],
    ],
)
def test_two_rows_with_one_key_that_differ_are_an_error_that_names_it(rows):
    state = Memory()
    published(state, ("a", 1, 1))
    with pytest.raises(UsageError, match=f"not unique: there are two rows with '{rows[0][0]}'"):
        published(state, *rows)


def test_a_weighted_row_that_is_not_complete_waits_and_may_go_before():
    ready, state = CompleteRows(weighted=True), Memory()
    published(state, ("a", 1, 1), ("b", 1, 1), logic=ready)
    published(state, ("a", 1, -1), ("b", 1, -1), ("b", 2, 1), logic=ready)
    assert published(state, logic=ready, watermark=9) == {}  # not yet
    made = published(state, logic=ready, watermark=10)
    assert {key: value for key, value in made.items() if key[0] == "r"} == {"rb": '{"v":2,"_revision":1}'}
    assert published(state, ("b", 2, -1), logic=ready, watermark=11) == {"rb": None}
