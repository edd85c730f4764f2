"""Clocks: corrected times are near the truth for every device, whatever the order in which records come, and no row is lost downstream."""

import random
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

import headwater as hw
from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.follow.results import results
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.time.watermark import NEVER, Moment, output_watermark
from headwater.pipeline.topics import Topics
from headwater.pipeline.windows.device_clocks import RIGHT_US, Clocks, Limits, correction
from headwater.testing import SettableClock
from support.servers import wait_until

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
BEGIN = int(datetime(2026, 1, 5, 9, tzinfo=UTC).timestamp()) * SECOND
BOUND, TRANSIT = 7 * DAY, MINUTE
LOGIC = Clocks(
    key=("device",),
    occurred="occurred",
    sent="sent",
    received="received",
    output_delay="7 days",
    transit="1 minute",
    window="1 hour",
)
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("device", pa.string()),
        ("n", pa.int64()),
        ("occurred", TIME),
        ("sent", TIME),
        ("received", TIME),
        ("extra", pa.struct([("price", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string()))])),
        ("_key", pa.string()),
    ]
)


class Record:
    """A record of a device, and the truth about it."""

    def __init__(self, n: int, truth: int, *, offset: int, age: int, transit: int, device: str = "a") -> None:
        self.n, self.truth, self.transit, self.device = n, truth, transit, device
        self.occurred, self.sent = truth - offset, truth + age - offset
        self.received = truth + age + transit

    @property
    def row(self) -> dict:
        extra = {"price": Decimal(self.n), "tags": ["x"] * (self.n % 3)}
        times = {"occurred": self.occurred, "sent": self.sent, "received": self.received}
        return {"device": self.device, "n": self.n, "extra": extra, "_key": self.device} | times


def table(records: list[Record]) -> pa.Table:
    return pa.Table.from_pylist([record.row for record in records], schema=SCHEMA)


def numbers(rows: pa.Table) -> dict[int, tuple]:
    """What came out for each record."""
    times = rows.column("corrected").cast(pa.int64()).to_pylist()
    words = rows.column("correction").to_pylist()
    assert len(set(rows.column("n").to_pylist())) == rows.num_rows
    return {
        n: (time, word["done"], word["offset_us"])
        for n, time, word in zip(rows.column("n").to_pylist(), times, words, strict=True)
    }


def batch(records: list[Record]) -> dict[int, tuple]:
    applied = LOGIC.apply(table(records), Nothing(), Moment(FOREVER, NEVER, FOREVER))
    assert applied.changes == {}
    assert applied.open is None
    return numbers(applied.rows)


class Memory:
    """State as a dict, and what came out."""

    def __init__(self) -> None:
        self.state, self.out, self.open = {}, {}, None

    def get(self, keys):
        return {key: self.state[key] for key in keys if key in self.state}

    def each(self, keys):
        return list(map(self.state.get, keys))

    def between(self, start, end):
        return iter(sorted((key, value) for key, value in self.state.items() if start <= key < end))

    def take(self, records: list[Record], watermark: int, horizon_us: int = 0) -> list[int]:
        applied = LOGIC.apply(table(records), self, Moment(watermark, 0, watermark - horizon_us))
        for key, value in applied.changes.items():
            self.state.pop(key, None)
            if value is not None:
                self.state[key] = value
        found = numbers(applied.rows)
        assert not found.keys() & self.out.keys()
        self.out |= found
        self.open = applied.open
        timers = sorted(key for key in self.state if key[:1] == b"t")
        assert self.open == (int.from_bytes(timers[0][1:9], signed=True) if timers else None)
        return list(found)


# ---- near the truth ------------------------------------------------------------------------------------

offsets = st.sampled_from([0, -90 * MINUTE, 400 * DAY, -400 * DAY, 3 * SECOND]) | st.integers(-DAY, DAY)
steps = st.lists(
    st.tuples(st.integers(0, 20 * MINUTE), st.integers(0, 3 * DAY) | st.just(0), st.integers(0, TRANSIT)),
    min_size=1,
    max_size=30,
)


