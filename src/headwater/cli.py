"""The command line: demo, up, run, broker, view, graph, doctor; ``cli_log.py`` adds those that look after a log.

Commands import what they need when they run, so that ``--help`` is quick. An error of ours becomes one
line on standard error and the exit code of its kind; a traceback is a bug.
"""

import contextlib
import difflib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Never

import typer

from headwater.cli_log import Bootstrap, add_commands
from headwater.config import Settings, load
from headwater.errors import HeadwaterError, MachineError, UsageError

__all__ = ["cli", "main"]

DIFFERENT = 1
"""A view is not what a batch says."""
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
    sys.stderr.write(f"headwater: {' '.join(str(error).split())}\n")
    return error.exit_code


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"  [cyan]{line}[/cyan]" for line in lines)


cli = typer.Typer(
    name="headwater",
    help="Streams, tables and live views on durable logs.",
    epilog=_examples("headwater demo", "headwater up app.py", "headwater view rows revenue --json"),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
view = typer.Typer(
    help="Views: their rows, what they keep, and making them anew.",
    epilog=_examples("headwater view list", "headwater view rows revenue --where country=DE --limit 5"),
    no_args_is_help=True,
)
cli.add_typer(view, name="view")

AppFile = Annotated[Path, typer.Argument(metavar="APP.PY", help="The application file.", show_default=False)]
Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]


