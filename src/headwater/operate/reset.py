"""Reset: throws a view's results away, so that the next start makes them anew from the log."""

import os
import shutil

from headwater import result
from headwater.client import Client
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.operate import topic

__all__ = ["reset"]


def reset(settings: Settings, view: str) -> None:
    """Removes a view's topics and its checkpoint; its streams and other views are not touched.

    Raises UsageError while the pipeline runs, and for a view that has published nothing.
    """
    running = settings.data / "run" / "pipeline.pid"
    if running.exists() and _lives(int(running.read_text())):
        raise UsageError(
            f"view {view!r} cannot be reset while the pipeline runs",
            got=f"process {running.read_text().strip()}",
            hint="stop it first",
        )
    known = Client(settings.access).partitions()
    if result.topic(view) not in known:
        raise UsageError(
            f"there is no view {view!r} with results", hint="headwater topic list shows what there is"
        )
    for name in (view, result.topic(view)):
        if name in known:
            topic.delete(settings.access, name)
    shutil.rmtree(settings.data / "checkpoints" / view, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
