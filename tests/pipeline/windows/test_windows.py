"""Windows of our own: whatever the order, the delay and the cut, the table says what all rows together say, and state ends with the horizon.

Times are microseconds, few and close together, so that rows meet at every boundary.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from headwater.errors import UsageError
from headwater.pipeline.operator import event_rows
from headwater.pipeline.operator.aggregate import AggregateCall, resolve
from headwater.pipeline.operator.logic import Applied
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.time.watermark import NEVER, Moment
from headwater.pipeline.windows.distinct import Distinct
from headwater.pipeline.windows.sessions import Sessions
from headwater.pipeline.windows.sliding import Sliding
from support.memorystate import Memory

KIND = (
    StructType()
    .add("user", StringType())
    .add("at", TimestampType())
    .add("n", LongType())
    .add("page", StringType())
)
ARROW = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("page", pa.string()), ("_key", pa.string())])  # fmt: skip
GAP = 5
AGGREGATES = resolve(
    "test",
    {
        "rows": AggregateCall("count", None),
        "total": AggregateCall("sum", "n"),
        "landing": AggregateCall("first", "page"),
        "exit": AggregateCall("last", "page"),
    },
    KIND,
)
SIZE = 7
WITHIN = 6
SLIDING = Sliding(key=("user",), time="at", size_us=SIZE, aggregates=AGGREGATES)
DISTINCT = Distinct(key=("user",), time="at", within_us=WITHIN)
SESSIONS = Sessions(key=("user",), time="at", gap_us=GAP, aggregates=AGGREGATES)


class Event(NamedTuple):
    user: str
    at: int | None
    n: int | None = 1
    page: str | None = "x"


events = st.lists(
    st.builds(
        Event,
        st.sampled_from("ab"),
        st.one_of(st.integers(-8, 50), st.integers(20, 30), st.none()),
        st.none() | st.integers(-3, 3),
        st.none() | st.sampled_from("xyz"),
    ),
    max_size=14,
)
batches = st.lists(st.tuples(events, st.integers(0, 12)), max_size=8)
"""The rows of each batch, and how far the watermark advances after it."""
horizons = st.integers(0, 25)
hundred = settings(max_examples=100, deadline=None)


def table(rows: list[Event]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[], [], [], []]
    user, at, n, page = columns
    stamps = pa.array(at, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table([pa.array(user, pa.string()), stamps, pa.array(n, pa.int64()), pa.array(page, pa.string()), pa.array(user, pa.string())], schema=ARROW)  # fmt: skip


def plain(rows: pa.Table) -> list[dict]:
    """Rows with their times in microseconds."""
    found = []
    for column in rows.column_names:
        values = rows.column(column).combine_chunks()
        if column == "window":
            start, end = (values.field(n).cast(pa.int64()).to_pylist() for n in (0, 1))
            found.append(list(zip(start, end, strict=True)))
        else:
            found.append(
                (values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values).to_pylist()
            )
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*found, strict=True)]


class Stage:
    """What the stage does around a logic: late rows out, rows in, state on, and the table that readers see."""

    def __init__(self, logic, horizon: int, seed: int = 0) -> None:
        self.logic, self.horizon, self.random = logic, horizon, random.Random(seed)
        self.state, self.table, self.accepted = Memory(), {}, []
        self.watermark = NEVER

    @property
    def moment(self) -> Moment:
        return Moment(self.watermark, 0, self.watermark - self.horizon)

    def take(self, rows: list[Event]) -> Applied:
        rows = [row for row in rows if row.at is None or row.at >= self.moment.horizon]
        applied = self.logic.apply(table(rows), self.state, self.moment)
        shuffled = self.random.sample(rows, len(rows))
        again = self.logic.apply(table(shuffled), self.state, self.moment)
        assert list(again.changes.items()) == list(applied.changes.items())
        assert again.rows.equals(applied.rows)
        assert again.open == applied.open
        self._see(rows, plain(applied.rows))
        self.state.take(applied.changes)
        self.accepted += [row for row in rows if row.at is not None]
        times = [int.from_bytes(entry[1:9], signed=True) for entry in self.state if entry[:1] == b"t"]
        assert applied.open == (min(times) + self.horizon if times else None)
        return applied

    def move(self, by: int) -> None:
        self.watermark = max(self.watermark, -8) + by

    def _see(self, rows: list[Event], out: list[dict]) -> None:
        """The table after a batch. What was called complete changes only with a straggler of its key."""
        stragglers = {row.user for row in rows if row.at is not None and row.at < self.watermark}
        for row in out:
            place = (row["user"], row["window"][0])
            before = self.table.get(place)
            if before is not None and before["_until"] <= self.watermark and row["user"] not in stragglers:
                assert row == before
            if row.get("_gone"):
                assert before is not None
                assert before["window"] == row["window"]
                del self.table[place]
            else:
                self.table[place] = row

    def entries(self) -> dict[str, list]:
        """The state of each key, without its time-out."""
        return {
            key[1:].decode(): msgspec.msgpack.decode(value[8:])
            for key, value in self.state.items()
            if key[:1] == b"k"
        }


def everything(logic, rows: list[Event]) -> dict:
    """The table that a batch over all rows makes."""
    applied = logic.apply(table(rows), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert applied.changes == {}
    return {(row["user"], row["window"][0]): row for row in plain(applied.rows)}


def aggregated(rows: list[Event]) -> dict:
    numbers = [row.n for row in rows if row.n is not None]
    pages = [(row.at, row.page) for row in rows if row.page is not None]
    return {
        "rows": len(rows),
        "total": sum(numbers) if numbers else None,
        "landing": min(pages)[1] if pages else None,
        "exit": max(pages)[1] if pages else None,
    }


def check(logic, parts: list, horizon: int, model: Callable, kept: Callable) -> None:
    """Runs the batches: the table is always the model's over what was accepted, and state holds the times that ``kept`` says, no more."""
    stage = Stage(logic, horizon)
    for rows, by in parts:
        stage.take(rows)
        assert stage.table == model(stage.accepted)
        held = {key: entry[:-1] for key, entry in stage.entries().items()}
        assert held == kept(stage.accepted, stage.moment.horizon)
        stage.move(by)
    assert everything(logic, stage.accepted) == stage.table
    stage.move(1_000)
    stage.take([])
    assert stage.state == {}
    assert stage.table == model(stage.accepted)


