"""Rows that are valid now: whatever comes, changes and goes, and however the clock moves on, those are there whose time it is."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.tables.valid import Valid
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
KIND = pa.schema(
    [("id", pa.int64()), ("since", pa.timestamp("us", "UTC")), ("until", pa.timestamp("us", "UTC"))]
)
INPUT = KIND.append(pa.field("_weight", pa.int32())).append(pa.field("_key", pa.string()))
times = st.none() | st.integers(0, 10)
rows = st.tuples(st.integers(0, 3), times, times)
steps = st.lists(st.tuples(st.integers(0, 3), st.lists(rows, max_size=4)), max_size=12)


def moment(minute: int) -> Moment:
    return Moment(NEVER, int((BEGIN + timedelta(minutes=minute)).timestamp() * 1_000_000), NEVER)


def at(minute: int | None) -> datetime | None:
    return None if minute is None else BEGIN + timedelta(minutes=minute)


def table(weighted: list[tuple[tuple, int]], kind: pa.Schema = INPUT) -> pa.Table:
    listed = [(row[0], at(row[1]), at(row[2]), weight, repr(row)) for row, weight in weighted]
    columns = list(zip(*listed, strict=True)) or [[]] * len(INPUT)
    made = pa.table([pa.array(c, f.type) for c, f in zip(columns, INPUT, strict=True)], schema=INPUT)
    return made.select(kind.names)


def applied(logic: Valid, state: Memory, given: pa.Table, minute: int, there: Counter) -> int | None:
    """Takes a batch into a state, and what comes out into the rows that are there."""
    found = logic.apply(given, state, moment(minute))
    state.take(found.changes)
    for row in found.rows.to_pylist():
        there[row["id"], row["since"], row["until"]] += row["_weight"]
    return found.open


def is_valid(row: tuple, minute: int) -> bool:
    _, since, until = row
    return (since is None or since <= minute) and (until is None or until > minute)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_rows_of_a_table_are_there_from_their_time_until_it_is_over(steps):
    logic = Valid(key=("id", "since", "until"), since="since", until="until", stays=False)
    state, there, held, minute = Memory(), Counter(), Counter(), 0
    for passed, changed in steps:
        minute += passed
        weighted = []
        for row in changed:
            weight = -1 if held[row] else 1
            held[row] += weight
            weighted.append((row, weight))
        opened = applied(logic, state, table(weighted), minute, there)
        expected = Counter({row: n for row, n in held.items() if n and is_valid(row, minute)})
        assert +there == Counter({(row[0], at(row[1]), at(row[2])): n for row, n in expected.items()})
        assert all(weight >= 0 for weight in there.values())
        later = [
            time
            for row, n in held.items()
            for time in row[1:]
            if n
            and time is not None
            and time > minute
            and (row[2] is None or row[1] is None or row[1] < row[2])
        ]
        first = int(at(min(later)).timestamp() * 1_000_000) if later else FOREVER
        assert (opened is None) <= (first == FOREVER)
        assert opened is None or opened <= first
    assert any(held.values()) == bool(state)


def test_events_of_a_stream_are_forgotten_when_their_time_is_over():
    logic = Valid(key=("id", "since", "until"), since="since", until="until", stays=True)
    kind = pa.schema([field for field in INPUT if field.name != "_weight"])
    state, there = Memory(), Counter()
    applied(logic, state, table([((1, 2, 5), 1), ((1, 2, 5), 1), ((2, None, 1), 1)], kind), 0, there)
    assert +there == {(2, None, at(1)): 1}
    applied(logic, state, table([], kind), 3, there)
    assert +there == {(1, at(2), at(5)): 2}
    applied(logic, state, table([], kind), 6, there)
    assert not +there
    assert not state


def test_a_clock_that_is_set_back_takes_nothing_back():
    logic = Valid(key=("id", "since", "until"), since="since", until="until", stays=False)
    state, there = Memory(), Counter()
    applied(logic, state, table([((1, 2, 5), 1)]), 3, there)
    applied(logic, state, table([]), 1, there)
    assert +there == {(1, at(2), at(5)): 1}
    applied(logic, state, table([((1, 2, 5), -1)]), 1, there)
    assert not +there
    assert not state
