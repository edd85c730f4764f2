"""Running: whether the pipeline of these settings runs, for commands that need it to stand."""

import os

from headwater.config import Settings
from headwater.errors import UsageError

__all__ = ["refuse_while_running"]


def refuse_while_running(settings: Settings, what: str) -> None:
    """Raises UsageError, which says what cannot be, while the pipeline runs."""
    running = settings.data / "run" / "pipeline.pid"
    if running.exists() and _lives(int(running.read_text())):
        raise UsageError(
            f"{what} while the pipeline runs",
            got=f"process {running.read_text().strip()}",
            hint="stop it first",
        )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