def device(offset: int, made: list[tuple[int, int, int]], drift_ppm: int = 0, first: int = 0) -> list[Record]:
    """Records of one device: time since the last one was sent, age when sent, time under way."""
    records, at = [], BEGIN
    for n, (gap, age, transit) in enumerate(made, first):
        at += gap
        drifted = offset + (at - BEGIN) * drift_ppm // 1_000_000
        records.append(Record(n, at - age, offset=drifted, age=age, transit=transit))
    return records


def is_near(record: Record, found: tuple, slack: int = 0) -> bool:
    """Between the truth and as much later as the record was under way; a right clock is left as it is."""
    time, done, _ = found
    early = RIGHT_US if done == "none" else 0
    return -early - slack <= time - record.truth <= record.transit + slack


@settings(max_examples=200, deadline=None)
@given(offset=offsets, made=steps)
def test_a_wrong_clock_is_corrected_to_within_the_time_under_way(offset, made):
    records = device(offset, made)
    found = batch(records)
    assert len(found) == len(records)
    assert all(is_near(record, found[record.n]) for record in records)


@settings(max_examples=100, deadline=None)
@given(offset=offsets, made=steps, ppm=st.integers(-100, 100))
def test_a_clock_that_drifts_is_followed(offset, made, ppm):
    """At most by what it drifts within the window."""
    records = device(offset, made, ppm)
    found = batch(records)
    slack = (HOUR + TRANSIT) * abs(ppm) // 1_000_000 + 1
    assert all(is_near(record, found[record.n], slack) for record in records)


@settings(max_examples=200, deadline=None)
@given(
    offset=offsets, made=steps, wrong=st.integers(-2 * DAY, 2 * DAY) | st.integers(-100, 100), data=st.data()
)
def test_one_bad_sample_does_no_harm_to_others(offset, made, wrong, data):
    records = device(offset, made)
    bad = data.draw(st.sampled_from(records))
    bad.sent += wrong
    found = batch(records)
    assert all(is_near(record, found[record.n]) for record in records if record is not bad)
    if abs(wrong) > 2 * TRANSIT and found[bad.n][1] != "clamped":
        assert found[bad.n][1] in {"unsure", "none"}


@settings(max_examples=200, deadline=None)
@given(
    made=steps,
    later=steps,
    offset=offsets,
    step=st.integers(2 * TRANSIT + 1, 400 * DAY),
    sign=st.sampled_from([1, -1]),
)
def test_a_clock_that_is_set_is_followed_with_the_first_record(made, later, offset, step, sign):
    before = device(offset, [(gap, 0, transit) for gap, _, transit in made])
    after = device(offset + sign * step, [(gap, 0, transit) for gap, _, transit in later], first=len(before))
    for record in after:
        shift = before[-1].received + 1 - BEGIN
        record.truth, record.received = record.truth + shift, record.received + shift
        record.occurred, record.sent = record.occurred + shift, record.sent + shift
    found = batch([*before, *after])
    assert all(is_near(record, found[record.n]) for record in after)


times = st.none() | st.integers(BEGIN - 1000 * DAY, BEGIN + 1000 * DAY)


@given(
    occurred=times,
    sent=times,
    received=times,
    samples=st.lists(st.tuples(st.integers(BEGIN - DAY, BEGIN + DAY), times.filter(bool))),
)
def test_whatever_the_times_are_the_corrected_one_is_within_the_bounds(occurred, sent, received, samples):
    made = correction(occurred, sent, received, sorted(set(samples)), Limits(BOUND, TRANSIT, HOUR))
    if occurred is None or received is None:
        assert made == (None, "unsure", None)
    else:
        assert received - BOUND <= made.time_us <= received
        assert made.done in {"none", "shifted", "unsure", "clamped"}
        assert (made.offset_us is None) == (sent is None)
        if sent is not None and made.done == "shifted":
            assert -TRANSIT <= made.offset_us - (received - sent) <= 0


