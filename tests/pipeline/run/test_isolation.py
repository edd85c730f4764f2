"""Which records a query fails on: what the search finds, against a model that knows it; and what a view leaves out."""

import json
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.engine import Failure, Fault
from headwater.pipeline.engine.failure_search import NotOfRecords, TooMany, allowed, search
from headwater.pipeline.run.diagnosis import diagnose
from headwater.pipeline.run.isolation import PLACE_S, BatchInput, Isolation
from headwater.result import Result
from headwater.testing import SettableClock


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


def test_who_looks_at_each_record_that_is_found_can_end_the_search():
    """An aggregate that overflows fails with each further record of its key: the first one is enough."""

    class AggregateFailsError(Exception):
        pass

    def blame(number, fault):
        raise AggregateFailsError(number)

    model = Model(set(range(10, 60)))
    with pytest.raises(AggregateFailsError, match="10"):
        search(100, model, model(range(100)), blame=blame)
    assert len(model.trials) <= 10


@pytest.mark.parametrize(
    ("records", "recent", "most"),
    [
        (1, (0, 0), 10),  # one record of one: a view with little traffic
        (50, (0, 0), 10),  # not all of them: the query is wrong
        (500, (0, 0), 50),
        (1_000_000, (0, 0), 1_000),
        (1, (30, 10), 0),  # a query that fails on every third record, one record a batch
        (1, (630, 10), 53),
        (1, (0, 400), 0),
    ],
)
def test_a_tenth_of_the_recent_records_may_fail_and_ten_in_any_case(records, recent, most):
    assert allowed(records, recent) == most


# ---- what a view leaves out ------------------------------------------------------------------------------------


class FailingError(Exception):
    pass


class Engine:
    """Its batches are lists of (source, offset) of one partition; it fails on some of them."""

    def __init__(self, bad) -> None:
        self.bad, self.skipped, self.aggregates, self.keys = set(bad), (), False, None
        self.trials = 0

    def set(self, ranges):
        self.skipped = list(ranges)

    def compute(self, rows, _plan, _query):
        self.trials += 1
        taken = [row for row in rows if not any(part.first <= row[1] < part.end for part in self.skipped)]
        for row in taken:
            if row in self.bad:
                raise FailingError(row)
        return taken

    def fault(self, error):
        return Fault(str(error)) if isinstance(error, FailingError) else None

    def forget_attempt(self, rows, query):
        pass

    def keys_alone(self, *_):
        return self.keys


class Life:
    """A view whose sources end at different offsets of one partition."""

    def __init__(self, folder, engine: Engine, **options) -> None:
        self.checkpoint, self.engine, self.results = Checkpoint(folder), engine, []
        (folder / "offsets").mkdir()
        self.begin(**options)

    def begin(self, on_error: str = "skip", **options) -> None:
        view = SimpleNamespace(name="parts", on_error=on_error)
        prepared = SimpleNamespace(view=view, skips=self.engine)
        self.isolation = Isolation(self.engine, prepared, None, threading.Event(), **options)

    def take(self, *ends: int) -> tuple[list, list[int]]:
        """The records of the next batch, and those that it names as failed."""
        batch = len(self.results)
        starts = self.checkpoint.sources(batch - 1) or [{"t": {0: 0}} for _ in ends]
        lines = [json.dumps({"t": {"0": end}}) for end in ends]
        (self.checkpoint.folder / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines]))
        rows = [
            (source, offset)
            for source, (start, end) in enumerate(zip(starts, ends, strict=True))
            for offset in range(start["t"][0], end)
        ]
        before = self.results[-1].inputs if self.results else {"t": {0: 0}}
        made = BatchInput(self.checkpoint, batch, before, self.results)
        taken, failures = self.isolation.compute(rows, SimpleNamespace(batch=batch), None, made)
        failed = [failure.offset for failure in failures]
        named = {"t": {0: failed}} if failed else {}
        inputs = self.checkpoint.reached(batch)
        self.results.append(
            Result(run="r", batch=batch, inputs=inputs, begun={"t": {0: 0}}, partitions=1, failed=named)
        )
        return taken, failed


