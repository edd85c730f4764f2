"""The commands for captures: add, run, status, snapshot, audit, pause, resume, remove."""

import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from headwater.cli.options import AppFile, LogAddress, examples, settings_for
from headwater.config import Settings, load
from headwater.errors import UsageError

__all__ = ["capture"]

capture = typer.Typer(
    help="Run and control captures, which publish the changes of databases as topics.",
    epilog=examples(
        "headwater capture add shop app.py", "headwater capture run shop app.py", "headwater capture status"
    ),
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help="The capture.", show_default=False)]


@capture.command("add", epilog=examples("headwater capture add shop app.py"))
def capture_add(name: Name, app: AppFile) -> None:
    """Prepare a database for a capture, or bring back a capture that was removed.

    Checks settings and rights, and creates publication and slot, or triggers. The first run does the same;
    this command shows beforehand what is missing. Running it again changes nothing.
    """
    from headwater.capture.loop.lifecycle import add, is_begun

    settings = load()
    database = _declared(app, name)
    for line in database.prepare(name, begun=is_begun(settings.access, name, database.restart_position())):
        typer.echo(line)
    if add(settings.access, name):
        typer.echo(f"capture {name} is back: it takes a new snapshot when it starts, or now if it waits")
    else:
        typer.echo(
            f"capture {name} is ready: `headwater capture run {name} {app}` or `headwater up {app}` runs it"
        )


