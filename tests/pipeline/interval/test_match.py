"""Two streams within a time bound: whatever the order, the delay and the cut, the table says after every batch what all rows so far say.

Times are microseconds, few and close together, so that rows meet at every boundary. The model looks at every row with every other.
"""

import pickle
import random
from collections import Counter
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.interval.bound import Bound
from headwater.pipeline.interval.match import HOW, Match
from headwater.pipeline.interval.unmatched import Unmatched
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.state import layouts
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory

LEFT = pa.struct([("id", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
RIGHT = pa.struct([("id", pa.string()), ("seen", pa.timestamp("us", "UTC")), ("m", pa.int64())])


class Row(NamedTuple):
    side: str
    id: str | None
    at: int | None
    n: int | None


times = st.one_of(st.integers(-8, 50), st.integers(20, 30), st.none())
rows = st.builds(Row, st.sampled_from("lr"), st.sampled_from("aaaab") | st.none(), times, st.none() | st.integers(0, 1))  # fmt: skip
batches = st.lists(st.tuples(st.lists(rows, max_size=14), st.integers(0, 14)), max_size=7)
"""The rows of each batch, and how far the watermark advances after it."""
bounds = st.builds(Bound, st.integers(0, 6), st.integers(0, 6), st.integers(1, 15))
seeds = st.tuples(st.integers(0, 9), st.integers(1, 3))
"""How rows are shuffled, and to how many shards the state is scaled in between."""
horizons = st.sampled_from([0, 0, 3, 25])
hundred = settings(max_examples=100, deadline=None)


def table(rows: list[Row]) -> pa.Table:
    left = [{"id": row.id, "at": row.at, "n": row.n} if row.side == "l" else None for row in rows]
    right = [{"id": row.id, "seen": row.at, "m": row.n} if row.side == "r" else None for row in rows]
    ids = [row.id for row in rows]
    key = ["[null]" if each is None else each for each in ids]
    columns = [pa.array(ids, pa.string()), pa.array(left, LEFT), pa.array(right, RIGHT)]
    return pa.table(
        [*columns, pa.array([1] * len(rows), pa.int32()), pa.array(key, pa.string())],
        ["_on1", "_left", "_right", "_weight", "_key"],
    )


def plain(rows: pa.Table) -> list[dict]:
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in rows.schema]
    return rows.cast(
        pa.schema([field.with_type(kind) for field, kind in zip(rows.schema, kinds, strict=True)])
    ).to_pylist()


def meets(left: Row, right: Row, bound: Bound) -> bool:
    known = None not in {left.id, left.at, right.at} and left.id == right.id
    return known and left.at - bound.before_us <= right.at <= left.at + bound.after_us


def joined(rows: list[Row], bound: Bound, how: str) -> Counter:
    """The join of all rows, as (id, at, n, seen, m)."""
    lefts, rights = ([row for row in rows if row.side == side] for side in "lr")
    found = [(left, right) for left in lefts for right in rights if meets(left, right, bound)]
    out = Counter((left.id, left.at, left.n, right.at, right.n) for left, right in found)
    if how in {"left", "full"}:
        alone = [left for left in lefts if not any(meets(left, right, bound) for right in rights)]
        out += Counter((row.id, row.at, row.n, None, None) for row in alone)
    if how in {"right", "full"}:
        alone = [right for right in rights if not any(meets(left, right, bound) for left in lefts)]
        out += Counter((row.id, None, None, row.at, row.n) for row in alone)
    return out


def missed(rows: list[Row], bound: Bound, horizon: int) -> Counter:
    """The rows of the left that nothing meets and nothing can meet any more, as (id, at, n)."""
    rights = [row for row in rows if row.side == "r"]
    return Counter(
        (row.id, row.at, row.n)
        for row in rows
        if row.side == "l"
        and not any(meets(row, right, bound) for right in rights)
        and (row.id is None or row.at is None or row.at + bound.after_us < horizon)
    )


def matched(bound: Bound, how: str) -> Match:
    return Match(key=("_on1",), on=(("id", "id"),), time=("at", "seen"), bound=bound, how=how)


def unmatched(bound: Bound) -> Unmatched:
    return Unmatched(key=("_on1",), time=("at", "seen"), bound=bound)


class Stage:
    """What the stage does around a logic: late rows out, rows in, state on; restarts between any two batches."""

    def __init__(self, logic, horizon: int, seed: int = 0, shards: int = 1) -> None:
        self.logic, self.horizon, self.random = logic, horizon, random.Random(seed)
        self.states = [Memory() for _ in range(shards)]
        self.watermark, self.accepted = NEVER, []

    @property
    def moment(self) -> Moment:
        return Moment(self.watermark, 0, self.watermark - self.horizon)

    def take(self, rows: list[Row]) -> list[dict]:
        rows = [row for row in rows if row.at is None or row.at >= self.moment.horizon]
        self.accepted += rows
        self.logic = pickle.loads(pickle.dumps(self.logic))  # noqa: S301
        out = []
        for number, state in enumerate(self.states):
            mine = [row for row in rows if layouts.shard_of((row.id or "[null]").encode(), len(self.states)) == number]  # fmt: skip
            applied = self.logic.apply(table(mine), state, self.moment)
            again = self.logic.apply(table(self.random.sample(mine, len(mine))), state, self.moment)
            assert list(again.changes.items()) == list(applied.changes.items())
            assert list(applied.changes) == sorted(applied.changes)
            assert again.rows.equals(applied.rows)
            assert again.open == applied.open
            state.take(applied.changes)
            assert (applied.open is not None) == bool(state)
            assert applied.open is None or applied.open > self.watermark
            out += plain(applied.rows)
        return out

    def move(self, by: int) -> None:
        self.watermark = max(self.watermark, -8) + by

    def scale(self, shards: int) -> None:
        """As ``headwater view scale`` does it."""
        owner, states = layouts.layout(self.logic.layout).owner, [Memory() for _ in range(shards)]
        for state in self.states:
            for entry, value in state.items():
                states[layouts.shard_of(owner(entry, value), shards)][entry] = value
        self.states = states


@hundred
@pytest.mark.parametrize("how", HOW)
@given(batches=batches, bound=bounds, horizon=horizons, seeds=seeds)
def test_after_every_batch_the_table_is_the_join_of_all_rows_so_far(how, batches, bound, horizon, seeds):
    seed, shards = seeds
    stage, seen = Stage(matched(bound, how), horizon, seed), Counter()
    for rows, move in batches:
        changed = Counter()
        stragglers = any(row.at is not None and row.at < stage.watermark for row in rows)
        for row in stage.take(rows):
            weight, until = row.pop("_weight", 1), row.pop("_until", 0)
            changed[tuple(row.values())] += weight
            is_pair = row["at"] is not None and row["seen"] is not None
            if is_pair or row["id"] is None or row["at"] is row["seen"] is None:
                assert weight == 1
                assert until == 0
            elif row["at"] is not None:
                assert until == row["at"] + bound.after_us + 1
            else:
                assert until == row["seen"] + bound.before_us + 1
            if weight == -1 and not stragglers:
                assert until > stage.watermark, "what was complete is taken back"
        assert 0 not in changed.values(), "what cancels out is not emitted"
        seen.update(changed)
        assert all(count >= 0 for count in seen.values()), "what goes out was there"
        assert +seen == joined(stage.accepted, bound, how)
        stage.move(move)
        if move == 7:
            stage.scale(shards)
    everything = matched(bound, how).apply(table(stage.accepted), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert everything.changes == {}
    assert everything.open is None
    batch = plain(everything.rows)
    assert all(row.pop("_weight", 1) == 1 for row in batch)
    assert Counter(tuple(row[name] for name in ("id", "at", "n", "seen", "m")) for row in batch) == +seen


@hundred
@given(batches=batches, bound=bounds, horizon=horizons, seeds=seeds)
def test_a_row_without_a_match_comes_out_once_when_none_can_come_any_more(batches, bound, horizon, seeds):
    seed, shards = seeds
    stage, seen = Stage(unmatched(bound), horizon, seed), Counter()
    for rows, move in [*batches, ([], 200), ([], 0)]:
        out = stage.take(rows)
        for row in out:
            if row["id"] is not None and row["at"] is not None:  # operators downstream still wait for it
                assert row["at"] + bound.after_us < stage.moment.horizon
        seen.update(tuple(row.values()) for row in out)
        assert seen == missed(stage.accepted, bound, stage.moment.horizon)
        stage.move(move)
        if move == 7:
            stage.scale(shards)
    assert not any(stage.states)
    everything = unmatched(bound).apply(table(stage.accepted), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert everything.changes == {}
    assert Counter(tuple(row.values()) for row in plain(everything.rows)) == seen


@hundred
@given(batches=batches, bound=bounds, horizon=horizons, how=st.sampled_from(HOW))
def test_what_nothing_can_meet_any_more_is_forgotten(batches, bound, horizon, how):
    stage = Stage(matched(bound, how), horizon)
    for rows, move in batches:
        stage.take(rows)
        stage.move(move)
        (state,) = stage.states
        opens = stage.logic.apply(table([]), state, stage.moment).open
        state.take(stage.logic.apply(table([]), state, stage.moment).changes)
        for entry in state:
            keep = bound.after_us if entry[:1] == b"l" else bound.before_us
            time = int.from_bytes(entry[25:33]) - (1 << 63)
            assert time + keep + bound.bucket_us >= stage.moment.horizon, "a bucket longer at most"
        if opens is not None:
            stage.watermark = opens - 1
            assert not stage.logic.apply(table([]), state, stage.moment).changes
            stage.watermark = opens
            assert stage.logic.apply(table([]), state, stage.moment).changes


def test_a_row_that_comes_twice_is_two_rows():
    search, click = Row("l", "a", 10, 1), Row("r", "a", 12, 1)
    stage = Stage(matched(Bound(0, 5, 5), "left"), 0)
    stage.take([search, search])
    assert [row["_weight"] for row in stage.take([click])] == [1, 1, -1, -1]
    assert [row["_weight"] for row in stage.take([click, search])] == [1] * 4
    (state,) = stage.states
    assert len(state) == 2


class Watched(Memory):
    """Counts the entries that are read."""

    read = 0

    def between(self, start, end):
        for entry in super().between(start, end):
            self.read += 1
            yield entry

    def stretches(self, wanted):
        return [list(islice(self.between(start, end), most)) for start, end, most in wanted]


@pytest.mark.parametrize("how", HOW)
def test_a_key_with_many_rows_costs_what_is_within_the_bound(how):
    logic, state = matched(Bound(5, 5, 10), how), Watched()
    many = [Row("r", "a", at, 0) for at in range(0, 40_000, 4)]
    state.take(logic.apply(table(many), state, Moment(NEVER, 0, NEVER)).changes)
    state.read = 0
    applied = logic.apply(table([Row("l", "a", 20_000, 0)]), state, Moment(NEVER, 0, NEVER))
    assert sum(row.get("_weight", 1) == 1 for row in plain(applied.rows)) == 3
    assert state.read < 12


def test_many_rows_of_the_right_near_a_row_are_not_all_read_to_see_that_there_is_one():
    logic, state = unmatched(Bound(5000, 5000, 10_000)), Watched()
    many = [Row("r", "a", at, 0) for at in range(10_000)]
    state.take(logic.apply(table(many), state, Moment(NEVER, 0, NEVER)).changes)
    state.read = 0
    applied = logic.apply(table([Row("l", "a", 5_000, 0)]), state, Moment(NEVER, 0, NEVER))
    assert (applied.rows.num_rows, applied.changes) == (0, {})
    assert state.read < 12