def by_user(rows: list[Event]) -> dict[str, list[Event]]:
    return {
        user: sorted((row for row in rows if row.user == user), key=lambda row: row.at)
        for user in {row.user for row in rows}
    }


# ---- sessions ------------------------------------------------------------------------------------------


def runs(rows: list[Event]) -> list[list[Event]]:
    found: list[list[Event]] = []
    for row in rows:
        if found and row.at - found[-1][-1].at <= GAP:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def session_table(rows: list[Event]) -> dict:
    return {
        (user, run[0].at): {"user": user, "window": (run[0].at, run[-1].at + GAP)}
        | aggregated(run)
        | {"_gone": False, "_until": run[-1].at + GAP + 1}
        for user, mine in by_user(rows).items()
        for run in runs(mine)
    }


def open_sessions(rows: list[Event], horizon: int) -> dict:
    """Those that a row exactly at the horizon, or later, would join."""
    found = {
        user: [run for run in runs(mine) if run[-1].at + GAP >= horizon]
        for user, mine in by_user(rows).items()
    }
    return {
        user: [[run[0].at for run in mine], [run[-1].at for run in mine]]
        for user, mine in found.items()
        if mine
    }


@hundred
@given(parts=batches, horizon=horizons)
def test_sessions_are_those_of_all_rows_for_every_order_delay_and_cut(parts, horizon):
    check(SESSIONS, parts, horizon, session_table, open_sessions)


def test_an_event_exactly_a_gap_later_belongs_to_the_session_as_in_spark():
    assert list(everything(SESSIONS, [Event("a", 0), Event("a", GAP)])) == [("a", 0)]
    assert list(everything(SESSIONS, [Event("a", 0), Event("a", GAP + 1)])) == [("a", 0), ("a", GAP + 1)]


def test_a_straggler_joins_two_sessions_and_one_of_them_is_gone():
    stage = Stage(SESSIONS, horizon=20)
    stage.take([Event("a", 0), Event("a", 10)])
    applied = stage.take([Event("a", 5)])
    assert [(row["window"], row["rows"], row["_gone"]) for row in plain(applied.rows)] == [
        ((0, 15), 3, False),
        ((10, 15), None, True),
    ]
    applied = stage.take([Event("a", -3)])  # the start moves: the row with the old one is gone
    assert [(row["window"], row["_gone"]) for row in plain(applied.rows)] == [
        ((-3, 15), False),
        ((0, 15), True),
    ]


