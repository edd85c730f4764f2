"""The commands for workers: run, pause, resume."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.options import AppFile, examples
from headwater.config import load
from headwater.errors import UsageError

__all__ = ["worker"]

PROCESSES_MAX = 256

Name = Annotated[str, typer.Argument(help="The worker.", show_default=False)]

worker = typer.Typer(
    help="Run and control workers, which handle the messages of share groups one by one.",
    epilog=examples("headwater worker run post.py", "headwater worker pause send"),
    no_args_is_help=True,
)


@worker.command(
    "run",
    epilog=examples("headwater worker run post.py", "headwater worker run post.py send --processes 4"),
)
def worker_run(
    app: AppFile,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="The workers.  [default: all]", show_default=False),
    ] = None,
    *,
    processes: Annotated[
        int, typer.Option(min=1, max=PROCESSES_MAX, help="How many processes run them all.")
    ] = 1,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run workers of an application until Ctrl-C; several processes, on any machines, divide the messages."""
    from headwater.declare.app import App
    from headwater.node.copies import run_copies
    from headwater.node.processes import end_with_supervisor
    from headwater.node.signals import stop_on_signals
    from headwater.worker.workers import Workers

    if supervised:
        end_with_supervisor()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = load()
    graph = App.load(str(app)).graph()
    workers = Workers(settings.access, graph, settings.data, names or (), partitions=settings.partitions)
    stop = stop_on_signals()
    if processes > 1:
        run_copies(["worker", "run", "--supervised", str(app), *(names or ())], processes, stop)
    else:
        workers.run(stop)


@worker.command(
    "pause", epilog=examples("headwater worker pause send", "headwater worker pause send post.py")
)
def worker_pause(
    name: Name,
    app: Annotated[
        Path | None,
        typer.Argument(
            metavar="[APP.PY]",
            help="The application file.  [default: any worker that has run with this data folder]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Pause a worker of this data folder once its running handlers have ended, until it is resumed."""
    from headwater.declare.app import App
    from headwater.health.pauses import Pauses
    from headwater.worker.workers import KIND

    pauses = Pauses(load().data, KIND)
    workers = list(App.load(str(app)).graph().workers) if app is not None else pauses.seen()
    if name not in workers:
        where = f"in {app}" if app is not None else "that has run with this data folder"
        raise UsageError(
            f"there is no worker {name!r} {where}", hint=f"workers are: {', '.join(workers) or 'none yet'}"
        )
    pauses.pause(name)
    typer.echo(f"worker {name} is paused until: headwater worker resume {name}")


@worker.command("resume", epilog=examples("headwater worker resume send"))
def worker_resume(name: Name) -> None:
    """Resume a paused worker."""
    from headwater.health.pauses import Pauses
    from headwater.worker.workers import KIND

    pauses = Pauses(load().data, KIND)
    if not pauses.is_paused(name):
        raise UsageError(
            f"worker {name!r} is not paused", hint=f"paused are: {', '.join(pauses.paused()) or 'none'}"
        )
    pauses.resume(name)
    typer.echo(f"worker {name} is resumed")
