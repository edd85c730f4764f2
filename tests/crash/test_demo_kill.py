"""kill -9 in the middle of the demo: after the restart the views equal the batch answer, the demo itself checks it."""

import os
import signal

import pytest

from demoprocess import DemoProcess
from servers import wait_until

SECONDS = 25
END_S = 1200


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run_to_the_end(demo, part):
    assert demo.wait_for_end(END_S) == 0, demo.said()
    said = demo.said()
    assert f"{part} died and was started again 1 time(s)" in said
    assert "All right" in said
    assert demo.parts() == []


@pytest.mark.timeout(2400)
@pytest.mark.spark
@pytest.mark.own_spark
def test_views_are_right_after_kill_9_of_the_spark_driver(tmp_path):
    with DemoProcess(tmp_path / "demo", SECONDS) as demo:
        demo.wait_for_rows("revenue", 8)
        driver = demo.driver()
        os.kill(driver, signal.SIGKILL)
        wait_until(lambda: demo.pid("pipeline") and not alive(driver), what="the driver's death")
        run_to_the_end(demo, "pipeline")


@pytest.mark.timeout(2400)
@pytest.mark.spark
@pytest.mark.own_spark
def test_views_are_right_after_kill_9_of_the_broker(tmp_path):
    with DemoProcess(tmp_path / "demo", SECONDS) as demo:
        demo.wait_for_rows("revenue", 8)
        os.kill(demo.pid("broker"), signal.SIGKILL)
        run_to_the_end(demo, "broker")


@pytest.mark.timeout(1200)
@pytest.mark.spark
@pytest.mark.own_spark
def test_nothing_is_left_of_a_demo_that_was_killed_itself(tmp_path):
    with DemoProcess(tmp_path / "demo", SECONDS) as demo:
        wait_until(demo.has_driver, 60, "the Spark driver")
        demo.process.kill()
        demo.process.wait()
        wait_until(lambda: demo.parts() == [], 30, "the end of all parts")