def test_a_session_closes_with_no_further_input_and_is_forgotten_with_the_tick():
    stage = Stage(SESSIONS, horizon=20)
    opened = stage.take([Event("a", 0)]).open
    assert opened == GAP + 1 + 20
    assert [row["_until"] for row in stage.table.values()] == [GAP + 1]
    stage.watermark = opened - 1
    assert stage.take([]).open == opened
    stage.watermark = opened
    assert stage.take([]).open is None
    assert stage.state == {}
    assert len(stage.table) == 1


def test_a_row_exactly_at_the_horizon_still_finds_its_session():
    stage = Stage(SESSIONS, horizon=3)
    stage.take([Event("a", 0)])
    stage.watermark = GAP + 3
    stage.take([Event("a", GAP), Event("a", GAP - 1)])  # one exactly at the horizon, one before it
    assert [(row["window"], row["rows"]) for row in stage.table.values()] == [((0, 2 * GAP), 2)]


def test_equal_times_are_one_session_and_their_pages_are_decided_by_value():
    (row,) = everything(SESSIONS, [Event("a", 1, page=page) for page in "yxz"]).values()
    assert (row["rows"], row["landing"], row["exit"]) == (3, "x", "z")


def test_a_batch_without_rows_and_without_state_is_nothing():
    applied = SESSIONS.apply(table([]), Memory(), Moment(0, 0, 0))
    assert (applied.rows.num_rows, applied.changes, applied.open) == (0, {}, None)
    assert applied.rows.schema.names == SESSIONS.schema(KIND).names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "page"}, "sessions: time='page' is not a timestamp column.*of type string; expected at"),
        ({"time": "when"}, "time='when' is not a timestamp column.*got no such column; expected at"),
        (
            {"aggregates": resolve("sessions", {"user": AggregateCall("count", None)}, KIND)},
            "an aggregate cannot be called 'user'",
        ),
        (
            {"aggregates": resolve("sessions", {"_n": AggregateCall("count", None)}, KIND)},
            "an aggregate cannot be called '_n'",
        ),
    ],
)
def test_what_cannot_be_a_session_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        msgspec.structs.replace(SESSIONS, **options).schema(KIND)


@pytest.mark.parametrize("text", ["a while", "0 minutes", 5])
def test_a_wrong_length_is_refused(text):
    with pytest.raises(UsageError, match=r"sessions: gap is not a duration"):
        event_rows.length_us("sessions", "gap", text)


# ---- sliding -------------------------------------------------------------------------------------------


def sliding_table(rows: list[Event]) -> dict:
    return {
        (user, row.at - SIZE): {"user": user, "window": (row.at - SIZE, row.at)}
        | aggregated([each for each in mine if row.at - SIZE < each.at <= row.at])
        | {"_until": row.at + 1}
        for user, mine in by_user(rows).items()
        for row in mine
    }


def sliding_events(rows: list[Event], horizon: int) -> dict:
    """Those that a row exactly at the horizon, or later, would count."""
    found = {
        user: sorted({row.at for row in mine if max(horizon, row.at) - SIZE < row.at})
        for user, mine in by_user(rows).items()
    }
    return {user: [times] for user, times in found.items() if times}


@hundred
@given(parts=batches, horizon=horizons)
def test_sliding_windows_are_those_of_all_rows_for_every_order_delay_and_cut(parts, horizon):
    check(SLIDING, parts, horizon, sliding_table, sliding_events)


def test_an_event_is_out_of_the_window_exactly_a_size_later():
    found = everything(SLIDING, [Event("a", 0), Event("a", SIZE - 1), Event("a", SIZE)])
    assert [(row["window"][1], row["rows"]) for row in found.values()] == [(0, 1), (SIZE - 1, 2), (SIZE, 2)]


def test_a_straggler_changes_its_own_row_and_those_less_than_a_size_after_it():
    stage = Stage(SLIDING, horizon=100)
    stage.take([Event("a", at) for at in (0, 5, 2 + SIZE, 3 + SIZE)])
    changed = plain(stage.take([Event("a", 3)]).rows)
    assert [row["window"][1] for row in changed] == [3, 5, 2 + SIZE]


def test_events_at_the_same_time_are_one_row():
    stage = Stage(SLIDING, horizon=0)
    stage.take([Event("a", 1), Event("a", 1)])
    stage.take([Event("a", 1)])
    assert [row["rows"] for row in stage.table.values()] == [3]


def test_an_event_is_forgotten_exactly_when_it_counts_for_nothing_any_more():
    stage = Stage(SLIDING, horizon=20)
    opened = stage.take([Event("a", 0)]).open
    assert opened == SIZE + 20
    stage.watermark = opened - 1
    stage.take([])
    assert len(stage.state) == 2
    stage.watermark = opened
    assert stage.take([]).open is None
    assert stage.state == {}


