"""Results are published by one driver, whatever the others think."""

from collections.abc import Callable

import pytest

from headwater.client.topic_defaults import STATE
from headwater.clock import SystemClock
from headwater.errors import FencedError, StorageError, UsageError
from headwater.follow.results import newest
from headwater.pipeline.run.results import RunResults, columns
from headwater.pipeline.topics import Topics
from headwater.result import Result, topic


@pytest.fixture
def topics(bootstrap):
    client = Topics(bootstrap)
    yield client
    client.close()


@pytest.fixture
def begin(topics):
    """Begins a run of a view, as its driver does."""
    begun = []

    def progress(view: str, run: str, reached: Callable[[], int] = lambda: -1) -> RunResults:
        topics.ensure([view], 1, compact=True)
        topics.ensure_topics([topic(view)], 1, STATE)
        begun.append(RunResults(topics, view, run, SystemClock()))
        mine = begun[-1]
        mine.open(reached)
        return mine

    yield progress
    for each in begun:
        each.close()


def publish(progress: RunResults, batch: int) -> Result:
    result = Result(run=progress.run, batch=batch, inputs={}, partitions=1)
    return progress.publish(result, columns([(b"key", b'{"run":"%s"}' % progress.run.encode())]))


def test_of_drivers_that_start_at_once_on_a_new_view_only_the_last_one_publishes(topics, begin):
    view = "progress.twins"
    first, second = begin(view, "one"), begin(view, "two")
    with pytest.raises(FencedError):
        publish(first, 0)
    publish(second, 0)
    publish(second, 1)
    with pytest.raises(UsageError, match="written by another run"):
        begin(view, "three")
    assert (newest(topics, view).run, newest(topics, view).batch) == ("two", 1)
    assert [record.value() for record in topics.read([view])] == [b'{"run":"two"}'] * 2


def test_a_second_driver_of_a_run_fences_the_first_before_and_after_the_first_result(begin):
    first, second = begin("progress.same", "one"), begin("progress.same", "one")
    with pytest.raises(FencedError):
        publish(first, 0)
    publish(second, 0)
    third = begin("progress.same", "one")
    with pytest.raises(FencedError):
        publish(second, 1)
    publish(third, 1)


def test_a_driver_whose_files_a_successor_has_removed_is_fenced_and_reports_no_damage(begin):
    def missing():
        raise StorageError("state file 0-1.delta is missing")
        yield

    first = begin("progress.removed", "one")
    publish(first, 0)
    result = Result(run="one", batch=1, inputs={}, partitions=1)
    with pytest.raises(StorageError, match="missing"):
        first.publish(result, missing())
    first, second = begin("progress.removed", "one"), begin("progress.removed", "one")
    with pytest.raises(FencedError):
        first.publish(result, missing())
    publish(second, 1)


def test_a_driver_that_is_overtaken_while_it_starts_is_fenced_and_reports_no_missing_results(begin):
    view = "progress.overtaken"
    publish(begin(view, "one"), 0)

    def reached() -> int:
        """A second driver starts, and makes a batch, before the first one reads the checkpoint."""
        publish(begin(view, "one"), 1)
        return 1

    with pytest.raises(FencedError):
        begin(view, "one", reached)


def test_a_checkpoint_that_is_ahead_of_the_results_is_refused(begin):
    publish(begin("progress.ahead", "one"), 0)
    with pytest.raises(UsageError, match="results are missing"):
        begin("progress.ahead", "one", lambda: 1)
