"""The times of inputs: however slow, held or asleep a driver is, events that come in order are never late.

A partition that is silent holds up no other.
"""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.pipeline.time.attention import GAP_S, Attention, When
from headwater.pipeline.time.input_times import InputTimes, Stretch
from headwater.pipeline.time.watermark import NEVER, Input, resume
from headwater.testing import SettableClock

TOPICS = {"a": 2, "b": 1}
LOOK_MS = 500


@dataclass
class Engine:
    """A log that is written in order, and a driver that reads it as Spark does; all that takes time is scripted."""

    inputs: dict[str, Input]
    records_max: int
    clock: SettableClock = field(default_factory=SettableClock)
    true_ms: int = 0
    """The time of those who write, which is never set."""
    log: dict[tuple[str, int], list[int | None]] = field(
        default_factory=lambda: {
            (topic, number): [] for topic, count in TOPICS.items() for number in range(count)
        }
    )
    """By place, the time of each record; None for one that has none."""

    def __post_init__(self) -> None:
        self.read = dict.fromkeys(self.log, 0)
        self.attention = Attention(self.clock)
        self.done_ms = self.attention.now_ms()
        self.hearing = InputTimes(self.inputs, {}, NEVER)
        self.watermarks: list[int] = []

    def write(self, place: tuple[str, int], *, timed: bool = True) -> None:
        self.log[place].append(self.true_ms * 1000 if timed else None)

    def wait(self, ms: int, *, looks: bool = True, writes: tuple[tuple[str, int], ...] = ()) -> None:
        """Time passes, with a record in each of some places every second or so."""
        left = ms
        while left > 0:
            step = min(left, LOOK_MS)
            left -= step
            self.true_ms += step
            self.clock.advance(step / 1000)
            for place in writes:
                self.write(place)
            if looks:
                self.attention.look()

    def batch(
        self,
        *,
        asking: int = 0,
        planning: int = 0,
        held: int = 0,
        takes: int = 0,
        looks: bool = True,
        writes=(),
        jump: int = 0,
    ) -> None:
        began_ms, ends = self.clock.now_ms(), {}
        for topic in TOPICS:  # one source after the other
            ends |= self._cut(topic)
            self.wait(asking, looks=looks, writes=writes)
        self.wait(planning, looks=looks, writes=writes)
        self.clock.jump(jump)
        planned = self.attention.when(began_ms, self.done_ms)
        self.wait(held, looks=looks, writes=writes)
        before = self._positions(self.read)
        sources = [{topic: found} for topic, found in self._positions(ends).items()]
        stretch = Stretch(before, sources, self.records_max)
        watermark = self.hearing.plan(stretch, planned)
        self.watermarks.append(watermark)
        notes: dict[str, int] = {}
        for (topic, number), end in ends.items():
            times = [
                each for each in self.log[topic, number][self.read[topic, number] : end] if each is not None
            ]
            late = [each for each in times if each < watermark]
            assert not late, f"{len(late)} records of {topic}-{number} are late by {watermark - min(late)} us"
            if times:
                notes[f"{topic}/{number}"] = max(times)
        self.wait(takes, looks=looks, writes=writes)
        self.hearing.take(notes, stretch, planned)
        self.read = ends
        self.done_ms = self.attention.now_ms()

    def restart(self, down: int, writes=()) -> None:
        """The driver ends and comes back; only results are left."""
        known, reached = self.hearing.known, self.hearing.watermark
        self.wait(down, looks=False, writes=writes)
        self.attention = Attention(self.clock)
        self.done_ms = self.attention.now_ms()
        self.hearing = InputTimes(self.inputs, resume(known, 0, self.attention.now_ms()), reached)

    def _cut(self, topic: str) -> dict[tuple[str, int], int]:
        """As Spark limits a batch: a share of each partition, and one record at least."""
        ends = {}
        places = [place for place in self.log if place[0] == topic]
        left = {place: len(self.log[place]) - self.read[place] for place in places}
        total = sum(left.values())
        for place in places:
            share = self.records_max * left[place] / total if total else 0
            cut = math.ceil(share) if share < 1 else math.floor(share)
            ends[place] = self.read[place] + (
                min(left[place], cut) if total > self.records_max else left[place]
            )
        return ends

    @staticmethod
    def _positions(ends: dict[tuple[str, int], int]) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for (topic, number), end in ends.items():
            found.setdefault(topic, {})[number] = end
        return found


def inputs(delay_s: float, idle_s: float) -> dict[str, Input]:
    return {name: Input(int(delay_s * 1e6), int(idle_s * 1e6), name) for name in TOPICS}


places = st.sampled_from([("a", 0), ("a", 1), ("b", 0)])
writers = st.lists(places, max_size=3).map(tuple)
lengths = st.sampled_from([0, 0, 100, 2_000, 20_000, 100_000])
steps = st.one_of(
    st.tuples(st.just("write"), places, st.booleans()),
    st.tuples(st.just("wait"), lengths, st.booleans(), writers),
    st.tuples(
        st.just("batch"),
        lengths,
        lengths,
        lengths,
        lengths,
        st.booleans(),
        writers,
        st.sampled_from([0, 0, 3_600, -3_600]),
    ),
    st.tuples(st.just("restart"), lengths, writers),
)


NO_TIME_YET = [("write", ("a", 0), False), ("batch", 2000, 0, 0, 0, False, (("a", 0), ("b", 0)), 0)]
"""A partition whose first record has no time brings others while the next source is asked where it ends."""


