"""The watch of a runner, with views, topics and queries that follow a script: what is wrong with one view ends it alone."""

import shutil
import threading
import types
from functools import partial

import pytest

from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.errors import FencedError, MachineError, UsageError
from headwater.health.condition import Condition, State
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.run import view_run
from headwater.pipeline.run.view_run import ViewRun
from headwater.pipeline.run.watch import NOT_WATCHED, Watch
from headwater.testing import SettableClock
from support.servers import wait_until


class Topics:
    """A log with one topic ``t`` of seven records, and no results."""

    def __init__(self):
        self.away, self.existing = False, {"v.progress": 1}

    def partitions(self):
        return self.existing

    def answers(self, _):
        return True

    def of(self, *_):
        if self.away:
            raise MachineError("log does not answer")
        return ["t"]

    def end_offsets(self, _):
        return {}

    def ends(self, _):
        return {"t": {0: 7}}


class View(types.SimpleNamespace):
    """A view that works; its checkpoint has read five records."""

    def __init__(self, name, folder):
        self.checkpoint = Checkpoint(folder / name)
        for kind, text in (("commits", ""), ("offsets", '\n{"t":{"0":5}}')):
            (folder / name / kind).mkdir(parents=True)
            (folder / name / kind / "3").write_text(f"v1\n{{}}{text}")
        super().__init__(
            name=name,
            view=name,
            condition=Condition(),
            watched=False,
            publisher=None,
            settlement=None,
            query=types.SimpleNamespace(isActive=True, exception=lambda: None),
            ticks=0,
            complete=self.checkpoint.complete,
            is_working=lambda: True,
            was_swapped=lambda: False,
            is_due=lambda: self.condition.is_due,
            is_fenced=lambda: False,
        )
        self.condition.begin()
        self.condition.work()

    def tick(self):
        self.ticks += 1

    def recover(self, *_):
        return MachineError(f"{self.name} has ended")

    def end(self, error):
        self.condition.end(str(error))


@pytest.fixture
def views(tmp_path):
    return [View(name, tmp_path) for name in ("good", "bad")]


@pytest.fixture
def topics():
    return Topics()


@pytest.fixture
def watch(views, topics, monkeypatch):
    monkeypatch.setattr("headwater.pipeline.run.watch.WATCH_SECONDS", 0.01)
    monkeypatch.setattr("headwater.pipeline.run.watch.LOOK_SECONDS", 0.02)
    services = types.SimpleNamespace(
        topics=topics, clock=SystemClock(), graph=types.SimpleNamespace(inputs=lambda _: {"t": "t"})
    )
    watch = Watch(views, services, strict=False, forever=True)
    yield watch
    watch.stop()


def test_lags_are_those_of_the_checkpoints(watch):
    watch.start()
    wait_until(lambda: watch.lags == {"good": 2, "bad": 2}, 5, "lags")


@pytest.mark.parametrize(("file", "text"), [("offsets/3", 'v1\n{}\n{"t":{"0":'), ("commits/4.bak", "")])
def test_a_checkpoint_that_cannot_be_read_hides_the_lag_of_its_view_and_ends_nothing(
    watch, views, tmp_path, file, text
):
    (tmp_path / "bad" / file).write_text(text)
    watch.start()
    wait_until(lambda: watch.lags == {"good": 2} or watch.ended.is_set(), 5, "the other lag")
    assert not watch.ended.is_set()
    assert views[1].condition.state is State.RUNNING


def test_a_log_that_goes_away_between_two_questions_ends_nothing(watch, views, topics):
    topics.away = True
    watch.start()
    wait_until(lambda: views[1].ticks > 20 or watch.ended.is_set(), 5, "rounds")
    assert not watch.ended.is_set()


def test_an_ended_view_is_noticed_while_many_others_are_started_again(tmp_path, topics, monkeypatch):
    monkeypatch.setattr("headwater.pipeline.run.watch.WATCH_SECONDS", 0.001)
    monkeypatch.setattr("headwater.pipeline.run.watch.LOOK_SECONDS", 0.001)
    due = [View(f"due{number}", tmp_path) for number in range(20)]
    healthy = View("healthy", tmp_path)
    healthy.condition = Condition(pauses_s=(600.0,))
    healthy.condition.begin()
    restarted, ticks = [], []

    def restart(name):
        restarted.append(name)
        ticks.append(healthy.ticks)
        if len(restarted) == 3:
            healthy.query.isActive = False

    for view in due:
        view.condition = Condition(pauses_s=(0.0,))
        view.condition.begin()
        view.condition.end("the log was away")
        view.restart = partial(restart, view.name)
    services = types.SimpleNamespace(
        topics=topics, clock=SystemClock(), graph=types.SimpleNamespace(inputs=lambda _: {"t": "t"})
    )
    made = []
    watch = Watch([*due, healthy], services, strict=False, forever=True, make_topics=made.append)
    watch.start()
    try:
        wait_until(lambda: len(restarted) == 20, 10, "all restarts")
    finally:
        watch.stop()
    assert restarted == made == [view.name for view in due]
    assert ticks[:3] == sorted(set(ticks[:3])), "the healthy view had a round between two restarts"
    assert healthy.condition.error == "healthy has ended"


