"""Positions and times through views of views: right at the end of the chain, whatever changes or does not on the way."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.follow.follower import Follower
from headwater.follow.lineage import History, Milestone, complete, covering
from headwater.position import Position
from support.resultlog import Driver
from support.servers import wait_until

batches = st.lists(
    st.tuples(st.sampled_from(["first", "second", "write"]), st.integers(0, 2)), min_size=1, max_size=30
)


class Views:
    """Two views, the second of the first; offsets are numbers of records in one partition."""

    def __init__(self, *, also_direct: bool) -> None:
        self.written = self.first_read = self.first_made = self.second_read = self.second_made = 0
        self.direct = 0
        self.also_direct = also_direct
        self.holds: dict[int, int] = {0: 0}
        """By offset of the first view's topic: of how many records of the stream it was made."""
        self.known = {"first": History("first"), "second": History("second")}

    def step(self, who: str, records: int) -> None:
        if who == "write":
            self.written += records
        elif who == "first":
            self.first_read = self.written
            self.first_made += records  # perhaps none
            self.holds[self.first_made] = self.first_read
            self.note(
                "first",
                Milestone("r", {"s": {0: self.first_read}}, {0: self.first_made}, complete=self.first_read),
            )
        else:
            self.second_read, self.direct = self.first_made, self.written
            self.second_made += records
            inputs = {"first": {0: self.second_read}} | ({"s": {0: self.direct}} if self.also_direct else {})
            self.note("second", Milestone("r", inputs, {0: self.second_made}, views=("first",)))

    def note(self, view: str, mark: Milestone) -> None:
        self.known[view] = self.known[view].then(mark)

    def taken(self) -> int:
        """How many records of the stream the second view contains, in all that it has read."""
        through = self.holds[self.second_read]
        return min(through, self.direct) if self.also_direct else through


@given(batches, st.booleans())
def test_a_position_of_the_stream_is_covered_at_the_end_when_it_went_through_all_views(steps, also_direct):
    views = Views(also_direct=also_direct)
    for step in steps:
        views.step(*step)
        for asked in range(1, views.written + 1):
            found = covering(views.known, "second", Position({"s": {0: asked}}))
            if views.known["first"].results and views.known["second"].results:
                assert (found is not None) == (views.taken() >= asked)
            else:
                assert found is None
        held = Position({"second": {0: views.second_made}})
        if views.known["second"].results and views.known["first"].results:
            said = complete(views.known, "second", held)
            read = [offset for offset in views.holds if offset <= views.second_read]
            assert said is None or said <= max(views.holds[offset] for offset in read)
            assert said == (views.holds[views.second_read] if views.second_read or said is not None else None)


def test_a_view_that_the_first_changes_nothing_for_has_come_as_far_as_it():
    known = {
        "first": History(
            "first", (Milestone("r", {"s": {0: 5}}, {0: 3}, 50), Milestone("r", {"s": {0: 9}}, {0: 3}, 90))
        ),
        "second": History("second", (Milestone("r", {"first": {0: 4}}, {0: 2}, views=("first",)),)),
    }
    assert covering(known, "second", Position({"s": {0: 9}})) == Position({"second": {0: 2}})
    assert covering(known, "second", Position({"s": {0: 10}})) is None
    assert complete(known, "second", Position({"second": {0: 2}})) == 90
    assert complete(known, "second", Position({"second": {0: 1}})) is None


def test_the_slowest_of_two_ways_counts_and_a_strange_topic_is_refused():
    known = {
        "a": History("a", (Milestone("r", {"s": {0: 9}}, {0: 3}, 90),)),
        "b": History("b", (Milestone("r", {"s": {0: 5}, "t": {0: 1}}, {0: 7}, 50),)),
        "both": History("both", (Milestone("r", {"a": {0: 3}, "b": {0: 7}}, {0: 1}, views=("a", "b")),)),
        "last": History("last", (Milestone("r", {"both": {0: 1}}, {}, 70, views=("both",)),)),
    }
    assert covering(known, "last", Position({"s": {0: 5}})) == Position()
    assert covering(known, "last", Position({"s": {0: 6}})) is None
    assert covering(known, "last", Position({"t": {0: 1}, "a": {0: 3}})) == Position()
    assert complete(known, "last", Position()) == 50
    with pytest.raises(
        UsageError, match="view 'last' does not read u; expected a position of a, b, both, s, t"
    ):
        covering(known, "last", Position({"u": {0: 1}}))
    del known["b"]
    assert covering(known, "last", Position({"s": {0: 5}})) is None  # not read yet
    assert complete(known, "last", Position()) is None


def test_a_view_without_time_bounds_none_that_is_read_with_it():
    known = {
        "names": History("names", (Milestone("r", {"s": {0: 1}}, {0: 1}),)),
        "windows": History("windows", (Milestone("r", {"t": {0: 1}}, {0: 1}, 40),)),
        "both": History(
            "both", (Milestone("r", {"names": {0: 1}, "windows": {0: 1}}, {}, views=("names", "windows")),)
        ),
    }
    assert complete(known, "both", Position()) == 40


def test_a_follower_follows_the_views_that_a_view_reads(bootstrap):
    first, second = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("first", "second"))
    upper, lower = Driver(bootstrap, first), Driver(bootstrap, second)
    upper.publish({"s": {0: 5}}, {"a": b"1"}, complete=50)
    lower.publish({first: {0: upper.outputs[0]}}, {"b": b"1"}, views=[first])
    with Follower(bootstrap) as follower:
        assert follower.wait(second, Position({"s": {0: 5}}), 20) == Position({second: lower.outputs})
        upper.publish({"s": {0: 9}}, complete=90)  # which changes nothing
        follower.follow(second)
        assert follower.wait(second, Position({"s": {0: 9}}), 20) == Position({second: lower.outputs})
        assert follower.complete(second, Position({second: lower.outputs})) == 90
        upper.publish({"s": {0: 10}}, {"a": b"2"}, complete=100)
        news: set[str] = set()
        wait_until(lambda: news.update(follower.poll(0.1)) or first in news, 20, "the news")
        assert second in news  # those who wait for it are woken
        assert follower.covering(second, Position({"s": {0: 10}})) is None
        lower.publish({first: {0: upper.outputs[0]}}, views=[first])
        assert follower.wait(second, Position({"s": {0: 10}}), 20) == Position({second: lower.outputs})
        assert follower.complete(second, Position({second: lower.outputs})) == 100
