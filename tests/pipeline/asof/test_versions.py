"""A row for each version, from when and until when: whatever the order of the changes, as a model that knows all of them has it."""

import random
from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.asof.versions import Versions
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.state.layouts import FORGETTING, layout
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory

STAMP = pa.timestamp("us", "UTC")
LOGIC = Versions(key=("item",), time="at", columns=("item", "rate", "at"))
hundred = settings(max_examples=100, deadline=None)


class Change(NamedTuple):
    item: str | None
    rate: int
    at: int | None
    offset: int = -1
    gone: bool = False


def table(rows: list[Change]) -> pa.Table:
    stamps = pa.array([row.at for row in rows], pa.int64()).cast(STAMP)
    item = pa.array([row.item for row in rows], pa.string())
    return pa.table(
        {
            "item": item,
            "rate": pa.array([None if row.gone else row.rate for row in rows], pa.int64()),
            "at": stamps,
            "_gone": pa.array([row.gone for row in rows], pa.bool_()),
            "_offset": pa.array([row.offset for row in rows], pa.int64()),
            "_key": item.fill_null("[null]"),
        }
    )


def plain(rows: pa.Table) -> list[tuple]:
    columns = [rows.column(name) for name in ("item", "rate", "valid_from", "valid_to")]
    found = [
        (each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each).to_pylist() for each in columns
    ]
    return list(zip(zip(*found, strict=True), rows.column("_weight").to_pylist(), strict=True))


def model(changes: list[Change]) -> Counter:
    found: Counter = Counter()
    for item in {change.item for change in changes} - {None}:
        last = {}
        for change in sorted(changes, key=lambda change: change.offset):
            if change.item == item and change.at is not None:
                last[change.at] = change
        times = sorted(last)
        for start, end in zip(times, [*times[1:], None], strict=False):
            if not last[start].gone:
                found[item, last[start].rate, start, end] += 1
    return found


changes = st.lists(
    st.builds(
        Change,
        st.sampled_from(["a", "b", None]),
        st.integers(0, 3),
        st.none() | st.integers(0, 20),
        st.just(0),
        st.booleans(),
    ),
    max_size=14,
)


def applied(state: Memory, rows: list[Change], seen: Counter, moment: Moment) -> None:
    found = LOGIC.apply(table(rows), state, moment)
    again = LOGIC.apply(table(random.Random(1).sample(rows, len(rows))), state, moment)
    assert (again.changes, again.open) == (found.changes, found.open)
    assert again.rows.equals(found.rows)
    for row, weight in plain(found.rows):
        seen[row] += weight
        if not seen[row]:
            del seen[row]
    state.take(found.changes)
    assert {layout(FORGETTING).owner(*entry) for entry in state.items()} <= {b"a", b"b"}


@hundred
@given(changes, st.lists(st.integers(0, 5), max_size=5), st.randoms())
def test_any_order_gives_the_same_table(came, sizes, choose):
    came = [change._replace(offset=n) for n, change in enumerate(came)]
    rest = choose.sample(came, len(came))
    state, seen = Memory(), Counter()
    for size in sizes:
        applied(state, rest[:size], seen, Moment(NEVER, 0, NEVER))
        rest = rest[size:] + rest[: size // 2]  # some come a second time
    applied(state, rest, seen, Moment(NEVER, 0, NEVER))
    assert seen == model(came)
    whole = LOGIC.apply(table(came), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert Counter(row for row, _ in plain(whole.rows)) == seen


@hundred
@given(
    changes,
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 8)), min_size=1, max_size=6),
    st.integers(0, 6),
)
def test_what_no_straggler_can_touch_is_forgotten_and_the_table_stays_right(came, parts, horizon):
    came = [change._replace(offset=n) for n, change in enumerate(came)]
    state, seen, taken, watermark = Memory(), Counter(), [], NEVER
    for size, step in parts:
        moment = Moment(watermark, 0, watermark - horizon)
        batch = [change for change in came[:size] if change.at is None or change.at >= moment.horizon]
        came, taken = came[size:], taken + batch
        applied(state, batch, seen, moment)
        assert seen == model(taken)
        watermark = max(watermark, 0) + step
    applied(state, [], seen, Moment(100, 0, 100))
    assert seen == model(taken)
    assert {entry[:1] for entry in state} <= {b"k"}
    living = {item for item, _, _, end in seen if end is None}
    assert {entry[1:].decode() for entry in state} == living


def test_a_version_has_its_time_and_its_place_in_the_log_as_id():
    at = int(datetime(2026, 1, 5, 9, tzinfo=UTC).timestamp()) * 1_000_000
    found = LOGIC.apply(table([Change("a", 1, at, 7)]), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert found.rows.column("version").to_pylist() == ["2026-01-05T09:00:00.000000Z#7"]
