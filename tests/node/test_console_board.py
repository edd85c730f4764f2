"""The console answers, and says still that its view tables cannot be written."""

import threading

import pytest

from headwater.errors import UnavailableError
from headwater.health.board import BoardFile, boards
from headwater.health.condition import Condition, State
from headwater.node.console_board import judge, say
from headwater.sink.store import Full
from headwater.testing import SettableClock
from headwater.view.tables.delivery import SILENT_S, Delivery
from support.servers import wait_until


@pytest.fixture
def clock():
    return SettableClock()


@pytest.fixture
def delivery(clock, tmp_path):
    return Delivery("127.0.0.1:1", ["revenue"], tmp_path, lambda *_: None, clock=clock)


@pytest.mark.parametrize(("error", "says"), [(Full, "has no room"), (UnavailableError, "is away")])
def test_a_console_that_waits_for_its_disk_is_failing(delivery, clock, error, says):
    condition = Condition(clock)
    condition.begin()
    judge(delivery, condition)
    assert condition.state is State.RUNNING
    delivery._stopping.set()  # so that it does not wait here
    delivery._patience.wait(error("database or disk is full"))
    judge(delivery, condition)
    assert (condition.state, condition.error) == (
        State.FAILING,
        f"the store {says}: database or disk is full",
    )
    delivery._patience.over()
    for _ in range(2):
        judge(delivery, condition)
        clock.advance(5)
    assert condition.state is State.RUNNING


def test_a_delivery_that_hangs_is_noticed(delivery, clock):
    clock.advance(SILENT_S + 1)
    assert delivery.trouble() == "no view table was written for more than 60 s: its disk hangs"


def test_the_board_of_the_console_lives_as_long_as_the_console(delivery, tmp_path):
    over = threading.Event()
    thread = threading.Thread(target=say, args=(delivery, BoardFile(tmp_path, "console"), over))
    thread.start()
    wait_until(lambda: "console" in boards(tmp_path), 5, "its board")
    (part,) = boards(tmp_path)["console"].parts
    assert (part.kind, part.name, part.state) == ("console", "console", State.RUNNING)
    over.set()
    thread.join()
    assert not boards(tmp_path)
