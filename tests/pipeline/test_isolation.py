"""Which records a query fails on: what the search finds, against a model that knows it."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipeline.engine import Fault
from headwater.pipeline.isolation import NotOfRecords, TooMany, search


class Model:
    """Fails when a bad record is there, or both records of a pair."""

    def __init__(self, bad: set[int], pairs: set[tuple[int, int]] = frozenset()) -> None:
        self.bad, self.pairs, self.trials = bad, pairs, []

    def __call__(self, part) -> Fault | None:
        taken = set(part)
        assert list(part) == sorted(taken), "records are tried in their order"
        self.trials.append(taken)
        wrong = sorted(taken & self.bad)
        if wrong:
            return Fault(f"record {wrong[0]}")
        met = [pair for pair in sorted(self.pairs) if taken >= set(pair)]
        return Fault(f"pair {met[0]}") if met else None


@given(
    st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=8)))
)
def test_the_records_that_fail_by_themselves_are_found_and_no_others(case):
    count, bad = case
    model = Model(bad)
    found = search(count, model, model(range(count)))
    assert found == {number: Fault(f"record {number}") for number in bad}
    assert not bad or model.trials[-1] == set(range(count)) - bad, "the last trial is the batch that passes"


@given(st.data())
def test_without_what_is_found_the_batch_passes_also_where_records_fail_only_together(data):
    count = data.draw(st.integers(2, 60))
    some = st.integers(0, count - 1)
    pairs = data.draw(
        st.sets(st.tuples(some, some).map(sorted).map(tuple).filter(lambda p: p[0] < p[1]), max_size=5)
    )
    bad = data.draw(st.sets(some, max_size=3))
    model = Model(bad, pairs)
    found = search(count, model, model(range(count)))
    assert model([n for n in range(count) if n not in found]) is None
    assert found.keys() >= bad
    assert found.keys() <= bad | {late for _, late in pairs}, "of a pair it is the later one"


def test_one_record_of_a_million_takes_twenty_trials():
    model = Model({765_432})
    assert search(1_000_000, model, Fault("fails")).keys() == {765_432}
    assert len(model.trials) <= 20 + 3


def test_what_fails_without_any_record_is_blamed_on_none():
    with pytest.raises(NotOfRecords) as ended:
        search(10, lambda _: Fault("a row of the state"), Fault("fails"))
    assert ended.value.fault.reason == "a row of the state"


@pytest.mark.parametrize("count", [1, 2, 7])
def test_what_does_not_fail_again_is_blamed_on_no_record(count):
    """A function that asks another service, which was away for a moment."""
    tried = []
    assert search(count, lambda part: tried.append(list(part)), Fault("connection refused")) == {}
    assert tried[-1] == list(range(count)), "and the last trial is the whole batch"


def test_more_than_the_bound_ends_the_search():
    with pytest.raises(TooMany) as ended:
        search(1000, Model(set(range(0, 1000, 7))), Fault("fails"), most=20)
    assert ended.value.first.reason == "record 0"


def test_a_search_ends_when_its_view_stops():
    """What a trial raises ends the search: a runner that stops does not wait for it."""
    stopping = threading.Event()

    def trial(part):
        if stopping.is_set():
            raise InterruptedError
        if len(part) > 0:
            stopping.set()
        return Fault("always") if len(part) > 0 else None

    with pytest.raises(InterruptedError):
        search(100, trial, Fault("fails"))