def test_views_are_failing_while_their_watch_hangs(watch, views):
    clock = watch._services.clock = SettableClock()
    status = views[0].condition.status("view", "good")
    assert watch.judged(status).state is State.RUNNING
    watch._round_at = clock.monotonic()
    clock.advance(29)
    assert watch.judged(status).state is State.RUNNING
    clock.advance(2)
    assert (watch.judged(status).state, watch.judged(status).error) == (State.FAILING, NOT_WATCHED)
    views[0].condition.end("rebuild it", heals=False)
    assert watch.judged(views[0].condition.status("view", "good")).error == "rebuild it"


def test_the_results_of_all_views_are_looked_at_with_one_question(watch, views, topics):
    """A view is asked whether it was replaced if its results have grown, and not by batches of its own."""
    asked, ends = [], {("good.progress", 0): 1, ("bad.progress", 0): 1}
    topics.end_offsets = lambda names: asked.append(list(names)) or dict(ends)
    for view in views:
        view.publisher = types.SimpleNamespace(batches=1)
    assert watch._quiet() == set()
    ends |= {("good.progress", 0): 2, ("bad.progress", 0): 2}
    views[0].publisher.batches = 2
    assert watch._quiet() == {"bad"}
    assert asked == [["good.progress", "bad.progress"]] * 2


# ---- the end of a view -----------------------------------------------------------------------------------------


class Query(types.SimpleNamespace):
    isActive = True  # noqa: N815  Spark's name

    def stop(self):
        raise ConnectionError("Spark does not answer")


@pytest.fixture
def view(tmp_path, monkeypatch):
    """A view run whose query and publisher can be neither ended nor closed."""
    monkeypatch.setattr(view_run.results, "newest", lambda *_: None)
    services = types.SimpleNamespace(
        clock=SystemClock(),
        topics=Topics(),
        settings=Settings(log=f"embedded:{tmp_path}"),
        engine=types.SimpleNamespace(fault=lambda _: None),
    )
    view = ViewRun(types.SimpleNamespace(name="v"), services, None, 100)
    view.condition.begin()
    view.condition.work()

    def close():
        raise OSError("connection is closed")

    view.publisher = types.SimpleNamespace(failure=None, stopping=threading.Event(), close=close)
    view.query = Query()
    return view


def test_a_fenced_view_stays_stopped_also_if_its_query_cannot_be_ended(view):
    """A view that was tried again would fence the driver that has fenced it."""
    publisher = view.publisher
    view.end(FencedError("view 'v' is run by another driver now"))
    assert view.condition.state is State.STOPPED
    assert publisher.stopping.is_set()
    assert view.publisher is None


REFUSED = UsageError("view 'v' cannot continue: results are missing")


def test_a_stopped_view_without_results_is_due_once_a_reset_is_complete(view, tmp_path):
    Checkpoint(tmp_path / "checkpoints" / "v" / "run").begin()
    view.end(REFUSED)
    Checkpoint(tmp_path / "checkpoints" / "v" / "shadow").begin()  # a rebuild has begun, and is not done
    assert not view.is_due()
    shutil.rmtree(tmp_path / "checkpoints" / "v")
    assert not view.is_due(), "its topics are not deleted yet"
    del view._services.topics.existing["v.progress"]
    assert view.is_due()


def test_a_stopped_view_is_due_once_readers_see_another_run(view, monkeypatch):
    view.end(REFUSED)
    assert not view.is_due()
    monkeypatch.setattr(view_run.results, "newest", lambda *_: types.SimpleNamespace(run="other"))
    assert view.is_due()


def test_a_view_that_was_stopped_while_the_log_was_away_waits_for_a_command_too(view, monkeypatch):
    """It would otherwise fence the driver that has fenced it, as soon as the log is back."""

    def away(*_):
        raise MachineError("log does not answer")

    def sees(run):
        return lambda *_: types.SimpleNamespace(run=run)

    monkeypatch.setattr(view_run.results, "newest", away)
    view.end(FencedError("view 'v' is run by another driver now"))
    assert not view.is_due()
    monkeypatch.setattr(view_run.results, "newest", sees("theirs"))
    assert not view.is_due()
    monkeypatch.setattr(view_run.results, "newest", sees("rebuilt"))
    assert view.is_due()