@settings(max_examples=100, deadline=None)
@given(times=st.lists(st.integers(0, 60), min_size=1, max_size=40))
def test_a_long_window_merges_each_event_a_few_times(times):
    merges = 0

    def merge(one, two):
        nonlocal merges
        merges += 1
        return [one[0] + two[0]]

    from headwater.pipeline.windows.sliding import _changed_windows

    different = sorted(set(times))
    rows = list(_changed_windows((different, [[1]] * len(different)), different, 30, merge))
    assert [total for _, (total,) in rows] == [
        sum(t - 30 < each <= t for each in different) for t in different
    ]
    assert merges <= 3 * len(different)


# ---- distinct ------------------------------------------------------------------------------------------


class Passing(Stage):
    """A stage whose rows are not a table: all that came out, in order."""

    def __init__(self, logic, horizon: int, seed: int = 0) -> None:
        super().__init__(logic, horizon, seed)
        self.out: list[Event] = []

    def _see(self, rows: list[Event], out: list[dict]) -> None:  # noqa: ARG002
        self.out += [Event(**row) for row in out]


def bytes_of(row: Event) -> bytes:
    from datetime import UTC, datetime, timedelta

    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.at)
    return msgspec.msgpack.encode([row.user, at, row.n, row.page])


def first_ones(known: list[Event], rows: list[Event]) -> list[Event]:
    """The rows of a batch that pass when nothing is ever forgotten."""
    passing: list[Event] = []
    for row in sorted(rows, key=lambda row: (row.user, row.at, bytes_of(row))):
        if all(each.user != row.user or abs(each.at - row.at) > WITHIN for each in known + passing):
            passing.append(row)
    return passing


@hundred
@given(parts=batches, horizon=horizons)
def test_of_duplicates_the_first_passes_as_if_nothing_were_forgotten(parts, horizon):
    stage, expected = Passing(DISTINCT, horizon), []
    for rows, by in parts:
        before = len(stage.accepted)
        stage.take(rows)
        expected += first_ones(expected, stage.accepted[before:])
        assert stage.out == expected
        held = {user: sorted(r.at for r in expected if r.user == user and r.at + WITHIN >= stage.moment.horizon) for user in "ab"}  # fmt: skip
        assert stage.entries() == {user: times for user, times in held.items() if times}
        stage.move(by)
    stage.move(1_000)
    stage.take([])
    assert stage.state == {}


@hundred
@given(
    rows=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 50)),
    copies=st.lists(st.integers(0, 7), max_size=40),
    cuts=st.lists(st.tuples(st.integers(0, 47), st.integers(0, 12))),
    seed=st.integers(0, 99),
)
def test_copies_of_rows_leave_one_in_any_order_and_any_cut(rows, copies, cuts, seed):
    """Each key has one event here, sent several times: what a producer that tries again does."""
    sent = [Event(user, at, at, "x") for user, at in rows.items()]
    all_of_them = sent + [sent[n % len(sent)] for n in copies if sent]
    shuffled = random.Random(seed).sample(all_of_them, len(all_of_them))
    stage, begin = Passing(DISTINCT, horizon=0), 0
    for end, by in sorted(cuts):
        stage.take(shuffled[begin:end])
        begin = max(begin, end)
        stage.move(by)
    stage.take(shuffled[begin:])
    assert sorted(stage.out) == sorted(set(stage.accepted))
    batch = DISTINCT.apply(table(stage.accepted), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert sorted(Event(**row) for row in plain(batch.rows)) == sorted(stage.out)


def test_exactly_within_is_a_duplicate_and_the_id_is_kept_just_as_long():
    stage = Passing(DISTINCT, horizon=3)
    opened = stage.take([Event("a", 10)]).open
    assert opened == 10 + WITHIN + 1 + 3
    stage.watermark = opened - 1
    stage.take([Event("a", 10 + WITHIN)])  # exactly at the horizon
    assert [row.at for row in stage.out] == [10]
    stage.watermark = opened
    stage.take([])
    assert stage.state == {}
    stage.take([Event("a", 10 + WITHIN + 1)])
    assert [row.at for row in stage.out] == [10, 10 + WITHIN + 1]


def test_of_a_batch_the_earliest_passes_and_of_equal_times_the_smallest():
    stage = Passing(DISTINCT, horizon=0)
    stage.take([Event("a", 3, 1), Event("a", 2, 9), Event("a", 2, 8)])
    assert stage.out == [Event("a", 2, 8)]