@settings(max_examples=400)
@example(script=NO_TIME_YET, delay_s=0, idle_s=3, records_max=5)
@example(script=[*NO_TIME_YET, ("restart", 0, ())], delay_s=0, idle_s=3, records_max=5)
@given(
    script=st.lists(steps, max_size=40),
    delay_s=st.sampled_from([0, 2, 600]),
    idle_s=st.sampled_from([3, 60]),
    records_max=st.sampled_from([2, 5, 1_000_000]),
)
def test_events_that_come_in_order_are_never_late_however_slow_the_driver_is(
    script, delay_s, idle_s, records_max
):
    engine = Engine(inputs(delay_s, idle_s), records_max)
    for kind, *what in script:
        match kind:
            case "write":
                engine.write(what[0], timed=what[1])
            case "wait":
                engine.wait(what[0], looks=what[1], writes=what[2])
            case "batch":
                asking, planning, held, takes, looks, writes, jump = what
                engine.batch(
                    asking=asking,
                    planning=planning,
                    held=held,
                    takes=takes,
                    looks=looks,
                    writes=writes,
                    jump=jump,
                )
            case "restart":
                engine.restart(what[0], what[1])
    while engine.read != {place: len(log) for place, log in engine.log.items()}:
        engine.batch()
    assert engine.watermarks == sorted(engine.watermarks)


@pytest.mark.parametrize("way", ["planning", "held", "takes"])
def test_a_batch_longer_than_idle_moves_no_watermark_past_what_is_unread(way):
    engine = Engine(inputs(2, 3), 1_000_000)
    for _ in range(5):
        engine.wait(1_000, writes=(("a", 0), ("b", 0)))
        engine.batch()
    engine.wait(1_000, writes=(("a", 0), ("b", 0)))
    engine.batch(**{way: 60_000}, writes=(("a", 0), ("b", 0)))
    engine.batch()
    engine.batch()


def test_an_idle_partition_that_comes_back_while_spark_asks_the_other_sources_is_not_late():
    engine = Engine(inputs(2, 3), 1_000_000)
    for place in engine.log:
        engine.write(place)
    engine.batch()
    for _ in range(5):
        engine.wait(1_000, writes=(("b", 0),))
        engine.batch()
    engine.batch(asking=60_000, writes=(("a", 0), ("b", 0)))
    engine.batch()
    for _ in range(10):
        engine.write(("a", 1), timed=False)
        engine.wait(1_000, writes=(("b", 0),))
        engine.batch()
    assert engine.watermarks[-1] >= (engine.true_ms - 4_000) * 1000, (
        "a partition without times holds up no other"
    )


def test_a_partition_that_is_silent_while_the_driver_looks_holds_up_no_other():
    engine = Engine(inputs(2, 60), 1_000_000)
    for place in engine.log:
        engine.write(place)
    engine.batch()
    for _ in range(70):
        engine.wait(1_000, writes=(("a", 0),))
        engine.batch()
    assert engine.watermarks[-1] == (engine.true_ms - 1_000 - 2_000) * 1000


def test_when_all_are_silent_time_advances_by_the_clock_and_only_while_the_driver_looks():
    engine = Engine(inputs(2, 60), 1_000_000)
    engine.write(("a", 0))
    engine.batch()
    engine.wait(100_000)
    engine.batch()
    assert engine.watermarks[-1] == (100 - 60 - 2) * 1_000_000
    engine.clock.advance(3_600)  # asleep
    engine.clock.jump(86_400)
    engine.batch()
    assert engine.watermarks[-1] <= (100 - 60 - 2 + GAP_S) * 1_000_000
    engine.wait(10_000)
    engine.batch()
    assert engine.watermarks[-1] >= (100 - 60 - 2 + 10) * 1_000_000


def test_a_partition_that_brings_records_without_a_time_holds_up_no_other_once_they_are_read():
    engine = Engine(inputs(2, 60), 10)
    for place in engine.log:
        engine.write(place)
    engine.batch()
    for _ in range(100):
        engine.wait(1_000, writes=(("a", 0),))
        engine.write(("a", 1), timed=False)
        engine.batch()
    assert engine.watermarks[-1] > 90 * 1_000_000
    for _ in range(100):
        engine.write(("b", 0), timed=False)
    engine.wait(1_000)
    engine.batch()
    held = engine.hearing.watermark
    engine.batch(takes=100_000, writes=(("a", 0),))
    assert engine.hearing.watermark == held, "what is left of a place may have any time"


def test_a_result_from_before_silence_was_kept_says_it_by_the_clock():
    from headwater.result import Heard

    known = resume({"a/0": Heard(5, 1_000), "a/1": Heard(5, 1_000, 7)}, at_ms=4_000, now_ms=90_000)
    assert known == {"a/0": Heard(5, 87_000, 3_000), "a/1": Heard(5, 89_993, 7)}


def test_attention_counts_from_look_to_look_and_a_long_way_as_a_short_one():
    clock = SettableClock(now_ms=5_000)
    attention = Attention(clock)
    clock.advance(1)
    assert attention.look() == 6_000
    clock.advance(86_400)
    assert attention.now_ms() == 6_000
    assert attention.look() == 6_000 + GAP_S * 1000
    assert attention.when(clock.now_ms() - 100, 6_000) == When(7_900, 8_000)
    assert attention.when(clock.now_ms() - 3_000, 6_000) == When(6_000, 8_000)
    clock.jump(-3_600)
    assert attention.when(clock.now_ms() + 3_600_000, 6_000) == When(6_000, 8_000), "it was set meanwhile"
    clock.advance(1)
    assert attention.when(clock.now_ms() - 100, 8_500) == When(8_900, 9_000)
    still, by_hand = Attention(clock, gap_s=0), Attention(clock, gap_s=math.inf)
    clock.advance(100)
    assert still.look() == clock.now_ms() - 100_000
    assert by_hand.when(0, 0) == When(clock.now_ms(), clock.now_ms())
