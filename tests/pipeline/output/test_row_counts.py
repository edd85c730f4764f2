"""Equal rows of a view under one key are one row: it is there until the last of them goes, whatever the batches and the shards."""

import json
import random
import tempfile
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.output.changed_rows import ChangedRows
from headwater.pipeline.output.complete_rows import CompleteRows
from headwater.pipeline.output.expiry import Expiry
from headwater.pipeline.run.published_rows import Published, differences, taken_over
from headwater.pipeline.state.files import Place, Size, whole_file
from headwater.pipeline.state.layouts import (
    COUNTED,
    COUNTED_FORGETTING,
    COUNTED_WAITING,
    layout,
    shard_of,
    values,
)
from headwater.pipeline.state.reshard import rescaled
from headwater.pipeline.state.row_counts import rows_in
from headwater.pipeline.state.shard import Shard
from headwater.pipeline.time.watermark import Moment
from support.memorystate import Memory

LONG = "l" * 600
KEYS = ["", "a", "b", "c", LONG]
ROWS = ['{"n":1}', '{"n":2}', '{"n":22}']
MOMENT = Moment(FOREVER, 0, FOREVER)
KIND = pa.schema(
    [("_key", pa.string()), ("_value", pa.string()), ("_weight", pa.int32()), ("_until", pa.int64())]
)
batches = st.lists(
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from(ROWS), st.sampled_from([-2, -1, -1, 1, 1, 1, 2])),
        max_size=7,
    ),
    max_size=10,
)


def table(rows, until=0) -> pa.Table:
    listed = [dict(zip(KIND.names, (*row, until), strict=True)) for row in rows]
    return pa.Table.from_pylist(listed, KIND)


def possible(steps, model):
    """Those of some changes that a table can bring: nothing goes out that is not there, and no key has two rows that differ after a batch."""
    after = {key: Counter(rows) for key, rows in model.items()}
    for key, row, weight in steps:
        after[key][row] += weight
    good = {key for key, rows in after.items() if min(rows.values(), default=0) >= 0 and len(+rows) < 2}
    return [step for step in steps if step[0] in good]


def taken(steps, model):
    for key, row, weight in steps:
        model[key][row] += weight
    model |= {key: +rows for key, rows in model.items()}


def shown(model):
    return {key: json.loads(next(iter(rows)))["n"] for key, rows in model.items() if rows}


def empty():
    return {key: Counter() for key in KEYS}


@settings(max_examples=300, deadline=None)
@given(batches=batches, seed=st.integers(0, 9))
def test_a_row_is_there_until_the_last_of_its_copies_goes(batches, seed):
    state, model, published = Memory(), empty(), {}
    logic = ChangedRows(weighted=True, layout=COUNTED)
    for part in batches:
        steps = possible(part, model)
        made = logic.apply(table(random.Random(seed).sample(steps, len(steps))), state, MOMENT).changes
        before = shown(model)
        taken(steps, model)
        state.take(made)
        changed = {}
        for records in map(rows_in, made.table.to_batches()):
            for key, value in zip(*(column.to_pylist() for column in records.columns), strict=True):
                changed[key.decode()] = value and json.loads(value)
        assert {key for key in KEYS if before.get(key) != shown(model).get(key)} == changed.keys()
        for key, row in changed.items():
            was = published.pop(key, None)
            if row is not None:
                assert row["_revision"] == (was["_revision"] + 1 if was else 1)
                published[key] = row
        assert {key: row["n"] for key, row in published.items()} == shown(model)
    several = sum(rows.total() > 1 for rows in model.values())
    assert len(state) == len(shown(model)) + several


@settings(max_examples=200, deadline=None)
@given(batches=batches, seed=st.integers(0, 9), shards=st.integers(1, 3), again=st.integers(1, 3))
def test_copies_are_counted_over_restarts_repeats_scaling_and_a_swap(batches, seed, shards, again):
    """Each batch with fresh copies of the state, some twice, and the state moved to another number of shards on the way."""
    logic, form, model = ChangedRows(weighted=True, layout=COUNTED), layout(COUNTED), empty()
    random_ = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(f"{folder}/files", f"{folder}/copies")
        chains = [()] * shards
        for number, part in enumerate(batches):
            steps = possible(part, model)
            taken(steps, model)
            place = Place(place.files, f"{folder}/copies{number}")
            for shard, chain in enumerate(chains):
                mine = [step for step in steps if shard_of(step[0].encode(), len(chains)) == shard]
                for attempt in range(random_.randint(1, 2)):
                    state = Shard(place, shard, chain)
                    changes = logic.apply(table(mine), state, MOMENT).changes
                    chains[shard] = state.extended(number, f"{attempt}", changes)
            if random_.random() < 0.3:
                chains = rescaled(place, chains, again, number, form)
                place = Place(place.files, f"{folder}/scaled{number}")
            if random_.random() < 0.3:
                chains = swapped(place, chains, number, form)
                place = Place(place.files, f"{folder}/swapped{number}")
        found = Published(place, chains, form)
        assert {key.decode(): json.loads(row)["n"] for key, row in found.items()} == shown(model)
        assert not list(differences(found, found))
        counted = sum(len(list(shard.items())) for shard in found.shards) - len(shown(model))
        assert counted == sum(rows.total() > 1 for rows in model.values())


