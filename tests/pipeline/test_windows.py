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
from headwater.pipeline import windowed
from headwater.pipeline.aggregate import parsed
from headwater.pipeline.operator import FOREVER, Applied, Moment, Nothing
from headwater.pipeline.sessions import Sessions
from headwater.pipeline.time import NEVER
from memorystate import Memory

KIND = (
    StructType()
    .add("user", StringType())
    .add("at", TimestampType())
    .add("n", LongType())
    .add("page", StringType())
)
ARROW = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("page", pa.string()), ("_key", pa.string())])  # fmt: skip
GAP = 5
AGGREGATES = parsed(
    "test", {"rows": "count(*)", "total": "sum(n)", "landing": "first(page)", "exit": "last(page)"}, KIND
)
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
"""The rows of each batch, and how far the watermark goes on after it."""
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


def check(logic, parts: list, horizon: int, model: Callable, kept: Callable, *, times: int) -> None:
    """Runs the batches: the table is always the model's over what was accepted, and state holds the times that ``kept`` says, no more."""
    stage = Stage(logic, horizon)
    for rows, by in parts:
        stage.take(rows)
        assert stage.table == model(stage.accepted)
        held = {key: [each[:times] for each in entry] for key, entry in stage.entries().items()}
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
    return {user: [[run[0].at, run[-1].at] for run in mine] for user, mine in found.items() if mine}


@hundred
@given(parts=batches, horizon=horizons)
def test_sessions_are_those_of_all_rows_for_every_order_delay_and_cut(parts, horizon):
    check(SESSIONS, parts, horizon, session_table, open_sessions, times=2)


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
        ({"time": "page"}, "sessions: the time is no timestamp.*got page string.*there is at"),
        ({"time": "when"}, "the time is no timestamp.*got when"),
        ({"aggregates": parsed("sessions", {"user": "count(*)"}, KIND)}, "cannot have this name; got user"),
        ({"aggregates": parsed("sessions", {"_n": "count(*)"}, KIND)}, "cannot have this name; got _n"),
    ],
)
def test_what_cannot_be_a_session_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        msgspec.structs.replace(SESSIONS, **options).schema(KIND)


@pytest.mark.parametrize("text", ["a while", "0 minutes", 5])
def test_a_wrong_length_is_refused(text):
    with pytest.raises(UsageError, match=r"sessions: gap.*no length of time"):
        windowed.length_us("sessions", "gap", text)