@capture.command("run", epilog=examples("headwater capture run shop app.py"))
def capture_run(
    name: Name,
    app: AppFile,
    *,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run one capture in this process until Ctrl-C; `headwater up` runs all captures of an application."""
    from headwater.capture.loop.condition import say
    from headwater.capture.loop.feed import Feed
    from headwater.cli.main import begin
    from headwater.cli.snapshot_bar import show
    from headwater.health.board import BoardFile
    from headwater.node.gate import Gate
    from headwater.node.signals import stop_on_signals

    settings = begin(supervised=supervised)
    database = _declared(app, name)
    folder = settings.data / "captures" / name
    folder.mkdir(parents=True, exist_ok=True)
    source = database.open(name, folder)
    partitions = database.partitions or settings.partitions
    # Under `headwater up` a removed capture waits: if it ended, it would be restarted as a failure.
    feed = Feed(
        name,
        source,
        settings.access,
        partitions=partitions,
        outbox=database.outbox_router(name),
        folder=folder,
        stays=supervised,
    )
    stop = stop_on_signals()
    over = threading.Event()
    board = BoardFile(settings.data, f"capture-{name}")
    threads = [
        threading.Thread(target=show, args=(source, over), daemon=True),
        threading.Thread(target=say, args=(feed, board, over), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        if not supervised or Gate(settings.data).wait("capture", name, database, stop):
            feed.run(stop)
    finally:
        over.set()
        for thread in threads:
            thread.join()


@capture.command("status", epilog=examples("headwater capture status", "headwater capture status shop"))
def capture_status(
    name: Annotated[
        str | None, typer.Argument(help="The capture.  [default: all]", show_default=False)
    ] = None,
    *,
    log: LogAddress = None,
) -> None:
    """Show the position, the records, the last commit and the lag of captures."""
    from headwater.capture.state import last_state
    from headwater.clock import SystemClock

    settings = settings_for(log)
    now = SystemClock().now_ms()
    for capture_name in _captures(settings, name):
        state = last_state(settings.access, capture_name)
        if state is not None and state.removed:
            typer.echo(f"{capture_name:<24} removed")
            continue
        if state is None or state.position is None:
            typer.echo(f"{capture_name:<24} nothing committed yet")
            continue
        ago = (now - state.at_ms) / 1000
        paused = "paused   " if state.paused else ""
        typer.echo(
            f"{capture_name:<24} {paused}{state.rows:>14,} records   committed {ago:,.1f} s ago"
            f"   lag {state.lag_ms / 1000:,.3f} s, {state.lag_bytes:,} bytes"
            f"   retained {state.retained_bytes:,} bytes   {state.position}"
        )
        for table, why in (
            msgspec.json.decode(state.position).get("stopped", {}).items()
            if state.position[:1] == "{"
            else ()
        ):
            typer.echo(f"{'':<24} table {table} is stopped: {why}")


@capture.command(
    "snapshot",
    epilog=examples(
        "headwater capture snapshot shop app.py",
        "headwater capture snapshot shop app.py --table orders --where 'day >= current_date' --incremental",
    ),
)
def capture_snapshot(
    name: Name,
    app: AppFile,
    *,
    table: Annotated[
        str, typer.Option(help="Only this table, while the capture runs.", show_default=False)
    ] = "",
    where: Annotated[
        str,
        typer.Option(
            help="Read only rows with this condition, which compares columns with values.",
            show_default=False,
        ),
    ] = "",
    incremental: Annotated[
        bool,
        typer.Option(
            "--incremental", help="Read the rows again in chunks, without a truncate, while changes continue."
        ),
    ] = False,
) -> None:
    """Take a new snapshot when the capture starts next: a truncate in each topic, then all rows again.

    A capture that is running ends. With --table, only that table starts again, and the capture continues;
    with --incremental, its rows are only read again.
    """
    from headwater.capture.loop.control import send
    from headwater.capture.loop.lifecycle import restart
    from headwater.capture.messages import Command
    from headwater.capture.reread.condition import Condition

    settings = load()
    database = _declared(app, name)
    if not table:
        if where or incremental:
            raise UsageError("--where and --incremental need one table", hint="name it with --table")
        restart(settings.access, name, database.restart_position())
        typer.echo(f"capture {name} takes a new snapshot when it starts next")
        return
    if where and not incremental:
        raise UsageError("a new snapshot reads the whole table", hint="use --where with --incremental")
    _check_single_tables(database)
    if where:
        Condition(where)
    command = Command("snapshot", table=table, where=where, incremental=incremental)
    send(settings.access, name, command)
    typer.echo(f"capture {name} will read table {table}; {name}.notifications reports on {command.id}")


@capture.command(
    "audit",
    epilog=examples(
        "headwater capture audit shop app.py", "headwater capture audit shop app.py --table orders --repair"
    ),
)
def capture_audit(
    name: Name,
    app: AppFile,
    *,
    table: Annotated[str, typer.Option(help="Compare only this table.", show_default=False)] = "",
    repair: Annotated[bool, typer.Option("--repair", help="Read ranges that differ again.")] = False,
) -> None:
    """Compare tables with their topics by ranges of the key; exit with 1 if they differ.

    The capture must be running. Both sides are compared as of one position in the database's log.
    """
    settings = load()
    database = _declared(app, name)
    _check_single_tables(database)
    differs = False
    for table_name in [table] if table else _tables(settings, name, database):
        report = database.audit(name, settings.access, table_name)
        ranges = report.differences
        outcome = f"{len(ranges)} ranges differ" if ranges else "no difference"
        typer.echo(
            f"{report.table:<32} {report.rows:>12,} rows   {report.ranges:>6,} ranges"
            f"   at {report.at}   {outcome}"
        )
        for one in ranges:
            typer.echo(
                f"  {_range(one.within)}: {one.table_rows} rows {one.table_sum},"
                f" the topic has {one.topic_rows} rows {one.topic_sum}"
            )
        if ranges and repair:
            _repair(settings, name, report)
        differs = differs or bool(ranges and not repair)
    if differs:
        raise typer.Exit(1)


@capture.command("pause", epilog=examples("headwater capture pause shop"))
def capture_pause(name: Name, *, log: LogAddress = None) -> None:
    """Pause a capture until it is resumed, also over restarts; the database keeps its log for it."""
    _send(name, log, "pause")
    typer.echo(f"capture {name} will pause; its database keeps its log until the capture is resumed")


@capture.command("resume", epilog=examples("headwater capture resume shop"))
def capture_resume(name: Name, *, log: LogAddress = None) -> None:
    """Resume a paused capture at its position."""
    _send(name, log, "resume")
    typer.echo(f"capture {name} will resume")


@capture.command("remove", epilog=examples("headwater capture remove shop app.py"))
def capture_remove(name: Name, app: AppFile) -> None:
    """Remove a capture's slot and publication, or triggers, from the database; its topics remain.

    A capture that is running ends, and does not start again until `headwater capture add`; under `headwater
    up` it waits for that.
    """
    from headwater.capture.loop.lifecycle import remove

    settings = load()
    database = _declared(app, name)
    remove(settings.access, name, database.restart_position())
    database.remove(name)
    typer.echo(
        f"capture {name} is removed from the database; its topics remain;"
        f" `headwater capture add {name} {app}` brings it back"
    )


def _send(name: str, log: str | None, do: Literal["pause", "resume"]) -> None:
    from headwater.capture.loop.control import send
    from headwater.capture.messages import Command

    settings = settings_for(log)
    _captures(settings, name)
    send(settings.access, name, Command(do))


def _captures(settings: Settings, name: str | None) -> list[str]:
    """The captures in the log, or the named one. UsageError if the log does not have it."""
    from headwater.client.client import Client

    client = Client(settings.access)
    names = [topic.removesuffix(".capture") for topic in client.partitions() if topic.endswith(".capture")]
    client.close()
    if name is not None and name not in names:
        raise UsageError(
            f"there is no capture {name!r} in this log",
            hint=f"captures are: {', '.join(sorted(names)) or 'none yet'}",
        )
    return sorted(names) if name is None else [name]


def _check_single_tables(database: Any) -> None:
    if not hasattr(database, "audit"):
        raise UsageError(
            "only PostgreSQL and MariaDB have snapshots and audits of single tables", got=database.kind
        )


def _tables(settings: Settings, name: str, database: Any) -> list[str]:
    """The tables with a topic of their own."""
    from headwater.capture.state import last_state

    _captures(settings, name)
    state = last_state(settings.access, name)
    if state is None or state.position is None:
        return []
    outbox = getattr(database, "outbox", None)
    return sorted(set(msgspec.json.decode(state.position)["tables"]) - {outbox, f"public.{outbox}"})


def _range(within: Any) -> str:
    if within.ghosts:
        return f"keys that are not in the table, {within.ghosts[0]} to {within.ghosts[-1]}"
    first = "the first" if within.after is None else f"after ({', '.join(within.after)})"
    return f"{first} to ({', '.join(within.upto)})"


def _repair(settings: Settings, name: str, report: Any) -> None:
    """Has the ranges that differ read again, and waits until they are in the topic."""
    from headwater.capture.loop.control import finished, send
    from headwater.capture.messages import Command

    command = Command("snapshot", table=report.table, ranges=tuple(one.within for one in report.differences))
    send(settings.access, name, command)
    typer.echo(f"  {finished(settings.access, name, command.id)}")


def _declared(app: Path, name: str) -> Any:
    from headwater.declare.app import App

    captures = App.load(str(app)).graph().captures
    if name not in captures:
        raise UsageError(
            f"{app} declares no capture {name!r}", hint=f"captures are: {', '.join(captures) or 'none'}"
        )
    return captures[name].database
