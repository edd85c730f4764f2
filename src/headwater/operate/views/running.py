"""Whether the pipeline of these settings runs, for commands that need it to be stopped."""

import os
from pathlib import Path

from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.health.board import boards
from headwater.health.condition import State

__all__ = ["refuse_while_running"]

PIPELINE = "pipeline"


def refuse_while_running(settings: Settings, what: str, *, unless_stopped: str = "") -> None:
    """Raises UsageError while the pipeline runs, unless it says itself that it has stopped the named view.

    Its text begins with ``what``, like "view 'v' cannot be reset". Under ``headwater up`` the process has
    its id in a file; what an earlier one has said of its views does not count for it.
    """
    board = boards(settings.data).get(PIPELINE)
    running = _noted(settings.data / "run" / f"{PIPELINE}.pid")
    if board is not None and board.is_fresh(SystemClock().now_ms()):
        running.add(board.pid)
        says = {part.name: part.state for part in board.parts if part.kind == "view"}
        if running == {board.pid} and says.get(unless_stopped) is State.STOPPED:
            return
    if running:
        raise UsageError(
            f"{what} while the pipeline runs",
            got=f"process {', '.join(map(str, sorted(running)))}",
            hint="stop headwater run first",
        )


def _noted(file: Path) -> set[int]:
    """The process of a file with its id, if it runs."""
    try:
        pid = int(file.read_text())
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return set()
    except PermissionError:
        pass
    return {pid}
