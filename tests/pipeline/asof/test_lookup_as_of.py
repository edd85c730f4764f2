"""Each event with the version that held at its time: whatever comes first, in any cut, the rows are those of a model that knows all.

Times are microseconds, few and close together, so that events and versions meet at every boundary.
"""

import random
from collections import Counter
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.asof.lookup_as_of import LookupAsOf
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.state import time_chunks
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.state.layouts import FORGETTING, layout
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory

STAMP = pa.timestamp("us", "UTC")
LEFT = pa.struct([("id", pa.int64()), ("item", pa.string()), ("at", STAMP)])
RIGHT = pa.struct(
    [
        ("item", pa.string()),
        ("rate", pa.int64()),
        ("name", pa.string()),
        ("valid_from", STAMP),
        ("_gone", pa.bool_()),
        ("_offset", pa.int64()),
        ("_arrival", STAMP),
    ]
)
LIVE = LookupAsOf(key=("_on1",), as_of="at", valid="valid_from", columns=("rate", "name", "valid_from"))
DROP = LookupAsOf(key=("_on1",), as_of="at", valid="valid_from", columns=("rate", "name"), missing="drop")
WAIT = LookupAsOf(
    key=("_on1",), as_of="at", valid="valid_from", columns=("rate", "name"), missing="wait", wait_us=5
)
FINAL = LookupAsOf(key=("_on1",), as_of="at", valid="valid_from", columns=("rate", "name"), final_us=6)
ROWS = LookupAsOf(key=("_on1",), as_of="at", valid="valid_from", columns=("rate", "name"), of_rows=True)
hundred = settings(max_examples=100, deadline=None)


class Event(NamedTuple):
    id: int
    item: str | None
    at: int | None


class Version(NamedTuple):
    item: str | None
    rate: int | None
    valid: int | None
    offset: int = -1
    gone: bool = False
    weight: int = 1


def paired(rows: list[Event | Version]) -> pa.Table:
    left, right = [], []
    for row in rows:
        is_event = isinstance(row, Event)
        left.append({"id": row.id, "item": row.item, "at": row.at} if is_event else None)
        right.append(
            None
            if is_event
            else {
                "item": row.item,
                "rate": None if row.gone else row.rate,
                "name": None if row.gone else f"r{row.rate}" * (row.rate or 0),
                "valid_from": None if row.gone else row.valid,
                "_gone": row.gone,
                "_offset": row.offset if row.offset >= 0 else None,
                "_arrival": row.valid if row.gone else (row.valid or 0) + 1000,
            }
        )
    key = pa.array([row.item for row in rows], pa.string())
    return pa.table(
        {
            "_on1": key,
            "_left": pa.array(left, LEFT),
            "_right": pa.array(right, RIGHT),
            "_weight": pa.array([getattr(row, "weight", 1) for row in rows], pa.int32()),
            "_key": key.fill_null("[null]"),
        }
    )


def plain(rows: pa.Table) -> list[tuple]:
    """Id, rate and weight of each row."""
    ids, rates = rows.column("id").to_pylist(), rows.column("rate").to_pylist()
    versions = rows.column("version").to_pylist()
    weights = rows.column("_weight").to_pylist() if "_weight" in rows.column_names else [1] * len(ids)
    return [
        ((n, rate, version), w) for n, rate, version, w in zip(ids, rates, versions, weights, strict=True)
    ]


def version_id(version: Version) -> str:
    ended = f"Z#{version.offset}" if version.offset >= 0 else "Z"
    return f"1970-01-01T00:00:00.{version.valid:06}{ended}"


def model(events: list[Event], versions: list[Version], *, drop: bool = False) -> Counter:
    """What all of it together says, by looking at everything for each event."""
    found: Counter = Counter()
    for event in events:
        best = None
        for version in versions:
            if None in (version.item, version.valid, event.at) or version.item != event.item:
                continue
            if version.valid <= event.at and (best is None or rank(version) >= rank(best)):
                best = version
        if best is None or best.gone:
            if not drop:
                found[event.id, None, None] += 1
        else:
            found[event.id, best.rate, version_id(best)] += 1
    return found


