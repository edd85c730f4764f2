"""kill -9 in the middle of the demo: after the restart the views equal the batch answer, the demo itself checks it."""

import os
import re
import signal

import pytest

from support.demoprocess import DemoProcess
from support.servers import wait_until

SECONDS = 25
END_S = 1200


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(2400)
@pytest.mark.spark
@pytest.mark.own_spark
def test_views_are_right_after_kill_9_of_the_spark_driver_and_of_the_broker(tmp_path):
    with DemoProcess(tmp_path / "demo", SECONDS) as demo:
        demo.wait_for_rows("revenue", 8)
        pipeline, driver = demo.pid("pipeline"), demo.driver()
        os.kill(driver, signal.SIGKILL)
        wait_until(lambda: not alive(driver) and demo.pid("pipeline") != pipeline, 60, "another pipeline")
        wait_until(demo.has_driver, 60, "another driver")
        os.kill(demo.pid("broker"), signal.SIGKILL)
        assert demo.wait_for_end(END_S) == 0, demo.said()
        said = demo.said()
        assert "broker ended unexpectedly and was restarted 1 time(s)" in said
        assert re.search(r"pipeline ended unexpectedly and was restarted \d time", said)
        assert "All right" in said
        assert demo.parts() == []


@pytest.mark.timeout(1200)
@pytest.mark.spark
@pytest.mark.own_spark
def test_nothing_is_left_of_a_demo_that_was_killed_itself(tmp_path):
    with DemoProcess(tmp_path / "demo", SECONDS) as demo:
        wait_until(demo.has_driver, 60, "the Spark driver")
        demo.process.kill()
        demo.process.wait()
        wait_until(lambda: demo.parts() == [], 30, "the end of all parts")