def test_the_words_say_what_was_done():
    limits = Limits(BOUND, TRANSIT, HOUR)

    def done(offset: int, age: int, *samples: int) -> tuple:
        record = Record(0, BEGIN, offset=offset, age=age, transit=0)
        known = [(record.received - 1, sample) for sample in sorted(samples)]
        return correction(record.occurred, record.sent, record.received, known, limits)

    assert done(0, 0) == (BEGIN, "none", 0)
    assert done(RIGHT_US, 0).done == "none"
    assert done(HOUR, 0) == (BEGIN, "unsure", HOUR)
    assert done(HOUR, 0, HOUR + 5) == (BEGIN, "shifted", HOUR)
    assert done(-1, 0) == (BEGIN, "unsure", -1)
    assert done(HOUR, 0, HOUR - 5) == (BEGIN, "shifted", HOUR), "one smaller sample is not believed"
    assert done(HOUR, 0, HOUR - 5, HOUR - 7) == (BEGIN - 5, "shifted", HOUR - 5)
    assert done(HOUR, 0, HOUR - 2 * MINUTE, HOUR - 3 * MINUTE) == (BEGIN, "unsure", HOUR)
    assert done(0, 8 * DAY) == (BEGIN + DAY, "clamped", 0)
    assert done(0, -5)[:2] == (BEGIN - 5, "clamped"), "it cannot have occurred after it was received"


def test_a_record_without_the_time_of_sending_keeps_its_time_within_the_bounds():
    limits = Limits(BOUND, TRANSIT, HOUR)
    assert correction(BEGIN, None, BEGIN + 5, [], limits) == (BEGIN, "unsure", None)
    assert correction(BEGIN + 9, None, BEGIN + 5, [], limits) == (BEGIN + 5, "clamped", None)


# ---- any order -----------------------------------------------------------------------------------------

arrivals = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 3 * HOUR),
        st.integers(0, 2 * HOUR),
        st.sampled_from([0, 50, 5 * SECOND, TRANSIT]),
        st.sampled_from([HOUR, HOUR, HOUR, -DAY, 0]),
    ),
    min_size=1,
    max_size=25,
)


def records_of(made: list[tuple]) -> list[Record]:
    return [
        Record(n, BEGIN + at - age, offset=offset, age=age, transit=transit, device=name)
        for n, (name, at, age, transit, offset) in enumerate(made)
    ]


def cut(records: list[Record], rng: random.Random) -> list[list[Record]]:
    shuffled = rng.sample(records, len(records))
    at = sorted(rng.randrange(len(records) + 1) for _ in range(rng.randrange(5)))
    return [shuffled[a:b] for a, b in zip([0, *at], [*at, len(records)], strict=True)]


@settings(max_examples=300, deadline=None)
@given(made=arrivals, seed=st.integers(0, 1 << 30))
def test_any_order_and_any_cut_give_the_batch_answer_and_leave_no_state(made, seed):
    rng, records, memory = random.Random(seed), records_of(made), Memory()
    parts, watermark = cut(records, rng), NEVER
    for at, part in enumerate(parts):
        limit = min((record.received for rest in parts[at:] for record in rest), default=FOREVER)
        watermark = max(watermark, limit - rng.choice([0, 0, 1, HOUR]))  # nothing is late
        memory.take(part, watermark)
    memory.take([], max(record.received for record in records) + 1)
    assert memory.out == batch(records)
    memory.take([], max(record.received for record in records) + HOUR + 1)
    assert memory.state == {}
    assert memory.open is None


@settings(max_examples=60, deadline=None)
@given(made=arrivals, seed=st.integers(0, 99), at=st.integers(0, 3 * HOUR))
def test_shuffled_input_gives_the_same_bytes(made, seed, at):
    records, moment = records_of(made), Moment(BEGIN + at, 0, BEGIN + at - HOUR)
    one = LOGIC.apply(table(records), Nothing(), moment)
    two = LOGIC.apply(table(random.Random(seed).sample(records, len(records))), Nothing(), moment)
    assert list(one.changes.items()) == list(two.changes.items())
    assert one.rows == two.rows


