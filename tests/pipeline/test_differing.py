"""What a view publishes of rows that come in and go out: of each key the one that is left, and nothing of what cancels."""

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.pipeline.differing import Differing, consolidated
from headwater.pipeline.operator import FOREVER, Moment
from memorystate import Memory

MOMENT = Moment(FOREVER, 0, FOREVER)
texts = st.sampled_from(["{}", '{"n":1}', '{"n":2}', '{"n":3}'])
steps = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), texts, st.sampled_from([-2, -1, 1, 1, 2])), max_size=20
)


def table(rows) -> pa.Table:
    kind = pa.schema([("_key", pa.string()), ("_value", pa.string()), ("_weight", pa.int32())])
    return pa.table([pa.array(column, each.type) for column, each in zip(list(zip(*rows, strict=True)) or [[]] * 3, kind, strict=True)], schema=kind)  # fmt: skip


def naive(rows) -> dict | None:
    """None when a key has two rows."""
    found = {}
    for key in sorted({row[0] for row in rows}):
        left: Counter = Counter()
        for at, value, weight in rows:
            left[value] += weight if at == key else 0
        came = list((+left).elements())
        if len(came) > 1:
            return None
        if any(left.values()):
            found[key.encode()] = (came[0].encode() if came else None, min(left.values()) < 0)
    return found


@settings(max_examples=300, deadline=None)
@given(rows=steps, seed=st.integers(0, 9))
def test_of_each_key_the_row_that_is_left(rows, seed):
    expected = naive(rows)
    if expected is None:
        with pytest.raises(UsageError, match="not unique"):
            consolidated(table(rows))
        return
    found = consolidated(table(random.Random(seed).sample(rows, len(rows))))
    assert list(found.items()) == list(expected.items())


def test_a_second_row_of_a_key_is_refused_and_a_new_one_gets_the_next_revision():
    state = Memory()
    logic = Differing(weighted=True)
    state.take(logic.apply(table([("a", '{"n":1}', 1), ("b", '{"n":1}', 1)]), state, MOMENT).changes)
    with pytest.raises(UsageError, match="'a'"):
        logic.apply(table([("a", '{"n":2}', 1)]), state, MOMENT)
    changes = logic.apply(
        table([("a", '{"n":1}', -1), ("a", '{"n":2}', 1), ("b", '{"n":1}', -1)]), state, MOMENT
    ).changes
    assert changes == {b"a": b'{"n":2,"_revision":2}', b"b": None}
