"""The command line: demo, up, run, broker, view, graph, doctor; ``cli_log.py``, ``cli_view.py`` and ``cli_sink.py`` have those that look
after a log, views and sinks.

Commands import what they need when they run, so that ``--help`` is quick. An error of ours becomes one
line on standard error and the exit code of its kind; a traceback is a bug.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Never

import typer

from headwater.cli_capture import capture
from headwater.cli_log import add_commands
from headwater.cli_parts import AppFile, examples
from headwater.cli_sink import sink
from headwater.cli_view import view
from headwater.config import Settings, load
from headwater.decoders import from_json
from headwater.errors import HeadwaterError, MachineError, UsageError, one_line

__all__ = ["begin", "cli", "main", "stop_on_signals"]

INTERRUPTED = 130


def main() -> Never:
    """Runs the command line and leaves with its exit code."""
    try:
        cli(prog_name="headwater")
    except HeadwaterError as error:
        sys.exit(_complain(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _complain(error: HeadwaterError) -> int:
    sys.stderr.write(f"headwater: {one_line(error, None)}\n")
    return error.exit_code


cli = typer.Typer(
    name="headwater",
    help="Streams, tables and live views on durable logs.",
    epilog=examples("headwater demo", "headwater up app.py", "headwater view rows revenue --json"),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
cli.add_typer(sink, name="sink")
cli.add_typer(view, name="view")
cli.add_typer(capture, name="capture")

Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]


@cli.command(
    epilog=examples(
        "headwater demo", "headwater demo --seconds 60", "headwater demo --data ./shop --port 9000"
    )
)
def demo(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="End after so many seconds and check every number; otherwise until Ctrl-C."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Two runs with the same seed send the same events.")] = 1,
    rate: Annotated[float, typer.Option(min=1, max=20_000, help="Events a second, on average.")] = 400,
    speed: Annotated[
        float, typer.Option(min=1, max=600, help="How much faster than the wall clock the shop's time runs.")
    ] = 60,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the console; 0 takes a free one.  [default: 8080 if free]", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Keep everything in this folder; otherwise it is removed at the end.", show_default=False
        ),
    ] = None,
) -> None:
    """The web shop: embedded log, Spark, live pages and traffic, in one command."""
    from headwater.demo.run import Demo, Plan

    plan = Plan(seconds=seconds, seed=seed, rate=rate, speed=speed, port=port, data=data)
    raise typer.Exit(Demo(load(), plan, stop_on_signals()).run())


@cli.command(epilog=examples("headwater up app.py", "HEADWATER_LOG=kafka://kafka:9092 headwater up app.py"))
def up(app: AppFile) -> None:
    """Broker, Spark and console for an application, in one supervised group of processes."""
    from headwater import java
    from headwater.app import App
    from headwater.node import Node
    from headwater.supervisor import Interrupted

    settings = load()
    graph = App.load(str(app)).graph()
    java.require()
    stop = stop_on_signals()
    with contextlib.suppress(Interrupted), Node(settings, app, graph, stop=stop) as node:
        node.start_log()
        typer.echo(f"log      {node.settings.bootstrap}")
        node.start_captures()
        node.start_views()
        typer.echo(f"console  {node.url}")
        typer.echo(f"logs     {node.folder / 'logs'}")
        while not stop.wait(0.2):
            node.supervisor.check()


@cli.command(epilog=examples("headwater run app.py", "headwater run app.py --once"))
def run(
    app: AppFile,
    *,
    once: Annotated[bool, typer.Option("--once", help="Take what is in the log, then end.")] = False,
    ready: Annotated[
        Path | None, typer.Option(hidden=True, help="A file to create when every view runs.")
    ] = None,
    supervised: Supervised = False,
) -> None:
    """The views of an application on Spark, against the log of the settings."""
    from headwater import java
    from headwater.app import App
    from headwater.pipeline.runner import Runner

    settings = begin(supervised=supervised)
    declared = App.load(str(app))
    declared.graph()
    java.require()
    runner = Runner(declared, settings)
    if once:
        runner.once()
        return
    runner.start()  # until here a signal ends the process at once: nothing has been published yet
    stop = stop_on_signals()
    try:
        if ready is not None:
            ready.touch()
        while not stop.is_set() and not runner.wait(0.5):
            _end_without_driver()
    finally:
        runner.stop()


@cli.command(epilog=examples("headwater broker --data ./data --port 9092", "kcat -b 127.0.0.1:9092 -L"))
def broker(
    *,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the log.  [default: that of the settings]", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on.  [default: that of the settings]", show_default=False
        ),
    ] = None,
    flush: Annotated[
        str | None,
        typer.Option(
            help="When a write counts as done: commit (synced) or os.  [default: that of the settings]",
            show_default=False,
        ),
    ] = None,
    supervised: Supervised = False,
) -> None:
    """The embedded log alone, for any Kafka client."""
    from headwater.kafka.process import serve

    settings = begin(
        supervised=supervised, log=f"embedded:{data}" if data else None, broker_port=port, flush=flush
    )
    if settings.embedded is None:
        raise UsageError(
            "the settings name an Apache Kafka, so there is no broker to start",
            got=settings.log,
            hint="give --data",
        )
    serve(settings)


@cli.command(epilog=examples("headwater graph app.py", "headwater graph app.py --operators"))
def graph(
    app: AppFile,
    *,
    operators: Annotated[
        bool,
        typer.Option(
            "--operators", help="Also what each view keeps, and where; Spark plans it, which takes seconds."
        ),
    ] = False,
) -> None:
    """Streams, views and what feeds what, checked and drawn; nothing is run."""
    from headwater.app import App

    loaded = App.load(str(app))
    drawn = loaded.graph()
    if not operators:
        typer.echo(drawn.text())
        return
    from headwater.pipeline.steps import steps

    typer.echo(drawn.text(steps(loaded, drawn, load())))


@cli.command(epilog=examples("headwater doctor", "headwater doctor --prepare"))
def doctor(
    *,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="First fetch the jars, and keep Spark's classes for faster starts."),
    ] = False,
) -> None:
    """Whether this machine has what Headwater needs, and what to do about what it lacks."""
    from headwater.operate.doctor import report

    if prepare:
        from headwater.operate import classes
        from headwater.pipeline import compiled, jars

        jars.ensure(progress=typer.echo)
        compiled.ensure(progress=typer.echo)
        typer.echo(f"Spark's classes are in {classes.keep()}")
    raise typer.Exit(report())


@cli.command(hidden=True)
def console(info: str, *, supervised: Supervised = False) -> None:
    """View tables, HTTP and live pages; INFO is a JSON object that names the application and its views."""

    from headwater.node import serve_console
    from headwater.view import Info

    serve_console(begin(supervised=supervised), from_json(info, Info))


@cli.command(hidden=True)
def sinks(app: AppFile, *, supervised: Supervised = False) -> None:
    """All sinks of an application; one that cannot run says so in the log, and the others go on."""
    from headwater.app import App
    from headwater.sink.run import Sinks

    settings = begin(supervised=supervised)
    graph = App.load(str(app)).graph()
    Sinks(settings.access, graph, settings.data).run(stop_on_signals(), forever=True)


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
    """The shop's traffic, sent to the log of the settings."""
    from headwater.demo.feed import feed
    from headwater.demo.traffic import Traffic

    settings = begin(supervised=supervised)
    shop = Traffic(seed=seed, seconds=seconds, rate=rate, speed=speed)
    feed(shop, settings.access, partitions=settings.partitions, tally=tally, stop=stop_on_signals())


@cli.command(hidden=True)
def batch(app: AppFile, out: Path, *, supervised: Supervised = False) -> None:
    """The rows of all views as a batch over the whole log gives them, as JSON."""
    import msgspec

    from headwater.app import App
    from headwater.pipeline.batch import rows

    settings = begin(supervised=supervised)
    out.write_bytes(msgspec.json.encode(rows(App.load(str(app)), settings)))


def begin(*, supervised: bool, **overrides: Any) -> Settings:
    """What every long-running command does first."""
    if supervised:
        from headwater.supervisor import end_with_supervisor

        end_with_supervisor()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return load(**overrides)


def _end_without_driver() -> None:
    """Ends this process at once when Spark's JVM is gone: every call to it would fail or wait for ever."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is not None and gateway.proc.poll() is not None:
        code = _complain(
            MachineError("the Spark driver's JVM has ended", got=f"exit code {gateway.proc.returncode}")
        )
        os._exit(code)


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, instead of ending the process in the middle of something."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


add_commands(cli)
