"""Each event with the row that is there when it is processed."""

import random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.asof.lookup_now import LookupNow
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory

LEFT = pa.struct([("id", pa.int64()), ("item", pa.string())])
RIGHT = pa.struct(
    [("item", pa.string()), ("rate", pa.int64()), ("_gone", pa.bool_()), ("_offset", pa.int64())]
)
CHANGES = LookupNow(key=("_on1",), columns=("rate",))
ROWS = LookupNow(key=("_on1",), columns=("rate",), of_rows=True)
DROP = LookupNow(key=("_on1",), columns=("rate",), missing="drop")


def paired(events: list, changes: list) -> pa.Table:
    """Events are (id, item), changes (item, rate or None, offset, weight)."""
    rows = [(item, {"id": n, "item": item}, None, 1) for n, item in events] + [
        (item, None, {"item": item, "rate": rate, "_gone": rate is None, "_offset": offset}, weight)
        for item, rate, offset, weight in changes
    ]
    random.Random(3).shuffle(rows)
    key, left, right, weight = zip(*rows, strict=True) if rows else ((), (), (), ())
    on = pa.array(key, pa.string())
    return pa.table(
        {
            "_on1": on,
            "_left": pa.array(left, LEFT),
            "_right": pa.array(right, RIGHT),
            "_weight": pa.array(weight, pa.int32()),
            "_key": on.fill_null("[null]"),
        }
    )


def taken(logic: LookupNow, state: Memory, events: list, changes: list) -> set:
    applied = logic.apply(paired(events, changes), state, Moment(NEVER, 0, NEVER))
    state.take(applied.changes)
    return set(zip(*(applied.rows.column(name).to_pylist() for name in ("id", "rate")), strict=True))


def test_events_meet_what_has_come_and_nothing_is_corrected():
    state = Memory()
    assert taken(CHANGES, state, [(1, "a"), (2, None)], []) == {(1, None), (2, None)}
    assert taken(CHANGES, state, [(3, "a")], [("a", 7, 0, 1), ("a", 5, 1, 1), (None, 1, 2, 1)]) == {(3, 5)}
    assert taken(CHANGES, state, [(4, "a"), (5, "b")], []) == {(4, 5), (5, None)}
    assert taken(DROP, state, [(6, "a"), (7, "b")], [("a", None, 3, 1), ("b", 1, 4, 1)]) == {(7, 1)}
    assert set(state) == {b"b"}


def test_a_table_with_nothing_but_its_key_decides_which_events_pass():
    state = Memory()
    only = LookupNow(key=("_on1",), columns=(), missing="drop")
    applied = only.apply(paired([(1, "a"), (2, "b")], [("a", 7, 0, 1)]), state, Moment(NEVER, 0, NEVER))
    assert applied.rows.column("id").to_pylist() == [1]


def test_rows_of_a_table_are_replaced_and_taken_out():
    state = Memory()
    assert taken(ROWS, state, [(1, "a")], [("a", 1, 0, 1)]) == {(1, 1)}
    assert taken(ROWS, state, [(2, "a")], [("a", 1, 0, -1), ("a", 2, 0, 1)]) == {(2, 2)}
    assert taken(ROWS, state, [(3, "a")], [("a", 2, 0, -1), ("b", 9, 0, -1)]) == {(3, None)}
    assert not state


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b", None]), max_size=4),
            st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 3)), max_size=4),
        ),
        max_size=6,
    )
)
def test_as_a_dictionary_has_it(batches):
    state, rows, offset = Memory(), {}, 0
    for items, changes in batches:
        changed = [(item, rate, offset + n, 1) for n, (item, rate) in enumerate(changes)]
        offset += len(changed)
        rows.update({item: rate for item, rate, *_ in changed})
        events = list(enumerate(items))
        assert taken(CHANGES, state, events, changed) == {(n, rows.get(item)) for n, item in events}