def rank(version: Version) -> tuple:
    return version.valid, version.offset


class Stage:
    """What the stage does around a logic: late events out, rows in, state on, and the table that readers see."""

    def __init__(self, logic: LookupAsOf, horizon: int = 0, seed: int = 0) -> None:
        self.logic, self.horizon, self.random = logic, horizon, random.Random(seed)
        self.state, self.watermark = Memory(), NEVER
        self.table: Counter = Counter()
        self.events: list[Event] = []

    @property
    def moment(self) -> Moment:
        return Moment(self.watermark, 0, self.watermark - self.horizon)

    def take(self, rows: list[Event | Version]) -> list[tuple]:
        rows = [row for row in rows if not isinstance(row, Event) or row.at is None or row.at >= self.moment.horizon]  # fmt: skip
        applied = self.logic.apply(paired(rows), self.state, self.moment)
        again = self.logic.apply(paired(self.random.sample(rows, len(rows))), self.state, self.moment)
        assert list(again.changes.items()) == list(applied.changes.items())
        assert again.rows.equals(applied.rows)
        assert again.open == applied.open
        out = plain(applied.rows)
        for row, weight in out:
            self.table[row] += weight
            if not self.table[row]:
                del self.table[row]
        self.state.take(applied.changes)
        self.events += [row for row in rows if isinstance(row, Event)]
        times = [int.from_bytes(entry[1:9], signed=True) for entry in self.state if entry[:1] == b"t"]
        assert applied.open == (min(times) if times else None)
        assert all(time > self.watermark for time in times)
        self._check_layout()
        return out

    def move(self, to: int) -> None:
        self.watermark = max(self.watermark, to)

    def _check_layout(self) -> None:
        owners = layout(FORGETTING).owner
        assert {owners(entry, value) for entry, value in self.state.items()} <= {b"a", b"b"}


moments = st.one_of(st.integers(0, 50), st.integers(20, 26))
items = st.one_of(st.sampled_from("ab"), st.none())
events = st.builds(Event, st.integers(0, 5), items, st.one_of(moments, st.none()))
versions = st.builds(
    Version, items, st.integers(0, 3), st.one_of(moments, st.none()), st.just(0), st.booleans(), st.just(1)
)
cuts = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), min_size=1, max_size=10)
"""How many rows come in each batch, and how far the watermark advances after it."""


def in_log(changes: list[Version]) -> list[Version]:
    return [version._replace(offset=n) for n, version in enumerate(changes)]


