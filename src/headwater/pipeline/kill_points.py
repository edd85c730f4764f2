"""Kill points: the named steps of the batch protocol at which a test may kill the process.

The variable ``CRASH_FILE`` names a file that says where: ``POINT`` or ``POINT#N``, the Nth time that any
process of the view passes it. The kill removes the file, so that the next process continues. Without the
variable a point costs nothing.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

__all__ = ["POINTS", "SWAP_POINTS", "passes"]

POINTS = (
    "batch begins",
    "state delta is written",
    "state delta is synced",
    "state files are merged",
    "shard has answered",
    "batch was computed",
    "transaction begun",
    "half is produced",
    "all is produced",
    "before commit",
    "after commit",
    "batch ends",
)
"""In the order of a batch; those of the state are in Spark's Python workers, the others in the driver."""

SWAP_POINTS = (
    "old run is fenced",
    "swap files are written",
    "transaction begun",
    "half is produced",
    "before commit",
    "after commit",
)
"""The points of a swap, in the process that rebuilds."""


def passes(point: str, before: Callable[[], object] | None = None) -> None:
    """Called at a point. ``before``: runs before a kill there, so that the kill hits something."""
    crash_file = os.environ.get("CRASH_FILE")
    if crash_file is not None:
        _meet(Path(crash_file), point, before)


def _meet(order: Path, point: str, before: Callable[[], object] | None) -> None:
    try:
        wanted, _, times = order.read_text().strip().partition("#")
    except FileNotFoundError:
        return
    if wanted != point:
        return
    if int(times or 1) > 1:
        order.write_text(f"{wanted}#{int(times) - 1}")
        return
    if before is not None:
        before()
    order.unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)
