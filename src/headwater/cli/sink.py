"""The commands for sinks: run, status, pause, resume."""

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.options import AppFile, examples
from headwater.config import Settings, load
from headwater.errors import UsageError

__all__ = ["sink"]

Application = Annotated[
    Path | None,
    typer.Argument(
        metavar="[APP.PY]",
        help="The application file.  [default: the sink has run with this log]",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(help="The sink.", show_default=False)]

sink = typer.Typer(
    help="Run and control sinks, which keep stores in sync with streams, tables and views.",
    epilog=examples("headwater sink run shop.py", "headwater sink status shop.py"),
    no_args_is_help=True,
)


@sink.command(
    "run", epilog=examples("headwater sink run shop.py", "headwater sink run shop.py revenue.postgres")
)
def sink_run(
    app: AppFile,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="The sinks.  [default: all]", show_default=False),
    ] = None,
) -> None:
    """Run sinks of an application in this process; several such processes share the partitions."""
    from headwater.declare.app import App
    from headwater.sink.loop.sinks import Sinks

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = load()
    sinks = Sinks(settings.access, App.load(str(app)).graph(), settings.data, names or ())
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    sinks.run(stop)


@sink.command("status", epilog=examples("headwater sink status shop.py"))
def sink_status(app: AppFile) -> None:
    """Show position, lag, dead letters and holder of every partition of every sink."""
    from headwater.declare.app import App
    from headwater.health.pauses import Pauses
    from headwater.sink.loop.status import partition_statuses

    settings = load()
    pauses = Pauses(settings.data)
    graph = App.load(str(app)).graph()
    if not graph.sinks:
        typer.echo(f"{app} declares no sinks")
        return
    partitions = partition_statuses(settings.access, graph)
    typer.echo(f"{'sink':<32} {'partition':>9} {'position':>12} {'lag':>10} {'dead':>6}  holder")
    for one in partitions:
        holder = "paused" if pauses.is_paused(one.sink) else one.holder or "-"
        typer.echo(
            f"{one.sink:<32} {one.partition:>9} {one.position:>12,} {one.lag:>10,} {one.dead:>6,}  {holder}"
        )
    for name in graph.sinks.keys() - {one.sink for one in partitions}:
        typer.echo(f"{name:<32} its topic does not exist yet")


@sink.command(
    "pause",
    epilog=examples("headwater sink pause revenue.postgres", "headwater sink pause revenue.postgres shop.py"),
)
def sink_pause(name: Name, app: Application = None) -> None:
    """Pause a sink after its current batch, also over restarts, until it is resumed."""
    from headwater.health.pauses import Pauses

    settings = load()
    _check_exists(settings, name, app)
    Pauses(settings.data).pause(name)
    typer.echo(f"sink {name} is paused until: headwater sink resume {name}")


@sink.command("resume", epilog=examples("headwater sink resume revenue.postgres"))
def sink_resume(name: Name) -> None:
    """Resume a paused sink at its position."""
    from headwater.health.pauses import Pauses

    pauses = Pauses(load().data)
    if not pauses.is_paused(name):
        raise UsageError(
            f"sink {name!r} is not paused", hint=f"paused are: {', '.join(pauses.paused()) or 'none'}"
        )
    pauses.resume(name)
    typer.echo(f"sink {name} is resumed")


def _check_exists(settings: Settings, name: str, app: Path | None) -> None:
    """UsageError unless the application declares a sink, or the log knows its group."""
    from headwater.declare.app import App
    from headwater.declare.spec import SINK_GROUP
    from headwater.operate.log.group import groups

    if app is not None:
        sinks = sorted(App.load(str(app)).graph().sinks)
    else:
        known = (group.name for group in groups(settings.access))
        sinks = [group.removeprefix(SINK_GROUP) for group in known if group.startswith(SINK_GROUP)]
    if name not in sinks:
        where = f"in {app}" if app is not None else "that has run with this log"
        raise UsageError(
            f"there is no sink {name!r} {where}", hint=f"sinks are: {', '.join(sinks) or 'none yet'}"
        )
