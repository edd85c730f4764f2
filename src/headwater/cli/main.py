"""The command line: demo, init, up, run, broker, graph, doctor, and the commands of the other modules here.

Commands import what they need when they run, so that ``--help`` is quick. An error of Headwater becomes one
line on standard error and the exit code of its kind; a traceback is a bug.
"""

import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Never

import typer
from typer.exceptions import TyperException

from headwater.cli.capture import capture
from headwater.cli.log import add_commands
from headwater.cli.options import AppFile, examples
from headwater.cli.queue import queue
from headwater.cli.sink import sink
from headwater.cli.status import add_status
from headwater.cli.view import view
from headwater.cli.worker import worker
from headwater.config import Settings, load
from headwater.decoders import from_json
from headwater.errors import HeadwaterError, UsageError, one_line
from headwater.node.signals import stop_on_signals

__all__ = ["begin", "cli", "main"]

INTERRUPTED = 130


def main() -> Never:
    """Runs the command line and exits with its code."""
    try:
        code = cli(prog_name="headwater", standalone_mode=False)
    except HeadwaterError as error:
        sys.exit(_print_error(error))
    except TyperException as error:
        sys.exit(_print_error(_wrong_command(error)))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(error: HeadwaterError) -> int:
    if error.what:
        sys.stderr.write(f"headwater: {one_line(error, None)}\n")
    return error.exit_code


def _wrong_command(error: TyperException) -> UsageError:
    """A command line that cannot be read, as one line; nothing is said where the help was printed instead."""
    said = error.format_message().strip().removesuffix(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "headwater"
    _, _, part = command.partition(" ")
    what = f"{said[:1].lower()}{said[1:]}".replace("'. Did you mean", "'; did you mean")
    return UsageError(
        ": ".join(filter(None, (part, what))) if said else "",
        hint="" if "mean" in what else f"{command} --help shows what there is",
    )


cli = typer.Typer(
    name="headwater",
    help="Streams, tables and live views on durable logs.",
    epilog=examples("headwater demo", "headwater up app.py", "headwater view rows revenue --json"),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
cli.add_typer(sink, name="sink")
cli.add_typer(worker, name="worker")
cli.add_typer(queue, name="queue")
cli.add_typer(view, name="view")
cli.add_typer(capture, name="capture")

Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwater {version('headwater')}")
        raise typer.Exit


@cli.callback()
def _common_options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Options of the program itself, without a command."""


@cli.command(
    epilog=examples(
        "headwater demo", "headwater demo --seconds 60", "headwater demo --data ./shop --port 9000"
    )
)
def demo(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Stop after this time and check every number.  [default: run until Ctrl-C]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the events; equal seeds send equal events.")] = 1,
    rate: Annotated[float, typer.Option(min=1, max=20_000, help="Average number of events a second.")] = 400,
    speed: Annotated[
        float, typer.Option(min=1, max=600, help="Speed of the shop's clock; 1 is real time.")
    ] = 60,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the console; 0 takes a free one.  [default: 8080 if free]",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which to keep all data.  [default: a folder that is deleted at the end]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a web shop as a demonstration: embedded log, Spark, live pages and traffic."""
    from headwater.demo.run import Demo, Plan

    plan = Plan(seconds=seconds, seed=seed, rate=rate, speed=speed, port=port, data=data)
    raise typer.Exit(Demo(load(), plan, stop_on_signals()).run())


@cli.command(epilog=examples("headwater init", "headwater init shop"))
def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[FOLDER]", help="Where to write it.  [default: here]", show_default=False),
    ] = Path(),
) -> None:
    """Write a small application and a test of it, to begin with."""
    from headwater.cli.new_application import write

    app, test = write(folder)
    typer.echo(f"wrote {app} and {test}; next:")
    for line in (f"headwater graph {app}", f"pip install pytest && pytest {test}", f"headwater up {app}"):
        typer.echo(f"  {line}")


@cli.command(epilog=examples("headwater up app.py", "HEADWATER_LOG=kafka://kafka:9092 headwater up app.py"))
def up(app: AppFile) -> None:
    """Run an application.

    Broker, captures, views, sinks, workers and console, in one supervised group of processes.
    """
    from headwater.declare.app import App

    settings = load()
    declared = App.load(str(app)).graph()
    from headwater.node import up as node

    node.up(app, declared, settings)


@cli.command(epilog=examples("headwater run app.py", "headwater run app.py --once"))
def run(
    app: AppFile,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Process the records that the log has now, then stop.")
    ] = False,
    ready: Annotated[
        Path | None, typer.Option(hidden=True, help="A file to create when every view runs.")
    ] = None,
    supervised: Supervised = False,
) -> None:
    """Run the views of an application on Spark, against the log of the settings."""
    from headwater.declare.app import App

    settings = begin(supervised=supervised)
    loaded = App.load(str(app))
    loaded.graph()  # checked before Spark is loaded
    from headwater.node.gate import Gate
    from headwater.node.views import run_views

    planned = Gate(settings.data).open if supervised else lambda: None
    run_views(loaded, settings, once=once, planned=planned, ready=ready, forever=supervised)