@hundred
@given(st.lists(events, max_size=12), st.lists(versions, max_size=10), cuts, st.randoms())
@pytest.mark.parametrize("logic", [LIVE, DROP, WAIT], ids=["keep", "drop", "wait"])
def test_any_interleaving_gives_the_same_rows(logic, came, changes, parts, choose):
    changes = in_log(changes)
    rows = [*came, *changes, *changes[::3]]  # some come twice
    choose.shuffle(rows)
    stage, batch = Stage(logic, horizon=1000), []
    for size, _ in parts:
        batch, rows = rows[:size], rows[size:]
        stage.take(batch)
    stage.take(rows)
    stage.move(100)
    stage.take([])
    assert stage.table == model(came, changes, drop=logic is DROP)
    in_batch = logic.apply(paired([*came, *changes]), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert Counter(row for row, _ in plain(in_batch.rows)) == stage.table


@hundred
@given(
    st.lists(events, max_size=20),
    st.lists(versions, max_size=12),
    st.tuples(cuts, st.integers(0, 20)),
    st.randoms(),
)
@pytest.mark.parametrize("logic", [LIVE, DROP, WAIT], ids=["keep", "drop", "wait"])
def test_events_within_the_horizon_are_right_and_state_ends_with_it(logic, came, changes, cut, choose):
    """A delete that is forgotten cannot hide an older version, so here there is none."""
    parts, horizon = cut
    changes = in_log([version._replace(gone=False) for version in changes])
    rows = [*came, *changes]
    choose.shuffle(rows)
    stage, seen = Stage(logic, horizon), []
    for size, step in [*parts, (len(rows), 0)]:
        batch, rows = rows[:size], rows[size:]
        horizon_then = stage.watermark - max(horizon, logic.wait_us)
        seen += [row for row in batch if isinstance(row, Version)]
        stage.take(batch)
        young = [event for event in stage.events if event.at is not None and event.at >= horizon_then]
        waiting = waiting_ids(stage)
        wanted = model([event for event in young if event.id not in waiting], seen, drop=logic is DROP)
        ids = {event.id for event in young} - {
            event.id for event in stage.events if event.at is None or event.at < horizon_then
        }
        assert {row: n for row, n in stage.table.items() if row[0] in ids - waiting} == {
            row: n for row, n in wanted.items() if row[0] in ids
        }
        stage.move(max(stage.watermark, 0) + step)
    stage.move(200)
    stage.take([])
    assert {entry[:1] for entry in stage.state} <= {b"k"}
    heads = {version.item for version in changes if version.item and version.valid is not None}
    assert {entry[1:].decode() for entry in stage.state} == heads


def waiting_ids(stage: Stage) -> set[int]:
    held = [time_chunks.Chunk(0, name, value) for name, value in stage.state.items() if name[:1] == b"w"]
    schema = pa.schema([*LEFT, pa.field("_weight", pa.int32())])
    return set(time_chunks.loaded(held, schema).rows.column("id").to_pylist())


@hundred
@given(st.lists(events, max_size=20), st.lists(versions, max_size=12), cuts, st.randoms())
def test_final_rows_come_once_and_are_right_when_versions_come_in_time(came, changes, parts, choose):
    """A version comes when the watermark is at most as far beyond its time as is waited for."""
    changes = in_log(changes)
    rows: list = [*came, *changes]
    choose.shuffle(rows)
    stage, sent = Stage(FINAL), []
    for size, step in parts:
        in_time = [row for row in rows if isinstance(row, Event) or row.valid is None or row.valid + 6 >= stage.watermark]  # fmt: skip
        batch, rows = in_time[:size], [row for row in rows if row not in in_time[:size]]
        sent += [row for row, _ in stage.take(batch)]
        stage.move(max(stage.watermark, 0) + step)
    taken = [row for row in changes if row not in rows]
    stage.move(200)
    sent += [row for row, _ in stage.take([])]
    assert Counter(sent) == model(stage.events, taken)
    assert {entry[:1] for entry in stage.state} <= {b"k"}


@hundred
@given(st.lists(events, max_size=10), st.lists(versions, max_size=10), cuts, st.randoms())
def test_rows_of_a_table_that_has_a_row_for_each_version_come_and_go(came, changes, parts, choose):
    """A change is -1 of the old row and +1 of the new one; here a rate of (item, time) is replaced or deleted."""
    table: dict = {}
    steps: list[list] = []
    for version in changes:
        if version.valid is None or version.item is None:
            continue
        place, step = (version.item, version.valid), []
        if place in table:
            step.append(table.pop(place)._replace(weight=-1))
        if not version.gone:
            table[place] = version._replace(offset=-1)
            step.append(table[place])
        steps.append(step)
    stage = Stage(ROWS, horizon=1000)
    pending = list(came)
    choose.shuffle(pending)
    for size, _ in parts:
        batch, pending = pending[:size], pending[size:]
        for step in steps[:2]:
            batch += step
        del steps[:2]
        stage.take(batch)
    stage.take([*pending, *(row for step in steps for row in step)])
    assert stage.table == model(came, list(table.values()))


def test_a_version_from_exactly_the_time_of_an_event_holds():
    stage = Stage(LIVE)
    stage.take([Event(1, "a", 10), Event(2, "a", 9), Version("a", 1, 10, 0)])
    assert stage.table == {(1, 1, "1970-01-01T00:00:00.000010Z#0"): 1, (2, None, None): 1}


def test_of_two_versions_with_one_time_the_later_in_the_log_holds_whichever_comes_first():
    early, late = Version("a", 2, 5, 1), Version("a", 1, 5, 2)
    for order in ([early, late], [late, early]):
        stage = Stage(LIVE, 100)
        stage.take([Event(1, "a", 7)])
        for version in order:
            stage.take([version])
        assert stage.table == {(1, 1, version_id(late)): 1}


def test_a_table_that_is_filled_only_later_corrects_what_went_out_without_it():
    stage = Stage(LIVE, 100)
    assert stage.take([Event(1, "a", 10)]) == [((1, None, None), 1)]
    first = Version("a", 3, 1, 0)
    assert stage.take([first]) == [((1, None, None), -1), ((1, 3, version_id(first)), 1)]


def test_a_delete_holds_from_its_time_and_of_a_key_never_seen_is_nothing():
    stage = Stage(LIVE, 100)
    stage.take(
        [Version("b", None, 3, 0, gone=True), Version("a", 1, 2, 1), Version("a", None, 8, 2, gone=True)]
    )
    stage.take([Event(1, "a", 7), Event(2, "a", 8), Event(3, "b", 9)])
    assert {row[:2] for row in stage.table} == {(1, 1), (2, None), (3, None)}


def test_events_that_come_twice_are_two_rows_and_are_corrected_twice():
    stage = Stage(LIVE, 100)
    stage.take([Event(1, "a", 10), Event(1, "a", 10)])
    stage.take([Event(1, "a", 10)])
    stage.take([Version("a", 1, 1, 0)])
    assert list(stage.table.values()) == [3]


def test_an_event_waits_for_its_version_and_not_longer_than_declared():
    stage = Stage(WAIT)
    stage.move(0)
    assert stage.take([Event(1, "a", 10), Event(2, "b", 10)]) == []
    stage.move(15)
    assert stage.take([Version("a", 1, 10, 0)]) == [((1, 1, "1970-01-01T00:00:00.000010Z#0"), 1)]
    stage.move(16)
    assert stage.take([]) == [((2, None, None), 1)]


def test_an_event_that_is_taken_back_takes_its_row_with_it():
    logic = LookupAsOf(
        key=("_on1",), as_of="at", valid="valid_from", columns=("rate", "name"), retractable=True
    )
    back = paired([Event(1, "a", 10)]).set_column(3, "_weight", pa.array([-1], pa.int32()))
    state, moment = Memory(), Moment(NEVER, 0, NEVER - 100)
    state.take(logic.apply(paired([Event(1, "a", 10)]), state, moment).changes)
    gone = logic.apply(back, state, moment)
    assert plain(gone.rows) == [((1, None, None), -1)]
    state.take(gone.changes)
    assert plain(logic.apply(paired([Version("a", 1, 1)]), state, moment).rows) == []


def test_a_key_with_many_events_is_corrected_where_it_is_touched_only():
    """20,000 events of a key: a version near the end reads the last chunk."""
    stage = Memory()
    moment = Moment(NEVER, 0, NEVER - 100)
    stage.take(LIVE.apply(paired([Event(n, "a", n) for n in range(20_000)]), stage, moment).changes)
    read: list[bytes] = []

    class Watched(Memory):
        def between(self, start, end):
            for name, value in super().between(start, end):
                if name[:1] == b"e":
                    read.append(name)
                yield name, value

    made = LIVE.apply(paired([Version("a", 1, 19_990, 0)]), Watched(stage), moment)
    assert made.rows.num_rows == 20
    assert len(set(read)) <= 2
