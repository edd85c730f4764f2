"""The commands that look after captures: add, run, status, snapshot, audit, pause, resume, remove."""

import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from headwater.cli_parts import AppFile, Bootstrap, examples
from headwater.config import Settings, load
from headwater.errors import UsageError

__all__ = ["capture"]

capture = typer.Typer(
    help="Captures: databases into change topics.",
    epilog=examples(
        "headwater capture add shop app.py", "headwater capture run shop app.py", "headwater capture status"
    ),
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help="The capture.", show_default=False)]


@capture.command("add", epilog=examples("headwater capture add shop app.py"))
def capture_add(name: Name, app: AppFile) -> None:
    """Check a database and prepare it for a capture: settings, rights, publication and slot, or triggers. Also brings back one that was removed.

    The first run does the same; doing it before shows what is missing. A second time nothing is changed.
    """
    from headwater.capture.standing import come_back, is_begun

    settings = load()
    database = _declared(app, name)
    for line in database.prepare(name, begun=is_begun(settings.access, name, database.anew())):
        typer.echo(line)
    if come_back(settings.access, name):
        typer.echo(f"capture {name} is back: its next start, or the one that waits, takes a new snapshot")
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
    """One capture in this process, against the log of the settings, until Ctrl-C; `headwater up` runs those of an application."""
    from headwater.capture.feed import Feed
    from headwater.cli import begin, stop_on_signals
    from headwater.cli_progress import show

    settings = begin(supervised=supervised)
    database = _declared(app, name)
    folder = settings.data / "captures" / name
    folder.mkdir(parents=True, exist_ok=True)
    source = database.open(name, folder)
    partitions = database.partitions or settings.partitions
    # Under `headwater up` one that was removed waits: an end would be taken for a failure, and started again.
    feed = Feed(
        name,
        source,
        settings.access,
        partitions=partitions,
        outbox=database.routed(name),
        folder=folder,
        stays=supervised,
    )
    stop = stop_on_signals()
    over = threading.Event()
    shown = threading.Thread(target=show, args=(source, over), daemon=True)
    shown.start()
    try:
        feed.run(stop)
    finally:
        over.set()
        shown.join()


@capture.command("status", epilog=examples("headwater capture status", "headwater capture status shop"))
def capture_status(
    name: Annotated[
        str | None, typer.Argument(help="The capture; all without one.", show_default=False)
    ] = None,
    *,
    log: Bootstrap = None,
) -> None:
    """Where captures stand, as the log has it: records, the last commit, how far it was behind the database."""
    from headwater.capture.ledger import last_state
    from headwater.clock import SystemClock

    settings = _settings(log)
    now = SystemClock().now_ms()
    for each in _known(settings, name):
        state = last_state(settings.access, each)
        if state is not None and state.removed:
            typer.echo(f"{each:<24} removed")
            continue
        if state is None or state.position is None:
            typer.echo(f"{each:<24} nothing committed yet")
            continue
        ago = (now - state.at_ms) / 1000
        typer.echo(
            f"{each:<24} {'paused   ' if state.paused else ''}{state.rows:>14,} records   committed {ago:,.1f} s ago"
            f"   lag {state.lag_ms / 1000:,.3f} s, {state.lag_bytes:,} bytes   retained {state.retained_bytes:,} bytes"
            f"   {state.position}"
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
        str, typer.Option(help="This table alone, while the capture runs.", show_default=False)
    ] = "",
    where: Annotated[
        str,
        typer.Option(
            help="Only rows with this condition: comparisons of columns with values.", show_default=False
        ),
    ] = "",
    incremental: Annotated[
        bool,
        typer.Option("--incremental", help="Rows again in chunks beside the stream, without a truncate."),
    ] = False,
) -> None:
    """Begin a capture anew: its next start empties the tables in the topics by a truncate and reads all rows again. One that runs ends.

    With --table, that table alone begins anew, and the capture goes on; with --incremental its rows are only read again.
    """
    from headwater.capture.condition import Condition
    from headwater.capture.control import Command, send
    from headwater.capture.feed import restart

    settings = load()
    database = _declared(app, name)
    if not table:
        if where or incremental:
            raise UsageError("an incremental snapshot is of one table", hint="name it by --table")
        restart(settings.access, name, database.anew())
        typer.echo(f"capture {name} takes a new snapshot with its next start")
        return
    if where and not incremental:
        raise UsageError("a table begins anew as a whole", hint="--where goes with --incremental")
    _one_by_one(database)
    if where:
        Condition(where)
    command = Command("snapshot", table=table, where=where, incremental=incremental)
    send(settings.access, name, command)
    typer.echo(f"capture {name} is asked for table {table}; {name}.notifications tells of {command.id}")


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
    table: Annotated[str, typer.Option(help="This table alone.", show_default=False)] = "",
    repair: Annotated[bool, typer.Option("--repair", help="Read the ranges that differ again.")] = False,
) -> None:
    """Compare tables with their topics by ranges of the key, as of one place in the database's log. The capture must run; ends with 1 if they differ."""
    settings = load()
    database = _declared(app, name)
    _one_by_one(database)
    wrong = False
    for each in [table] if table else _tables(settings, name, database):
        report = database.audit(name, settings.access, each)
        found = report.differences
        same = "no difference" if not found else f"{len(found)} ranges differ"
        typer.echo(
            f"{report.table:<32} {report.rows:>12,} rows   {report.ranges:>6,} ranges   at {report.at}   {same}"
        )
        for one in found:
            typer.echo(
                f"  {_range(one.within)}: {one.table_rows} rows {one.table_sum}, the topic has {one.topic_rows} rows {one.topic_sum}"
            )
        if found and repair:
            _repair(settings, name, report)
        wrong = wrong or bool(found and not repair)
    if wrong:
        raise typer.Exit(1)


