"""The commands that look after sinks: run, status, pause, resume."""

import logging
import signal
import threading
from typing import Annotated

import typer

from headwater.cli_parts import AppFile, examples
from headwater.config import load

__all__ = ["sink"]

Name = Annotated[str, typer.Argument(help="The sink.", show_default=False)]

sink = typer.Typer(
    help="Sinks: stores outside that are kept in step with streams, tables and views.",
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
        typer.Argument(metavar="[NAME]...", help="The sinks; without one, all.", show_default=False),
    ] = None,
) -> None:
    """Run sinks of an application in this process; others that run the same share its partitions."""
    from headwater.app import App
    from headwater.sink.run import Sinks

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = load()
    running = Sinks(settings.access, App.load(str(app)).graph(), settings.data, names or ())
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    running.run(stop)


@sink.command("status", epilog=examples("headwater sink status shop.py"))
def sink_status(app: AppFile) -> None:
    """Position, lag, dead letters and holder of every partition of every sink."""
    from headwater.app import App
    from headwater.sink.pause import Pauses
    from headwater.sink.status import standings

    settings = load()
    pauses = Pauses(settings.data)
    graph = App.load(str(app)).graph()
    found = standings(settings.access, graph)
    typer.echo(f"{'sink':<32} {'partition':>9} {'position':>12} {'lag':>10} {'dead':>6}  holder")
    for each in found:
        holder = "paused" if pauses.is_paused(each.sink) else each.holder or "-"
        typer.echo(
            f"{each.sink:<32} {each.partition:>9} {each.position:>12,} {each.lag:>10,} {each.dead:>6,}  {holder}"
        )
    for name in graph.sinks.keys() - {each.sink for each in found}:
        typer.echo(f"{name:<32} its topic does not exist yet")


@sink.command("pause", epilog=examples("headwater sink pause revenue.postgres"))
def sink_pause(name: Name) -> None:
    """Let a sink rest, after the batch in hand, until it is resumed; also over restarts."""
    from headwater.sink.pause import Pauses

    Pauses(load().data).pause(name)
    typer.echo(f"sink {name} rests until: headwater sink resume {name}")


@sink.command("resume", epilog=examples("headwater sink resume revenue.postgres"))
def sink_resume(name: Name) -> None:
    """Let a paused sink go on from where it stands."""
    from headwater.sink.pause import Pauses

    Pauses(load().data).resume(name)
    typer.echo(f"sink {name} goes on")