def test_of_a_topic_that_is_read_twice_a_record_is_left_out_by_both_sources(tmp_path):
    """The second source reads it in a later batch, and its part of the query would take the record."""
    life = Life(tmp_path, Engine({(0, 1)}))
    assert life.take(4, 1) == ([(0, 0), (0, 2), (0, 3), (1, 0)], [1])
    assert life.take(5, 3) == ([(0, 4), (1, 2)], []), "it is published once"
    assert life.take(5, 5) == ([(1, 3), (1, 4)], [])


def test_also_after_a_restart(tmp_path):
    life = Life(tmp_path, Engine({(0, 1)}))
    life.take(4, 1)
    life.begin(published=lambda: [Failure("t", 0, 1, "as it was published")])
    assert life.take(5, 3) == ([(0, 4), (1, 2)], [])


def test_a_record_that_was_half_taken_stops_the_view(tmp_path):
    life = Life(tmp_path, Engine({(1, 2)}))
    assert life.take(4, 1)[1] == []
    with pytest.raises(UsageError, match=r"fails on a record that it has half taken, .* offset 2"):
        life.take(4, 4)


def test_a_query_that_fails_on_every_record_stops_its_view_also_one_record_at_a_time(tmp_path):
    life = Life(tmp_path, Engine((0, offset) for offset in range(100)))
    for end in range(1, 11):
        assert life.take(end)[1] == [end - 1]
    with pytest.raises(UsageError, match=r"fails on too many records; got more than 0 of the 1 records"):
        life.take(11)


def test_a_few_records_of_many_fail_for_as_long_as_the_view_lives(tmp_path):
    life = Life(tmp_path, Engine((0, offset) for offset in range(0, 3000, 30)))
    for end in range(30, 3001, 30):
        assert life.take(end)[1] == [end - 30]


def test_an_aggregate_that_fails_stops_the_view_at_the_first_record(tmp_path):
    engine = Engine((0, offset) for offset in range(50, 90))
    engine.aggregates, engine.keys = True, ["de"]
    life = Life(tmp_path, engine)
    with pytest.raises(UsageError, match=r"fails; got key de, with the record at t, partition 0, offset 50"):
        life.take(1000)
    assert engine.trials <= 15


def test_what_retention_has_deleted_is_not_searched(tmp_path):
    """A partition may begin far from 0; its numbers would be trials of nothing, and the share of them no share."""
    first = 1_000_000
    engine = Engine({(0, first + 3)})
    life = Life(tmp_path, engine, bounds=lambda _topic: {0: (first, first + 8)})
    rows = [(0, offset) for offset in range(first, first + 8)]
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"t":{"0":1000008}}')
    made = BatchInput(life.checkpoint, 0, {}, [])
    taken, failures = life.isolation.compute(rows, SimpleNamespace(batch=0), None, made)
    assert [failure.offset for failure in failures] == [first + 3]
    assert taken == [row for row in rows if row[1] != first + 3]
    assert engine.trials <= 8


def test_a_view_that_stops_with_the_first_failure_names_its_record(tmp_path):
    engine = Engine({(0, 765), (0, 900)})
    life = Life(tmp_path, engine, on_error="stop")
    with pytest.raises(FailingError) as stopped:
        life.take(1000)
    assert diagnose("parts", stopped.value, tmp_path).got == (
        "the record at t, partition 0, offset 765: (0, 765)"
    )
    assert engine.trials <= 15


def test_the_search_for_that_record_is_bounded_in_time(tmp_path):
    clock = SettableClock()
    engine = Engine({(0, 765)})
    engine.compute = lambda *attempt: (clock.advance(PLACE_S / 3), Engine.compute(engine, *attempt))[1]
    life = Life(tmp_path, engine, on_error="stop", clock=clock)
    with pytest.raises(FailingError) as stopped:
        life.take(1000)
    assert engine.trials <= 6
    assert diagnose("parts", stopped.value, tmp_path).got == "(0, 765)"


def test_a_view_that_stops_because_of_its_state_blames_no_record(tmp_path):
    engine = Engine(())
    engine.compute = lambda *_: (_ for _ in ()).throw(FailingError("a row of the state"))
    life = Life(tmp_path, engine, on_error="stop")
    with pytest.raises(FailingError) as stopped:
        life.take(8)
    assert diagnose("parts", stopped.value, tmp_path).got == "a row of the state"
