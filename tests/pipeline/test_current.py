"""Tables without Spark: what changes of rows come to, in whatever batches, and rows as bytes."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.pipeline.current import Current
from headwater.pipeline.differing import Differing
from headwater.pipeline.operator import Moment, Nothing
from headwater.pipeline.ready import Ready
from headwater.pipeline.rowbytes import RowBytes
from memorystate import Memory

KIND = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("_id", pa.string()),
        ("_deleted", pa.bool_()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_key", pa.string()),
    ]
)
MOMENT = Moment(0, 0)
LOGIC = Current(rows="…")

changes = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([None, "a", "b", "c"])), max_size=30
)  # a key, and its row from then on
cuts = st.lists(st.integers(0, 30), max_size=4)


def batch(log):
    """Changes as (offset, key, name or None) as the source hands them on."""
    rows = [
        {"id": key if name else None, "name": name, "_deleted": name is None, "_offset": offset}
        | {"_partition": 0, "_id": str(key), "_key": str(key)}
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


WIDE = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("share", pa.float64()),
        ("yes", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(38, 9)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("x", pa.int64()), ("when", pa.timestamp("us", "UTC"))])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


def wide(n):
    chance = random.Random(n)
    full = {
        "n": chance.randint(-(1 << 62), 1 << 62),
        "small": chance.randint(-128, 127),
        "share": chance.random(),
        "yes": chance.random() < 0.5,
        "at": BEGIN + timedelta(microseconds=chance.randint(-(10**15), 10**15)),
        "day": date(2026, 1, 1 + n % 28),
        "price": Decimal(chance.randint(-(10**20), 10**20)).scaleb(-9),
        "text": "ü€\x00" * chance.randint(0, 5),
        "raw": chance.randbytes(chance.randint(0, 9)),
        "tags": [None, "a"][: chance.randint(0, 2)],
        "inner": {"x": n, "when": BEGIN},
        "counts": [("a", 1), ("b", None)],
    }
    return {name: None if chance.random() < 0.3 else value for name, value in full.items()}


@given(st.integers(0, 1 << 32), st.integers(0, 40))
def test_rows_come_back_from_their_bytes(seed, count):
    rows = pa.Table.from_pylist([wide(seed + n) for n in range(count)], schema=WIDE)
    form = RowBytes(WIDE)
    written = form.write(rows)
    assert form.read(written).equals(rows)
    assert form.write(rows.slice(count // 2)) == written[count // 2 :]  # by itself, or among others
    assert form.read(list(reversed(written))).to_pylist() == list(reversed(rows.to_pylist()))


def test_what_stands_behind_a_null_makes_no_difference():
    hidden = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer((5).to_bytes(8) + (6).to_bytes(8))]
    )
    plain = pa.array([hidden[0].as_py(), None], pa.int64())
    form = RowBytes(pa.schema([("n", pa.int64())]))
    assert form.write(pa.table({"n": hidden})) == form.write(pa.table({"n": plain}))


def published(state, *rows, logic=None, watermark=0):
    """What a view publishes of weighted rows (key, value, weight): by key, the row or None."""
    columns = {
        "_key": pa.array([key for key, _, _ in rows], pa.string()),
        "_value": pa.array([f'{{"v":{value}}}' for _, value, _ in rows], pa.string()),
        "_weight": pa.array([weight for _, _, weight in rows], pa.int32()),
        "_until": pa.array([10] * len(rows), pa.int64()),
    }
    found = (logic or Differing(weighted=True)).apply(pa.table(columns), state, Moment(watermark, 0))
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
        [("b", 1, 1), ("b", 1, 1)],
        [("a", 1, -1), ("a", 2, 1), ("a", 3, 1)],
    ],
)
def test_two_rows_with_one_key_are_an_error_that_names_it(rows):
    state = Memory()
    published(state, ("a", 1, 1))
    with pytest.raises(UsageError, match=f"not unique: there are two rows with '{rows[0][0]}'"):
        published(state, *rows)


def test_a_weighted_row_that_is_not_complete_waits_and_may_go_before():
    ready, state = Ready(weighted=True), Memory()
    published(state, ("a", 1, 1), ("b", 1, 1), logic=ready)
    published(state, ("a", 1, -1), ("b", 1, -1), ("b", 2, 1), logic=ready)
    assert published(state, logic=ready, watermark=9) == {}  # not yet
    made = published(state, logic=ready, watermark=10)
    assert {key: value for key, value in made.items() if key[0] == "r"} == {"rb": '{"v":2,"_revision":1}'}
    assert published(state, ("b", 2, -1), logic=ready, watermark=11) == {"rb": None}