@cli.command(
    epilog=_examples(
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
    raise typer.Exit(Demo(load(), plan, _stop_on_signals()).run())


@cli.command(epilog=_examples("headwater up app.py", "HEADWATER_LOG=kafka://kafka:9092 headwater up app.py"))
def up(app: AppFile) -> None:
    """Broker, Spark and console for an application, in one supervised group of processes."""
    from headwater import java
    from headwater.app import App
    from headwater.node import Node
    from headwater.supervisor import Interrupted

    settings = load()
    graph = App.load(str(app)).graph()
    java.require()
    stop = _stop_on_signals()
    with contextlib.suppress(Interrupted), Node(settings, app, graph, stop=stop) as node:
        node.start_log()
        typer.echo(f"log      {node.settings.bootstrap}")
        node.start_views()
        typer.echo(f"console  {node.url}")
        typer.echo(f"logs     {node.folder / 'logs'}")
        while not stop.wait(0.2):
            node.supervisor.check()


@cli.command(epilog=_examples("headwater run app.py", "headwater run app.py --once"))
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

    settings = _begin(supervised=supervised)
    declared = App.load(str(app))
    declared.graph()
    java.require()
    runner = Runner(declared, settings)
    if once:
        runner.once()
        return
    runner.start()  # until here a signal ends the process at once: nothing has been published yet
    stop = _stop_on_signals()
    try:
        if ready is not None:
            ready.touch()
        while not stop.is_set() and not runner.wait(0.5):
            _end_without_driver()
    finally:
        runner.stop()


@cli.command(epilog=_examples("headwater broker --data ./data --port 9092", "kcat -b 127.0.0.1:9092 -L"))
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
    from headwater.kafka.server import serve

    settings = _begin(
        supervised=supervised, log=f"embedded:{data}" if data else None, broker_port=port, flush=flush
    )
    if settings.embedded is None:
        raise UsageError(
            "the settings name an Apache Kafka, so there is no broker to start",
            got=settings.log,
            hint="give --data",
        )
    serve(settings)


@cli.command(epilog=_examples("headwater graph app.py"))
def graph(app: AppFile) -> None:
    """Streams, views and what feeds what, checked and drawn; nothing is started."""
    from headwater.app import App

    typer.echo(App.load(str(app)).graph().text())


@cli.command(epilog=_examples("headwater doctor", "HEADWATER_CONSOLE_PORT=9000 headwater doctor"))
def doctor() -> None:
    """Whether this machine has what Headwater needs, and what to do about what it lacks."""
    from headwater.operate.doctor import report

    raise typer.Exit(report())


@view.command("list", epilog=_examples("headwater view list"))
def view_list() -> None:
    """The views that have a table, with the number of their rows and the time of their last change."""
    from datetime import UTC, datetime

    from headwater.view.table import ViewTable

    settings = load()
    for path in sorted(settings.views.glob("*.db")):
        extent = ViewTable(path).extent()
        changed = datetime.fromtimestamp((extent.changed_at_ms or 0) / 1000, UTC).isoformat(" ", "seconds")
        typer.echo(f"{path.stem:<40} {extent.rows:>10,} rows   {changed if extent.rows else '-'}")


@view.command("reset", epilog=_examples("headwater view reset revenue"))
def view_reset(name: Annotated[str, typer.Argument(help="The view.", show_default=False)]) -> None:
    """Throw a view's results away; the next start makes them anew from the log."""
    from headwater.operate.reset import reset

    reset(load(), name)
    typer.echo(f"view {name} is gone; the next start makes it anew from its streams")


@view.command("scale", epilog=_examples("headwater view scale revenue --shards 8"))
def view_scale(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    *,
    shards: Annotated[int, typer.Option(help="How many it is to have.", show_default=False)],
) -> None:
    """Divide the state of a view that stands among another number of shards; its rows stay as they are."""
    from headwater.operate.scale import scale

    had = scale(load(), name, shards)
    typer.echo(f"view {name} had {had} shards and has {shards}; it goes on with the next start")


@view.command(
    "state",
    epilog=_examples("headwater view state revenue", "headwater view state revenue DE --at 41"),
)
def view_state(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    key: Annotated[
        str | None,
        typer.Argument(
            help="A key, as the view's topic has it; without one, how much there is.", show_default=False
        ),
    ] = None,
    *,
    at: Annotated[
        int | None,
        typer.Option(metavar="BATCH", help="After this batch.  [default: the last]", show_default=False),
    ] = None,
    operator: Annotated[str, typer.Option(help="The operator whose state it is.")] = "publish",
) -> None:
    """What a view keeps from batch to batch: the size of it, or the value of one key."""
    from headwater.operate import state

    settings = load()
    found = state.at_batch(name, state.results(settings, name), at)
    if key is None:
        typer.echo(f"batch {found.batch} of run {found.run}")
        _print_table([_shown_size(each) for each in state.sizes(found)])
        return
    entry = state.entry(settings.data / "checkpoints" / name, name, found, operator, key.encode())
    typer.echo(state.shown(entry.value))
    when = f"batch {entry.changed}" + ("" if entry.exactly else " or before")
    typer.echo(f"after batch {entry.batch}, in shard {entry.shard} of {operator}; written in {when}")


def _shown_size(stored: Any) -> dict[str, str]:
    return {
        "operator": stored.operator,
        "shards": str(stored.shards),
        "entries": f"{stored.entries:,}",
        "bytes": f"{stored.state_bytes:,}",
        "files": str(stored.files),
        "bytes of files": f"{stored.file_bytes:,}",
        "largest shard": f"{stored.largest} ({stored.largest_bytes:,} bytes)",
    }


@view.command(
    "rebuild",
    epilog=_examples(
        "headwater view rebuild revenue shop.py", "headwater view rebuild revenue shop.py --back"
    ),
)
def view_rebuild(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    app: Annotated[str, typer.Argument(help="The application file.", show_default=False)],
    *,
    back: Annotated[bool, typer.Option("--back", help="Go back to the run before the last rebuild.")] = False,
) -> None:
    """Make a view anew from the log beside the old one, then swap: readers see neither a gap nor a step back."""
    from headwater.app import App
    from headwater.operate.rebuild import Rebuild

    rebuild = Rebuild(App.load(app), load(), name)
    swapped = (rebuild.back if back else rebuild.run)(lambda text: typer.echo(f"{name}: {text}", err=True))
    typer.echo(f"view {name} is run {swapped.run} now; {swapped.changed:,} rows differed")


@view.command(
    "check",
    epilog=_examples(
        "headwater view check revenue shop.py",
        "headwater view check revenue shop.py --log kafka://kafka:9092",
    ),
)
def view_check(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    app: AppFile,
    *,
    log: Bootstrap = None,
) -> None:
    """Compare a view with a batch over the same records, row by row; the pipeline may run meanwhile."""
    from headwater import java
    from headwater.app import App
    from headwater.operate.check import check

    declared = App.load(str(app))
    java.require()
    found = check(declared, _settings_with(log), name)
    typer.echo(str(found))
    if found.first is not None:
        raise typer.Exit(DIFFERENT)


def _settings_with(log: str | None) -> Settings:
    """The settings, for another log than theirs if one is named: an address alone is reached in the same way."""
    import msgspec

    if log is None or "://" in log:
        return load(log=log)
    settings = load()
    if settings.embedded is None:
        return load(log=f"{settings.log.partition('://')[0]}://{log}")
    host, _, port = log.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError("--log is wrong", got=repr(log), expected="HOST:PORT")
    return msgspec.structs.replace(settings, host=host, broker_port=int(port))


@view.command(
    "rows",
    epilog=_examples(
        "headwater view rows revenue --json",
        "headwater view rows revenue --where country=DE --order -revenue --limit 10",
    ),
)
def view_rows(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Only such rows; may be repeated. COLUMN.lt, .gte and so on compare.",
            show_default=False,
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Sort by a column; -COLUMN puts the greatest first.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many rows.", show_default=False)
    ] = None,
) -> None:
    """The rows of one view."""
    import msgspec

    from headwater.view.query import parse
    from headwater.view.table import ViewTable

    path = _table(load(), name)
    query = parse([*map(_condition, where or ()), *([("order", order)] if order else ())])
    rows = [row.columns() for row in ViewTable(path).rows(msgspec.structs.replace(query, limit=limit)).rows]
    if as_json:
        for row in rows:
            typer.echo(msgspec.json.encode(row))
    else:
        _print_table(rows)


def _table(settings: Settings, name: str) -> Path:
    known = sorted(path.stem for path in settings.views.glob("*.db"))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"views are: {', '.join(known) or 'none yet'}"
        raise UsageError(f"there is no view {name!r} in {settings.views}", hint=hint)
    return settings.views / f"{name}.db"


def _condition(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise UsageError("--where is wrong", got=repr(text), expected="COLUMN=VALUE")
    return column, value


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in rows[0] if rows else ():
        table.add_column(column)
    for row in rows:
        table.add_row(
            *(str(value["start"] if column == "window" else value) for column, value in row.items())
        )
    Console().print(table)


@cli.command(hidden=True)
def console(info: str, *, supervised: Supervised = False) -> None:
    """View tables, HTTP and live pages; INFO is a JSON object that names the application and its views."""
    import msgspec

    from headwater.node import serve_console
    from headwater.view import Info

    serve_console(_begin(supervised=supervised), msgspec.json.decode(info, type=Info))


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

    settings = _begin(supervised=supervised)
    shop = Traffic(seed=seed, seconds=seconds, rate=rate, speed=speed)
    feed(shop, settings.access, partitions=settings.partitions, tally=tally, stop=_stop_on_signals())


@cli.command(hidden=True)
def batch(app: AppFile, out: Path, *, supervised: Supervised = False) -> None:
    """The rows of all views as a batch over the whole log gives them, as JSON."""
    import msgspec

    from headwater.app import App
    from headwater.pipeline.batch import rows

    settings = _begin(supervised=supervised)
    out.write_bytes(msgspec.json.encode(rows(App.load(str(app)), settings)))


def _begin(*, supervised: bool, **overrides: Any) -> Settings:
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


def _stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, instead of ending the process in the middle of something."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


add_commands(cli)
