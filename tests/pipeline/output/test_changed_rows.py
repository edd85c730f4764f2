"""What a view publishes of rows that come in and go out: of each key the one that is left, and nothing of what cancels."""

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.output.changed_rows import ORDER, ChangedRows
from headwater.pipeline.output.net_rows import net_by_key
from headwater.pipeline.time.watermark import Moment
from support.memorystate import Memory

MOMENT = Moment(FOREVER, 0, FOREVER)
texts = st.sampled_from(["{}", '{"n":1}', '{"n":2}', '{"n":3}'])
steps = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), texts, st.sampled_from([-2, -1, 1, 1, 2])), max_size=20
)


def table(rows) -> pa.Table:
    kind = pa.schema([("_key", pa.string()), ("_value", pa.string()), ("_weight", pa.int32())])
    return pa.table([pa.array(column, each.type) for column, each in zip(list(zip(*rows, strict=True)) or [[]] * 3, kind, strict=True)], schema=kind)  # fmt: skip


def naive(rows) -> dict | None:
    """None when a key has two rows that differ."""
    found = {}
    for key in sorted({row[0] for row in rows}):
        left: Counter = Counter()
        for at, value, weight in rows:
            left[value] += weight if at == key else 0
        came = +left
        if len(came) > 1:
            return None
        if any(left.values()):
            row = next(iter(came), None)
            found[key.encode()] = (row and row.encode(), came.total(), (-left).total())
    return found


@settings(max_examples=300, deadline=None)
@given(rows=steps, seed=st.integers(0, 9))
def test_of_each_key_the_row_that_is_left(rows, seed):
    expected = naive(rows)
    if expected is None:
        with pytest.raises(UsageError, match="not unique"):
            net_by_key(table(rows))
        return
    found = net_by_key(table(random.Random(seed).sample(rows, len(rows))))
    assert list(found.items()) == list(expected.items())


def test_a_second_row_of_a_key_is_refused_and_a_new_one_gets_the_next_revision():
    state = Memory()
    logic = ChangedRows(weighted=True)
    state.take(logic.apply(table([("a", '{"n":1}', 1), ("b", '{"n":1}', 1)]), state, MOMENT).changes)
    with pytest.raises(UsageError, match="'a'"):
        logic.apply(table([("a", '{"n":2}', 1)]), state, MOMENT)
    changes = logic.apply(
        table([("a", '{"n":1}', -1), ("a", '{"n":2}', 1), ("b", '{"n":1}', -1)]), state, MOMENT
    ).changes
    assert changes == {b"a": b'{"n":2,"_revision":2}', b"b": None}


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_that_differs_gets_the_next_revision_and_one_that_does_not_stays(weighted):
    state, logic = Memory(), ChangedRows(weighted=weighted)
    state.take({b"new": b'{"n":0,"_revision":9}', b"old": b'{"n":0,"_revision":1099}'})
    for n in (1, 2, 2, 3):
        rows = [(key, f'{{"n":{n}}}', 1) for key in ("new", "old", "one more")]
        if weighted:
            rows += [(key.decode(), row.decode().rsplit(",", 1)[0] + "}", -1) for key, row in state.items()]
        state.take(logic.apply(table(rows), state, MOMENT).changes)
    revisions = {b"new": 12, b"old": 1102, b"one more": 3}
    assert state == {key: b'{"n":3,"_revision":%d}' % number for key, number in revisions.items()}


def test_of_two_rows_with_a_key_the_greater_one_is_published_and_a_deletion_before_both():
    rows = [("a", '{"n":1}', 1), ("a", '{"n":2}', 1), ("b", '{"n":1}', 1), ("b", None, 1), ("c", None, 1)]
    state = Memory(zip([b"b"], [b'{"n":0,"_revision":1}'], strict=True))
    assert ChangedRows().apply(table(rows), state, MOMENT).changes == {
        b"a": b'{"n":2,"_revision":1}',
        b"b": None,
    }


def test_of_two_rows_with_a_key_the_newer_record_counts_where_it_is_known():
    rows = table([("a", '{"n":9}', 1), ("a", '{"n":10}', 1), ("a", '{"n":8}', 1), ("b", '{"n":1}', 1)])
    traced = rows.append_column(ORDER, pa.array([7, 9, 8, 3]))
    assert ChangedRows().apply(traced, Memory(), MOMENT).changes == {
        b"a": b'{"n":10,"_revision":1}',
        b"b": b'{"n":1,"_revision":1}',
    }
