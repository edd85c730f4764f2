"""Up: a whole application until Ctrl-C, for ``headwater up`` and ``app.up()``."""

import contextlib
import sys
from pathlib import Path

from headwater.config import Settings
from headwater.declare.graph import Graph
from headwater.health.report import Report, news
from headwater.node.node import Node
from headwater.node.signals import stop_on_signals
from headwater.node.supervisor import Interrupted
from headwater.pipeline.spark import java

__all__ = ["up"]

LOOK_S = 0.5


def up(file: Path, graph: Graph, settings: Settings) -> None:
    """Broker, captures, views, sinks, workers and console as supervised processes, until Ctrl-C or SIGTERM.

    Prints a line whenever a part ends, is started again or recovers. Raises the error of a process that
    cannot start at all; once everything was started, nothing but a signal ends it.
    """
    if graph.needs_spark:
        java.require()
    stop = stop_on_signals()
    with contextlib.suppress(Interrupted), Node(settings, file, graph, stop=stop) as node:
        node.start_log()
        _print(f"log      {node.settings.bootstrap}")
        node.start_parts(patient=True)
        _print(f"console  {node.url}")
        _print(f"logs     {node.folder / 'logs'}")
        before = Report.of(())
        while not stop.wait(LOOK_S):
            node.supervisor.check()
            report = node.supervisor.report()
            for line in news(before, report):
                _print(line)
            before = report


def _print(line: str) -> None:
    """A line that cannot be printed, as on a full disk or into a closed pipe, ends nothing."""
    encoding = sys.stdout.encoding or "utf-8"
    with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed here
        sys.stdout.write(f"{line}\n".encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()