def test_a_row_comes_once_when_the_watermark_has_passed_it_with_all_that_it_had():
    memory = Memory()
    first, second = device(HOUR, [(MINUTE, 0, 0), (MINUTE, 0, 7)])
    assert memory.take([first, second], NEVER) == []
    assert memory.open == first.received + 1
    assert memory.take([], first.received) == [], "others with its time may come"
    assert Memory().take([first], first.received) == []
    applied = LOGIC.apply(table([]), memory, Moment(first.received + 1, 0, first.received + 1))
    assert (
        applied.rows.drop_columns(["corrected", "correction"]).to_pylist()
        == table([first]).drop_columns(["_key"]).to_pylist()
    )
    assert memory.take([], first.received + 1) == [0]
    assert memory.open == second.received + 1
    assert memory.take([], second.received + 1) == [1]


def test_the_state_of_a_device_is_a_few_samples_however_many_it_sends():
    memory = Memory()
    for record in device(HOUR, [(SECOND, 0, n % 7) for n in range(500)]):
        memory.take([record], record.received - 5 * SECOND)
    assert len(memory.out) == 494
    assert sum(len(key) + len(value) for key, value in memory.state.items()) < 1200


def test_a_straggler_is_corrected_by_what_is_kept_and_changes_no_row_that_was_emitted():
    memory = Memory()
    records = device(HOUR, [(MINUTE, 0, 5), (MINUTE, 0, 4), (MINUTE, 0, SECOND), (MINUTE, 0, 0)])
    late = records.pop(2)
    memory.take(records, BEGIN + 30 * MINUTE, horizon_us=HOUR)
    assert memory.take([late], BEGIN + 31 * MINUTE, horizon_us=HOUR) == [2]
    assert memory.out[2] == (late.truth + 5, "shifted", HOUR + 5)
    assert memory.open == records[-1].received + 2 * HOUR + 1, "as long as stragglers are waited for"


def test_a_year_that_python_has_no_date_for_stops_nothing():
    record = Record(0, BEGIN, offset=-18_000 * 365 * DAY, age=5, transit=0)
    other = Record(1, BEGIN, offset=-18_000 * 365 * DAY, age=5, transit=3)
    memory = Memory()
    memory.take([record, other], NEVER)
    memory.take([], BEGIN + HOUR)
    assert memory.out[0] == (BEGIN, "unsure", -18_000 * 365 * DAY)
    assert memory.out[1][:2] == (BEGIN + 3, "shifted")


def test_rows_without_times_pass_at_once():
    memory = Memory()
    made = [record.row for record in device(HOUR, [(0, 0, 0)] * 3)]
    for row, name in zip(made, ("occurred", "sent", "received"), strict=True):
        row[name] = None
    applied = LOGIC.apply(pa.Table.from_pylist(made[2:], schema=SCHEMA), memory, Moment(NEVER, 0))
    assert numbers(applied.rows) == {2: (None, "unsure", None)}
    assert applied.changes == {}
    everything = LOGIC.apply(pa.Table.from_pylist(made, schema=SCHEMA), memory, Moment(FOREVER, 0, FOREVER))
    assert {n: word for n, (_, word, _) in numbers(everything.rows).items()} == dict.fromkeys(
        range(3), "unsure"
    )


# ---- operators downstream ------------------------------------------------------------------------------


def test_operators_downstream_see_no_watermark_that_a_held_row_has_not_passed():
    assert output_watermark(None, [5]) == NEVER
    assert output_watermark(100, [None, None]) == 100
    assert output_watermark(100, [None, 51, 300]) == 50
    plan = Plan(7, {}, {}, watermark=100, horizon_us=10, passed={"downstream2": 40})
    assert plan.moment("clocks1") == Moment(100, 0, 90)
    assert plan.moment("downstream2") == Moment(40, 0, 30)