@cli.command(epilog=examples("headwater broker --data ./data --port 9092", "kcat -b 127.0.0.1:9092 -L"))
def broker(
    *,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the log.  [default: from the settings]", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on.  [default: from the settings]", show_default=False
        ),
    ] = None,
    flush: Annotated[
        str | None,
        typer.Option(
            help="Acknowledge a write after a sync to the disk (commit), or before (os)."
            "  [default: from the settings]",
            show_default=False,
        ),
    ] = None,
    supervised: Supervised = False,
) -> None:
    """Run only the embedded log, for any Kafka client."""
    from headwater.door.kafka.listener.process import serve

    settings = begin(
        supervised=supervised, log=f"embedded:{data}" if data else None, broker_port=port, flush=flush
    )
    if settings.embedded is None:
        raise UsageError(
            "there is no embedded log to run: the setting 'log' names an Apache Kafka",
            got=settings.log,
            hint="headwater broker --data DIR runs one",
        )
    serve(settings)


@cli.command(epilog=examples("headwater graph app.py", "headwater graph app.py --operators"))
def graph(
    app: AppFile,
    *,
    operators: Annotated[
        bool,
        typer.Option(
            "--operators", help="Show the state of each view too; Spark plans it, which takes seconds."
        ),
    ] = False,
) -> None:
    """Check an application and draw its streams, views, sinks and workers, without running it."""
    from headwater.declare.app import App
    from headwater.declare.drawing import drawing

    loaded = App.load(str(app))
    declared = loaded.graph()
    if not operators:
        typer.echo(drawing(declared))
        return
    from headwater.pipeline.build.explain import steps

    typer.echo(drawing(declared, steps(loaded, declared, load())))


@cli.command(epilog=examples("headwater doctor", "headwater doctor app.py", "headwater doctor --prepare"))
def doctor(
    app: Annotated[
        Path | None,
        typer.Argument(
            metavar="[APP.PY]",
            help="An application file, whose streams are compared with the log.",
            show_default=False,
        ),
    ] = None,
    *,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Download the jars and archive Spark's classes for faster starts."),
    ] = False,
) -> None:
    """Check whether this machine has all that Headwater needs, and show how to get what is missing."""
    from headwater.declare.app import App
    from headwater.operate.machine.doctor import report

    declared = None if app is None else App.load(str(app)).graph()
    if prepare:
        from headwater.operate.machine import keep_classes
        from headwater.pipeline.spark import jars, java_classes

        jars.ensure(progress=typer.echo)
        java_classes.ensure(progress=typer.echo)
        typer.echo(f"Spark's classes are archived in {keep_classes.keep()}")
    raise typer.Exit(report(declared))


@cli.command(hidden=True)
def console(info: str, *, supervised: Supervised = False) -> None:
    """Fill the view tables and serve them; INFO is a JSON object with the application and its views."""

    from headwater.node.node import serve_console
    from headwater.view.web import Info

    serve_console(begin(supervised=supervised), from_json(info, Info))


@cli.command(hidden=True)
def sinks(app: AppFile, *, supervised: Supervised = False) -> None:
    """Run all sinks of an application; if one fails, it writes that to its log, and the others continue."""
    from headwater.declare.app import App
    from headwater.health.board import BoardFile
    from headwater.node.gate import Gate
    from headwater.sink.loop.sinks import Sinks

    settings = begin(supervised=supervised)
    graph = App.load(str(app)).graph()
    board, gate = BoardFile(settings.data, "sinks"), Gate(settings.data)
    running = Sinks(
        settings.access,
        graph,
        settings.data,
        may_begin=lambda sink: not supervised or gate.lets("sink", sink.name, sink),
    )
    running.run(stop_on_signals(), forever=True, board=board)


@cli.command(hidden=True)
def workers(app: AppFile, *, supervised: Supervised = False) -> None:
    """Run all workers of an application; if one fails, it writes that to its log, and the others continue."""
    from headwater.declare.app import App
    from headwater.health.board import BoardFile
    from headwater.node.gate import Gate
    from headwater.worker.workers import KIND, Workers

    settings, stop = begin(supervised=supervised), stop_on_signals()
    graph = App.load(str(app)).graph()
    board, gate = BoardFile(settings.data, KIND), Gate(settings.data)
    running = Workers(settings.access, graph, settings.data, partitions=settings.partitions)
    declared = graph.workers.values() if supervised else ()
    if all(gate.wait("worker", worker.name, worker, stop) for worker in declared):
        running.run(stop, forever=True, board=board)


@cli.command(hidden=True)
def traffic(
    tally: Path,
    *,
    seconds: float | None = None,
    seed: int = 1,
    rate: float = 400,
    speed: float = 60,
    supervised: Supervised = False,
) -> None:
    """Send the traffic of the demo's shop to the log of the settings."""
    from headwater.demo.feed import feed
    from headwater.demo.traffic import Traffic

    settings = begin(supervised=supervised)
    shop = Traffic(seed=seed, seconds=seconds, rate=rate, speed=speed)
    feed(shop, settings.access, partitions=settings.partitions, tally=tally, stop=stop_on_signals())


@cli.command(hidden=True)
def batch(app: AppFile, out: Path, *, supervised: Supervised = False) -> None:
    """Write the rows of all views as JSON, computed as a batch over the whole log."""
    import msgspec

    from headwater.declare.app import App
    from headwater.pipeline.batch.batch import rows

    settings = begin(supervised=supervised)
    out.write_bytes(msgspec.json.encode(rows(App.load(str(app)), settings)))


def begin(*, supervised: bool, **overrides: Any) -> Settings:
    """Starts a long-running command: logging, and its settings."""
    if supervised:
        from headwater.node.processes import end_with_supervisor

        end_with_supervisor()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return load(**overrides)


add_status(cli)
add_commands(cli)