def swapped(place, chains, number, form):
    """As a rebuild writes the state of a new run, here the same one."""
    found = Published(place, chains, form)
    return [
        (whole_file(place, f"{shard.number}-{number}.swap", number, taken_over(found, shard, found), Size()),)
        for shard in found.shards
    ]


@settings(max_examples=300, deadline=None)
@given(batches=batches, waits=st.lists(st.integers(-3, 3), min_size=10, max_size=10))
def test_complete_rows_wait_with_their_copies(batches, waits):
    state, model, published = Memory(), empty(), {}
    untils = {}
    logic = CompleteRows(weighted=True, layout=COUNTED_WAITING)
    for now, (part, wait) in enumerate(zip(batches, waits, strict=False)):
        steps = possible(part, model)
        before = {key: Counter(rows) for key, rows in model.items()}
        taken(steps, model)
        net = {key: model[key] - before[key] for key in KEYS}
        made = logic.apply(table(steps, now + wait), state, Moment(now, 0, now))
        state.take(made.changes)
        for key, value in values(layout(COUNTED_WAITING), made.changes.items()):
            published[key.decode()] = value and json.loads(value)["n"]
        for key in KEYS:
            if +net[key]:
                untils[key] = now + wait
        for key, n in shown(model).items():
            if untils[key] <= now:
                assert published[key] == n
        for key in KEYS:
            if not model[key]:
                assert published.get(key) is None
    assert sum(entry[:1] == b"c" for entry in state) == sum(rows.total() > 1 for rows in model.values())


def test_a_second_row_that_differs_is_refused_by_complete_rows_too():
    state, logic = Memory(), CompleteRows(weighted=True, layout=COUNTED_WAITING)
    for until in (5, 50):
        first, second = ((f"k{until}", row, 1) for row in ROWS[:2])
        state.take(logic.apply(table([first], until), state, Moment(10, 0, 10)).changes)
        with pytest.raises(UsageError, match=f"two rows with 'k{until}', and they differ.*hw.distinct"):
            logic.apply(table([second], until), state, Moment(10, 0, 10))


def test_the_count_of_a_key_goes_when_the_key_is_forgotten_and_stays_when_its_row_changes():
    inside = ChangedRows(weighted=True)
    state, logic = Memory(), Expiry(logic=inside, after="10 seconds", layout=COUNTED_FORGETTING)

    def at(second, *steps):
        made = logic.apply(table(steps), state, Moment(0, second * 1_000_000, 0))
        state.take(made.changes)
        return dict(values(layout(COUNTED_FORGETTING), made.changes.items()))

    at(0, ("a", ROWS[0], 2), (LONG, ROWS[0], 2))
    assert at(5, ("a", ROWS[0], -2), ("a", ROWS[1], 2)).keys() == {b"a"}
    assert at(11) == {LONG.encode(): None}
    assert at(12, ("a", ROWS[1], -1)) == {}, "the second of its rows is there"
    assert at(13, ("a", ROWS[1], -1)) == {b"a": None}
    assert state == {}


@pytest.mark.parametrize("odd", [1, 3])
def test_one_key_with_copies_among_many_leaves_the_order_of_the_others(odd):
    rows = [(f"{n:03}", ROWS[n % 2], 1) for n in range(200)]
    rows += [(f"{n:03}", ROWS[n % 2], 1) for n in range(odd)] + [("150", ROWS[0], -1), ("150", ROWS[1], 1)]
    made = ChangedRows(weighted=True).apply(table(random.Random(1).sample(rows, len(rows))), Memory(), MOMENT)
    assert list(made.changes) == sorted(made.changes)
    assert made.changes.keys() == {b"%03d" % n for n in range(200)} | {b"\xff%03d" % n for n in range(odd)}
    assert made.changes[b"\xff000"] == b"2"


def test_state_from_before_there_were_counts_has_each_row_once():
    state = Memory({b"a": b'{"n":1,"_revision":7}'})
    logic = ChangedRows(weighted=True, layout=COUNTED)
    state.take(logic.apply(table([("a", ROWS[0], 1)]), state, MOMENT).changes)
    assert state == {b"a": b'{"n":1,"_revision":7}', b"\xffa": b"2"}
    with pytest.raises(UsageError, match="two rows with 'a', and they differ"):
        logic.apply(table([("a", ROWS[0], -1), ("a", ROWS[1], 1)]), state, MOMENT)
    state.take(logic.apply(table([("a", ROWS[0], -2)]), state, MOMENT).changes)
    assert state == {}