@settings(max_examples=150, deadline=None)
@given(made=arrivals, seed=st.integers(0, 1 << 30))
def test_no_row_is_emitted_that_is_late_for_operators_downstream(made, seed):
    """Each row is after the watermark of the operators downstream, though shards are looked at in some batches only."""
    rng, records = random.Random(seed), records_of(made)
    shards, downstream, watermark = {"a": Memory(), "b": Memory()}, NEVER, NEVER
    parts = [*cut(records, rng), [], []]
    for at, part in enumerate(parts):
        limit = min((record.received for rest in parts[at:] for record in rest), default=BEGIN + DAY)
        watermark = max(watermark, limit - rng.choice([0, MINUTE]))
        for name, memory in shards.items():
            mine = [record for record in part if record.device == name]
            if mine or rng.random() < 0.3 or at == len(parts) - 1:
                for n in memory.take(mine, watermark):
                    assert memory.out[n][0] >= downstream - BOUND
        downstream = output_watermark(watermark, [memory.open for memory in shards.values()])
        assert downstream <= watermark
    assert sum(len(memory.out) for memory in shards.values()) == len(records)


# ---- through Spark -------------------------------------------------------------------------------------


class Tap(hw.Event):
    device: str
    n: int
    occurred: datetime
    sent: datetime
    received: datetime


def tap(record: Record) -> Tap:
    at = [datetime.fromtimestamp(us / SECOND, UTC) for us in (record.occurred, record.sent, record.received)]
    return Tap(record.device, record.n, *at)


def minutes(*made: tuple[float, float], first: int, device: str = "a", offset: int = 400 * DAY) -> list[Tap]:
    """Taps by the minute at which they are received and their age in minutes."""
    return [
        tap(
            Record(
                n,
                BEGIN + int((at - age) * MINUTE),
                offset=offset,
                age=int(age * MINUTE),
                transit=0,
                device=device,
            )
        )
        for n, (at, age) in enumerate(made, first)
    ]


def corrected(taps):
    return hw.corrected_time(
        taps, "device", occurred="occurred", sent="sent", received="received", bound="3 hours"
    )


def per_window(taps):
    from pyspark.sql.functions import count, window

    return corrected(taps).groupBy(window("corrected", "10 minutes")).agg(count("*").alias("n"))


def tap_app(shop, **views) -> hw.App:
    app = hw.App("taps")
    name = shop.name("taps")
    Topics(shop.log).ensure([name], 1, compact=False)
    app.stream("taps", Tap, key="device", time="received", delay="1 minute", topic=name, idle="1 day")
    for name, (key, function) in views.items():
        app.view(key=key, name=shop.name(name))(function)
    return app


def spark_state(query) -> tuple[int, int]:
    """Rows that Spark keeps after the last batch, and those that it has dropped in all of them."""
    states = [state for progress in query.recentProgress for state in progress["stateOperators"]]
    return states[-1]["numRowsTotal"], sum(state["numRowsDroppedByWatermark"] for state in states)


