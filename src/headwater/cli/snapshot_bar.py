"""The progress of a capture's snapshot: a bar on a terminal, log lines elsewhere."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft
from rich.text import Text

from headwater.clock import Clock, SystemClock

__all__ = ["show"]

SHOWN_EVERY_S = 0.2
LOGGED_EVERY_S = 10.0

logger = logging.getLogger(__name__)


def show(source: Any, over: threading.Event, console: Console | None = None) -> None:
    """Shows the progress of a source until `over`.

    Shows nothing between snapshots, or for a source without ``progress``.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        _draw(source, over, console)
    else:
        lines = ProgressLines()
        while not over.wait(LOGGED_EVERY_S):
            lines.look(getattr(source, "progress", None))


class ProgressLines:
    """Lines for the log. The speed is measured since the previous line."""

    def __init__(self, clock: Clock | None = None, say: Callable[[str], None] = logger.info) -> None:
        self._clock = clock or SystemClock()
        self._say = say
        self._last: Any = None
        self._looked = self._clock.monotonic()

    def look(self, now: Any) -> None:
        """Logs the progress of a snapshot if it has changed."""
        seconds = self._clock.monotonic() - self._looked
        self._looked += seconds
        last, self._last = self._last, now
        if now is None or now == last:
            return
        since = last.rows if last is not None and last.table == now.table else 0
        speed = (now.rows - since) / seconds if seconds > 0 else 0.0
        line = f"snapshot of {now.table}: {now.rows:,} rows of about {now.about:,}, {speed:,.0f} rows/s"
        if speed > 0 and now.about > now.rows:
            line += f", {_duration((now.about - now.rows) / speed)} left"
        self._say(line)


class _Speed(ProgressColumn):
    """A task has no speed before its second step."""

    def render(self, task: Task) -> Text:
        return Text("? rows/s" if task.speed is None else f"{task.speed:,.0f} rows/s")


def _draw(source: Any, over: threading.Event, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Speed(), TimeLeft())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}
        while not over.wait(SHOWN_EVERY_S):
            now = getattr(source, "progress", None)
            if now is not None:
                if now.table not in tasks:
                    tasks[now.table] = bars.add_task(now.table, total=now.about)
                bars.update(tasks[now.table], completed=now.rows, total=max(now.about, now.rows))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
