"""Results are read from their end: how long a view has run changes neither how much is read nor how much is held."""

import itertools
from collections.abc import Iterable

import msgspec
import pytest

from headwater.client.client import producer
from headwater.client.topic_defaults import STATE
from headwater.clock import SystemClock
from headwater.follow.results import STRETCH_OFFSETS, backwards, newest, of_run, replacement, results, runs
from headwater.operate.log.topic import describe
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.topics import Topics
from headwater.result import RESULTS_KEPT, Result, topic
from support.servers import both_logs

pytestmark = both_logs

names = (f"view{number}" for number in itertools.count(1))


class Counting(Topics):
    """A client that counts the records and the bytes that it hands out."""

    records, size_bytes = 0, 0

    def read(self, *asked, **more):
        for record in super().read(*asked, **more):
            self.records += 1
            self.size_bytes += len(record.value())
            yield record


def result(run: str, batch: int, *, shadow: bool = False) -> Result:
    return Result(run=run, batch=batch, inputs={"orders": {0: batch}}, partitions=1, shadow=shadow)


@pytest.fixture
def counting(bootstrap):
    client = Counting(bootstrap)
    yield client
    client.close()


def written(client: Topics, made: Iterable[Result]) -> str:
    view = next(names)
    client.ensure_topics([topic(view)], 1, STATE)
    out = producer(client.log)
    for each in made:
        out.produce(topic(view), msgspec.json.encode(each), f"{each.run}#{each.batch % RESULTS_KEPT}")
    assert out.flush(60) == 0
    return view


@pytest.mark.parametrize("count", [300, 6_000])
def test_a_start_reads_as_many_results_however_long_the_view_has_run(counting, count):
    view = written(counting, (result("r", batch) for batch in range(count)))
    progress = RunResults(counting, view, "r", SystemClock())
    try:
        assert progress.take_over() == result("r", count - 1)
    finally:
        progress.close()
    assert sorted(progress.by_batch) == list(range(count - RESULTS_KEPT, count))
    assert counting.records == 2 * STRETCH_OFFSETS  # for the newest one, and for those of its run
    assert counting.size_bytes <= 2 * STRETCH_OFFSETS * len(msgspec.json.encode(result("r", count)))


def test_the_newest_that_readers_see_is_found_before_any_number_of_shadows(counting):
    made = [result("old", 7), *(result("new", batch, shadow=True) for batch in range(1_000))]
    view = written(counting, made)
    assert newest(counting, view) == made[0]
    assert counting.records == len(made)
    assert list(backwards(counting, view)) == made[::-1]


def test_of_a_run_the_last_result_of_each_batch_counts(counting):
    again = msgspec.structs.replace(result("r", 4), generation="again")
    view = written(counting, [*(result("r", batch) for batch in range(5)), result("other", 9), again])
    assert of_run(counting, view, "r") == [*(result("r", batch) for batch in range(4)), again]
    assert of_run(counting, view, "r", 2) == [result("r", 3), again]
    assert of_run(counting, view, "unknown") == []


def test_runs_are_described_by_their_last_results(counting):
    view = written(
        counting,
        [
            result("a", 0),
            result("b", 0, shadow=True),
            result("b", 1),
            result("a", 1, shadow=True),
            result("c", 0, shadow=True),
        ],
    )
    known, shown = found = runs(counting, view)
    assert list(known) == ["b", "a", "c"]
    assert list(shown) == ["a", "b"]
    assert (known["a"].batch, shown["a"].batch, found.seen) == (1, 0, result("b", 1))
    assert len(results(counting, view)) == 5


def test_a_view_without_results_has_none(counting):
    view = written(counting, [])
    assert (newest(counting, view), replacement(counting, view, "r"), of_run(counting, view, "r")) == (
        None,
        None,
        [],
    )
    assert runs(counting, view).seen is None


def test_topics_of_results_have_small_segments(counting):
    view = written(counting, [])
    config = describe(counting.log, topic(view)).config
    assert config["cleanup.policy"] == "compact"
    assert int(config["segment.bytes"]) <= 16 << 20


def test_a_run_that_is_about_to_be_replaced_hears_of_it_and_how_far_the_other_is(counting):
    note = msgspec.structs.replace(result("new", 4, shadow=True), replaces="old")
    before = [result("old", 7), note, result("old", 8)]
    found = replacement(counting, written(counting, before), "old")
    assert (found.run, found.batch) == ("new", 4)
    further = [*before, result("new", 5, shadow=True), result("new", 6, shadow=True)]
    found = replacement(counting, written(counting, further), "old")
    assert (found.run, found.batch) == ("new", 6)
    assert replacement(counting, written(counting, further), "other") is None
    another_driver = [*before, *(result("old", batch) for batch in range(9, 30))]
    assert replacement(counting, written(counting, another_driver), "old") is None
