"""Time-outs of keys: in the order of their times, before 1970 too, and none is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.state import timers
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory

times = st.one_of(st.integers(-5, 5), st.sampled_from([NEVER, -(10**12), 10**15, FOREVER]))


@given(
    held=st.dictionaries(st.binary(max_size=3), times, max_size=8),
    moved=st.dictionaries(st.binary(max_size=3), times | st.none(), max_size=4),
    upto=times,
)
def test_what_is_due_and_what_is_open_next(held, moved, upto):
    state = Memory()
    for key, at in held.items():
        state.take(timers.changed(key, None, timers.kept(at, b"v")))

    due = timers.due(state, upto)
    expected = sorted((at, key) for key, at in held.items() if at <= upto)
    assert sorted((held[key], key) for _, key in due) == expected
    assert [held[key] for _, key in due] == [at for at, _ in expected]

    changes = {entry: None for entry, _ in due}
    left = {key: at for key, at in held.items() if at > upto}
    for key, at in moved.items():
        before = state.get([timers.place(key)]).get(timers.place(key))
        if before is None and at is None:
            continue
        changes |= timers.changed(key, before, None if at is None else timers.kept(at, b"w"))
        left.pop(key, None)
        if at is not None:
            left[key] = at
    first = min(left.values(), default=None)
    assert timers.earliest(state, changes, upto) == first
    downstream = timers.open_at(state, changes, Moment(upto + 7, 0, upto))
    assert downstream == (None if first is None else first + 7)
    state.take(changes)
    assert {timers.time_of(entry[1:]) for entry in state if entry[:1] == b"t"} == set(left.values())
