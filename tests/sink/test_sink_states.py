"""What a sink says of itself: it runs once it applies batches, and not before; a store that hangs is named in every state."""

import contextlib
import threading
import types

import pytest

from headwater.errors import MachineError
from headwater.health.condition import Condition
from headwater.sink.loop.life import SinkState
from headwater.sink.loop.loop import Loop
from headwater.sink.loop.sinks import Sinks
from support.servers import wait_until

NOWHERE = "127.0.0.1:1"


class Store:
    """A store of which one call does not return."""

    def __init__(self):
        self.answers = threading.Event()

    def check(self, _):
        pass

    def open(self, _):
        self.answers.wait(30)
        return self

    def apply(self, _):
        self.answers.wait(30)


@pytest.fixture
def store():
    store = Store()
    yield store
    store.answers.set()


class One:
    """A process with one sink."""

    def __init__(self, store, feed=lambda: None):
        self.loop = Loop(NOWHERE, "s", "t", store, feed)
        self._sinks = object.__new__(Sinks)
        self._sinks._conditions = {"s": Condition()}
        self._sinks._conditions["s"].begin()
        self._sinks.loops, self._sinks._lags = {"s": self.loop}, {}
        self._sinks._pauses = types.SimpleNamespace(is_paused=lambda _: False)

    def says(self):
        self.loop.look()
        status = self._sinks._status("s")
        return str(status.state), status.error


def test_a_sink_is_starting_until_it_applies_batches(store):
    one = One(store)
    before = [state for state in SinkState if state not in {SinkState.RUNNING, SinkState.STOPPED}]
    for state in before:
        one.loop.state = state
        assert one.says() == ("starting", "")
    one.loop.state = SinkState.RUNNING
    assert one.says() == ("running", "")


@pytest.mark.parametrize("step", ["_open", "_tell"])
def test_a_store_that_hangs_is_named_in_every_state(store, monkeypatch, step):
    monkeypatch.setattr("headwater.sink.patience.ANSWER_S", 0.05)
    one = One(store)
    one.loop._feed, one.loop._store, one.loop._report = None, store, lambda: None
    one.loop._member = types.SimpleNamespace(offsets={0: 1}, is_complete=lambda: True, resting=False)

    def run():
        with contextlib.suppress(AttributeError):  # what follows the answer needs a real store
            getattr(one.loop, step)()

    threading.Thread(target=run, daemon=True).start()
    wait_until(lambda: one.says()[0] == "failing", 5, "notice of its silence")
    assert one.says()[1].startswith("the store has not answered for more than")
    store.answers.set()
    wait_until(lambda: not one.loop.trouble, 5, "its answer")


def test_a_log_that_cannot_say_the_columns_is_named():
    def away():
        raise MachineError("log does not answer")

    one = One(None, away)
    thread = threading.Thread(target=one.loop._find_columns, daemon=True)
    thread.start()
    try:
        wait_until(lambda: one.says() == ("failing", "log does not answer"), 5, "the reason")
    finally:
        one.loop.stop()
        thread.join()
