"""The start of a runner, with views that follow a script: one whose state cannot be read ends alone."""

import threading
import types

import pytest

import headwater as hw
from headwater.config import Settings
from headwater.errors import MachineError, UsageError
from headwater.health.condition import Condition, State
from headwater.pipeline.run.runner import Runner
from headwater.result import TICKS


class View:
    """A view that starts, unless reading its state or planning it raises an error."""

    def __init__(self, name, *, state=None, plan=None):
        self.name, self.view, self.condition = name, types.SimpleNamespace(latency="batch"), Condition()
        self._state, self._plan, self.starts = state, plan, 0

    def read_state(self):
        if self._state is not None:
            raise self._state

    def plan(self, _):
        if self._plan is not None:
            raise self._plan

    def start(self, **_):
        self.starts += 1

    def end(self, error):
        self.condition.end(str(error), heals=not isinstance(error, UsageError))


def launch(*views, strict=False):
    runner = object.__new__(Runner)
    engine = types.SimpleNamespace(start=lambda *_: None, groups=types.SimpleNamespace(close=lambda: None))
    runner._services = types.SimpleNamespace(engine=engine)
    runner._app = types.SimpleNamespace(folder=None)
    runner.views = {view.name: view for view in views}
    runner._levels = [list(views)]
    runner._strict = strict
    runner.stop = runner._make_topics = lambda: None
    runner._launch(once=False)


NEWER = UsageError("a result in bad.progress has format 9")
DAMAGED = ValueError("Expecting value: line 1 column 1 (char 0)")


@pytest.mark.parametrize(("error", "state"), [(NEWER, State.STOPPED), (DAMAGED, State.FAILING)])
def test_a_view_whose_state_cannot_be_read_does_not_keep_the_others_from_starting(error, state):
    good, bad = View("good"), View("bad", state=error)
    launch(bad, good)
    assert (good.starts, good.condition.state) == (1, State.RUNNING)
    assert (bad.starts, bad.condition.state, bad.condition.error) == (0, state, str(error))


@pytest.mark.parametrize(
    "bad",
    [
        View("bad", plan=UsageError("unknown column")),
        View("bad", state=MachineError("log does not answer")),
    ],
    ids=["plan", "log"],
)
def test_a_wrong_plan_or_a_log_that_is_away_ends_the_start(bad):
    good = View("good")
    with pytest.raises((UsageError, MachineError)):
        launch(good, bad)
    assert good.starts == 0


def test_a_strict_runner_does_not_start_with_such_a_view():
    with pytest.raises(UsageError):
        launch(View("good"), View("bad", state=NEWER), strict=True)


class Topics:
    """A log that has all topics but one."""

    def __init__(self, *existing):
        self.existing, self.made, self.changed = dict.fromkeys(existing, 1), [], []

    def partitions(self):
        return self.existing

    def config(self, _):
        return {"retention.ms": "5", "cleanup.policy": "delete"}

    def set_config(self, topic, *_):
        self.changed.append(topic)

    def ensure_topics(self, names, *_):
        self.made += [name for name in names if name not in self.existing]

    def ensure(self, names, *_, **__):
        self.ensure_topics(names)


def test_a_view_that_is_started_again_gets_its_own_topics_and_changes_no_others(tmp_path):
    app = hw.App("shop")

    class Order(hw.Event):
        id: int

    for name in ("orders", "visits"):
        app.stream(name, Order, key="id", time=hw.ARRIVAL)
        app.sql(f"{name}_n", f"SELECT id, count(*) AS n FROM {name} GROUP BY id", key="id")
    runner = object.__new__(Runner)
    runner.graph, runner.settings, runner._shadows = app.graph(), Settings(log=f"embedded:{tmp_path}"), {}
    runner.views = dict.fromkeys(runner.graph.views)
    log = Topics("orders", TICKS)
    runner._services = types.SimpleNamespace(topics=log)
    runner._make_topics("orders_n")
    assert (log.made, log.changed) == (["orders_n", "orders_n.progress"], [])
    runner._make_topics("visits_n")
    assert log.made[2:] == ["visits", "visits_n", "visits_n.progress"]


def test_errors_name_the_file_of_the_application_and_leave_names_alone():
    runner = object.__new__(Runner)
    condition = Condition()
    condition.end("build it again: headwater view rebuild APPLES APP; or APP", heals=False)
    runner.views = {"APPLES": types.SimpleNamespace(condition=condition, left_out=None)}
    runner._app = types.SimpleNamespace(file="shop.py")
    runner.watch = types.SimpleNamespace(lags={}, judged=lambda status: status)
    (status,) = runner.statuses()
    assert status.error == "build it again: headwater view rebuild APPLES shop.py; or shop.py"


def test_a_view_that_cannot_be_ended_keeps_no_other_from_its_end():
    ended = []

    class Ending:
        def __init__(self, name):
            self.name = name

        def __getattr__(self, step):
            def act(*_):
                ended.append(f"{step} {self.name}")
                if (self.name, step) == ("bad", "stop"):
                    raise ConnectionError("Spark does not answer")

            return act

    runner = object.__new__(Runner)
    runner.watch = types.SimpleNamespace(stop=lambda: None, ended=threading.Event())
    runner._ordered = [Ending("bad"), Ending("good")]
    runner._close_groups = lambda: ended.append("groups")
    runner._services = types.SimpleNamespace(close=lambda: ended.append("services"))
    with pytest.raises(ConnectionError):
        runner.stop()
    steps = ("refuse_batches", "stop", "settle", "close")
    views = [f"{step} {name}" for step in steps for name in ("bad", "good")]
    assert ended == [*views, "groups", "services"]
    assert runner.watch.ended.is_set()
