"""Views: the views of an application in this process, for ``headwater run`` and ``app.run()``."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater.config import Settings
from headwater.declare.app import App
from headwater.errors import MachineError, one_line
from headwater.health.board import BoardFile
from headwater.node.signals import stop_on_signals
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import java

__all__ = ["run_views"]

LOOK_S = 0.5
PIPELINE = "pipeline"


def run_views(
    app: App,
    settings: Settings,
    *,
    once: bool = False,
    planned: Callable[[], None] = lambda: None,
    ready: Path | None = None,
    forever: bool = False,
) -> None:
    """Runs all views until Ctrl-C or SIGTERM; with ``once``, until they have read what the log holds now.

    A view that fails ends no other. If none can run any more, raises what ended the first, unless it is to
    run ``forever``. ``planned`` is called when every view is planned; ``ready`` is a file that gets the id of
    this process when every view was started.
    """
    app.graph()
    java.require()
    if once:
        Runner(app, settings).once()
        return
    runner = Runner(app, settings, strict=False, forever=forever)
    board = BoardFile(settings.data, PIPELINE)
    board.write(runner.statuses())  # also to commands that must not touch a view while it runs
    try:
        runner.start(planned)  # until here a signal ends the process at once: nothing has been published yet
    except BaseException:
        board.remove()
        raise
    stop = stop_on_signals()
    try:
        board.write(runner.statuses())
        if ready is not None:
            ready.write_text(str(os.getpid()))
        while not stop.is_set() and not runner.wait(LOOK_S):
            _end_without_driver()
            board.write(runner.statuses())
    finally:
        runner.stop()
        board.remove()


def _end_without_driver() -> None:
    """Ends this process at once if Spark's JVM has ended: every call to it would fail or wait for ever."""
    from pyspark import SparkContext  # noqa: PLC0415  loaded by the runner

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context  # noqa: SLF001
    error = None
    if gateway is not None and gateway.proc.poll() is not None:
        error = MachineError("the Spark driver's JVM has ended", got=f"exit code {gateway.proc.returncode}")
    elif context is not None and _has_stopped(context):
        error = MachineError("Spark has stopped", hint="see logs/spark.log in the data folder")
    if error is not None:
        sys.stderr.write(f"headwater: {one_line(error, None)}\n")
        os._exit(error.exit_code)


def _has_stopped(context: Any) -> bool:
    """Whether Spark has ended inside of a JVM that runs, as after a fault of its scheduler."""
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001
    except Exception:  # noqa: BLE001  the JVM ends at this moment; the next look says so
        return False