@capture.command("pause", epilog=examples("headwater capture pause shop"))
def capture_pause(name: Name, *, log: Bootstrap = None) -> None:
    """Stop reading the database until `resume`, through restarts too; the database keeps its log meanwhile."""
    _ask(name, log, "pause")
    typer.echo(f"capture {name} is asked to pause; its database keeps its log until it is resumed")


@capture.command("resume", epilog=examples("headwater capture resume shop"))
def capture_resume(name: Name, *, log: Bootstrap = None) -> None:
    """Go on behind a pause."""
    _ask(name, log, "resume")
    typer.echo(f"capture {name} is asked to resume")


@capture.command("remove", epilog=examples("headwater capture remove shop app.py"))
def capture_remove(name: Name, app: AppFile) -> None:
    """Take a capture's slot and publication (or triggers) out of the database; its topics stay.

    One that runs ends, and stays ended until `headwater capture add`; under `headwater up` it waits for that.
    """
    from headwater.capture.standing import leave

    settings = load()
    database = _declared(app, name)
    leave(settings.access, name, database.anew())
    database.remove(name)
    typer.echo(
        f"capture {name} has left the database; its topics stay; `headwater capture add {name} {app}` brings it back"
    )


def _ask(name: str, log: str | None, do: Literal["pause", "resume"]) -> None:
    from headwater.capture.control import Command, send

    settings = _settings(log)
    _known(settings, name)
    send(settings.access, name, Command(do))


def _known(settings: Settings, name: str | None) -> list[str]:
    """The captures that the log has; the one that is meant must be among them."""
    from headwater.client import Client

    client = Client(settings.access)
    found = [topic.removesuffix(".capture") for topic in client.partitions() if topic.endswith(".capture")]
    client.close()
    if name is not None and name not in found:
        raise UsageError(
            f"no capture {name!r} in this log", hint=f"there is {', '.join(sorted(found)) or 'none'}"
        )
    return sorted(found) if name is None else [name]


def _one_by_one(database: Any) -> None:
    if not hasattr(database, "audit"):
        raise UsageError(
            "snapshots and audits of single tables are of PostgreSQL and MariaDB", got=database.kind
        )


def _tables(settings: Settings, name: str, database: Any) -> list[str]:
    """The tables with a topic of their own."""
    from headwater.capture.ledger import last_state

    _known(settings, name)
    state = last_state(settings.access, name)
    if state is None or state.position is None:
        return []
    outbox = getattr(database, "outbox", None)
    return sorted(set(msgspec.json.decode(state.position)["tables"]) - {outbox, f"public.{outbox}"})


def _range(within: Any) -> str:
    if within.ghosts:
        return f"keys that the table has not, {within.ghosts[0]} to {within.ghosts[-1]}"
    after = "the first" if within.after is None else f"behind ({', '.join(within.after)})"
    return f"{after} to ({', '.join(within.upto)})"


def _repair(settings: Settings, name: str, report: Any) -> None:
    """Asks for the ranges that differ and waits until they are in the topic."""
    from headwater.capture.control import Command, finished, send

    command = Command("snapshot", table=report.table, ranges=tuple(one.within for one in report.differences))
    send(settings.access, name, command)
    typer.echo(f"  {finished(settings.access, name, command.id)}")


def _settings(log: str | None) -> Settings:
    return load(log=log if log is None or "://" in log else f"kafka://{log}")


def _declared(app: Path, name: str) -> Any:
    from headwater.app import App

    found = App.load(str(app)).graph().captures
    if name not in found:
        raise UsageError(f"{app} declares no capture {name!r}", hint=f"there is {', '.join(found) or 'none'}")
    return found[name].database