@pytest.mark.spark
def test_windows_over_corrected_time_lose_no_row_and_are_forgotten_in_the_end(shop):
    session.start(shop.settings).conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")  # all
    app = tap_app(shop, windows=("window", per_window), each=("n", corrected))
    windows, each = shop.name("windows"), shop.name("each")
    clock, sent = SettableClock(now_ms=BEGIN // 1000), 0
    with shop.running(app, clock) as runner:
        for at, part in (
            (2, minutes((0, 0), (1, 170), (2, 30), first=0)),
            # the watermark jumps by five hours, and rows that waited nearly three on their device follow
            (300, minutes((300, 179), (300, 0), first=10, device="b", offset=-90 * MINUTE)),
            (301, minutes((301, 0), first=20) + minutes((299.5, 179), first=30, device="c", offset=0)),
            (600, minutes((600, 179.5), first=40)),
            (602, minutes((602, 0), first=50)),
            (604, minutes((604, 0), first=60)),
        ):
            clock.advance(BEGIN // SECOND + at * 60 - clock.now_ms() / 1000)
            shop.send_to(shop.name("taps"), part, "device")
            sent += len(part)
            for view in (windows, each):
                shop.taken(view, shop.name("taps"), sent)

        def soon(condition, what: str) -> None:
            """Ticks need a clock that moves."""
            wait_until(lambda: clock.advance(1) or condition(), 120, what)

        soon(lambda: len(shop.table(each)) == sent - 1, "the last rows")
        counted = lambda: {key[:16]: row["n"] for key, row in shop.table(windows).items()}  # noqa: E731
        soon(lambda: sum(counted().values()) == sent - 1, "the last windows")
        kept = lambda: spark_state(runner.views[windows].query)[0]  # noqa: E731
        soon(lambda: kept() < len(counted()), "the end of old windows")
        assert spark_state(runner.views[windows].query)[1] == 0
        passed = results(Client(shop.bootstrap), windows)[-1]

    answer = rows(app, shop.settings)
    assert shop.table(each) == {n: row for n, row in answer[each].items() if n != "60"}
    assert answer[each]["50"]["correction"] == {"done": "shifted", "offset_us": 400 * DAY}
    assert answer[each]["11"]["correction"] == {"done": "unsure", "offset_us": -90 * MINUTE}
    found = {row["corrected"][11:16] for row in answer[each].values()}
    assert found >= {"09:00", "06:11", "08:32", "11:01", "16:00"}
    whole = {key[:16]: row["n"] for key, row in answer[windows].items()}
    whole["2026-01-05T19:00"] -= 1
    assert counted() == whole
    assert passed.late == 0
    assert passed.watermark == BEGIN + 603 * MINUTE


@pytest.mark.spark
def test_a_row_that_is_held_comes_out_with_no_further_input(shop):
    clock = SettableClock(now_ms=BEGIN // 1000)
    name = shop.name("each")
    with shop.running(tap_app(shop, each=("n", corrected)), clock):
        shop.send_to(shop.name("taps"), minutes((0, 0), (0.5, 0), first=0), "device")
        shop.taken(name, shop.name("taps"), 2)
        assert shop.table(name) == {}
        clock.advance(86_400 + 120)
        wait_until(lambda: len(shop.table(name)) == 2, 60, "both rows")
        clock.advance(3_700)
        opens = lambda: results(Client(shop.bootstrap), name)[-1].opens["clocks1"]  # noqa: E731
        wait_until(lambda: opens() == [None, None], 60, "the end of its samples")


@pytest.mark.spark
def test_a_stream_by_the_devices_clock_is_refused(shop):
    shop.make("taps")
    app = hw.App("taps")
    app.stream("taps", Tap, key="device", time="occurred", topic=shop.name("taps"))
    app.view(key="n", name=shop.name("each"))(corrected)
    with pytest.raises(UsageError, match="is not the event time of its stream; got time='occurred'"):
        Runner(app, shop.settings).once()


# ---- refused -------------------------------------------------------------------------------------------

FIELDS = (
    StructType().add("device", StringType()).add("occurred", TimestampType()).add("sent", TimestampType())
)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (FIELDS, "received='received' is not a timestamp column of its input; got no such column"),
        (
            StructType([*FIELDS.fields]).add("received", LongType()),
            "received='received' is not a timestamp column.*of type bigint",
        ),
        (
            StructType([*FIELDS.fields]).add("received", TimestampType()).add("corrected", LongType()),
            "its input already has a column 'corrected'",
        ),
    ],
)
def test_an_input_that_does_not_fit_is_refused(schema, said):
    with pytest.raises(UsageError, match=said):
        LOGIC.schema(schema)


def test_a_length_of_time_that_is_none_is_refused():
    wrong = Clocks(
        key=("device",),
        occurred="occurred",
        sent="sent",
        received="sent",
        output_delay="a week",
        transit="1 minute",
        window="1 hour",
    )
    with pytest.raises(UsageError, match="'a week' is not a duration"):
        wrong.schema(FIELDS)
