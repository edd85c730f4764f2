"""Commands that need a view to be stopped are refused unless the process that runs now says that it is."""

import os
import subprocess
import sys

import msgspec
import pytest

from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.health.board import Board
from headwater.health.condition import PartStatus, State
from headwater.operate.views.running import refuse_while_running


def ended():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


PROCESSES = {"this": os.getpid(), "parent": os.getppid()}


@pytest.mark.parametrize(
    ("said_by", "state", "noted", "refused"),
    [
        ("dead", "stopped", "this", True),  # the next process, which may start the view at this moment
        (None, None, "this", True),
        ("alive", "running", "this", True),
        ("alive", "running", None, True),  # headwater run without headwater up
        ("alive", "starting", None, True),
        ("alive", "stopped", "this", False),
        ("alive", "stopped", None, False),
        ("alive", "stopped", "parent", True),  # two of them
        ("dead", "running", None, False),
        (None, None, None, False),
    ],
)
def test_only_the_process_that_runs_now_can_say_that_a_view_is_stopped(
    tmp_path, said_by, state, noted, refused
):
    run = tmp_path / "run"
    run.mkdir()
    now_ms = SystemClock().now_ms()
    if said_by is not None:
        part = PartStatus("view", "v", State(state), now_ms)
        board = Board("pipeline", PROCESSES["this"] if said_by == "alive" else ended(), now_ms, (part,))
        (run / "pipeline.parts.json").write_bytes(msgspec.json.encode(board))
    if noted is not None:  # under headwater up, which has just started it again
        (run / "pipeline.pid").write_text(str(PROCESSES[noted]))
        process = PartStatus("process", "pipeline", State.FAILING, now_ms)
        up = Board("up", PROCESSES["this"], now_ms, (process,), {"pipeline": [("view", "v")]})
        (run / "up.parts.json").write_bytes(msgspec.json.encode(up))
    settings = Settings(log=f"embedded:{tmp_path}")
    if refused:
        with pytest.raises(UsageError, match="view 'v' cannot be reset while the pipeline runs"):
            refuse_while_running(settings, "view 'v' cannot be reset", unless_stopped="v")
    else:
        refuse_while_running(settings, "view 'v' cannot be reset", unless_stopped="v")
