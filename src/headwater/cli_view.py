"""The commands that look after views: list, status, rows, reset, scale, state, save, fetch, rebuild, check."""

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli_parts import AppFile, Bootstrap, examples
from headwater.config import Settings, load
from headwater.errors import UsageError

__all__ = ["view"]

DIFFERENT = 1
"""A view is not what a batch says."""

AcceptLoss = Annotated[
    bool,
    typer.Option("--accept-loss", help="Even if the log no longer holds all records that the view has read."),
]

view = typer.Typer(
    help="Views: their rows, what they keep, and making them anew.",
    epilog=examples("headwater view list", "headwater view rows revenue --where country=DE --limit 5"),
    no_args_is_help=True,
)


@view.command("list", epilog=examples("headwater view list"))
def view_list() -> None:
    """The views that have a table, with the number of their rows and the time of their last change."""
    from datetime import UTC, datetime

    from headwater.view.table import ViewTable

    settings = load()
    for path in sorted(settings.views.glob("*.db")):
        extent = ViewTable(path).extent()
        changed = datetime.fromtimestamp((extent.changed_at_ms or 0) / 1000, UTC).isoformat(" ", "seconds")
        typer.echo(f"{path.stem:<40} {extent.rows:>10,} rows   {changed if extent.rows else '-'}")


@view.command("status", epilog=examples("headwater view status shop.py"))
def view_status(app: AppFile) -> None:
    """Who follows the rows of each view, how far behind they are, and which views wait for them."""
    from headwater.app import App
    from headwater.client import Client
    from headwater.pace import Pace

    settings = load()
    graph, client = App.load(str(app)).graph(), Client(settings.access)
    typer.echo(f"{'view':<32} {'followed by':<40} {'behind':>10}  pace")
    for name, each in graph.views.items():
        pace = Pace(client, graph, name, settings.pace_records)
        slow = pace.too_far() if each.pace else None
        for follower in pace.trailing():
            said = "waits" if follower.name == (slow and slow.name) else each.pace or "-"
            typer.echo(f"{name:<32} {follower.name:<40} {follower.records:>10,}  {said}")
    client.close()


@view.command("reset", epilog=examples("headwater view reset revenue"))
def view_reset(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    *,
    accept_loss: AcceptLoss = False,
) -> None:
    """Throw a view's results away; the next start makes them anew from the log."""
    from headwater.operate.reset import reset

    reset(load(), name, accept_loss=accept_loss)
    typer.echo(f"view {name} is gone; the next start makes it anew from its streams")


@view.command("scale", epilog=examples("headwater view scale revenue --shards 8"))
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
    epilog=examples("headwater view state revenue", "headwater view state revenue DE --at 41"),
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


@view.command("save", epilog=examples("headwater view save revenue s3://bucket/state"))
def view_save(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    url: Annotated[
        str, typer.Argument(help="A folder, or a URL like s3://bucket/folder.", show_default=False)
    ],
) -> None:
    """Put the checkpoint and state of a view that stands where another machine can fetch them."""
    from headwater.operate.saved import save

    saved = save(load(), name, url)
    typer.echo(f"view {name}: batch {saved.batch} is saved, {saved.files} files, {saved.size_bytes:,} bytes")


@view.command("fetch", epilog=examples("headwater view fetch revenue s3://bucket/state"))
def view_fetch(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    url: Annotated[str, typer.Argument(help="Where it was saved.", show_default=False)],
) -> None:
    """Bring the checkpoint and state of a view to this machine; the next start goes on from them."""
    from headwater.operate.saved import fetch

    saved = fetch(load(), name, url)
    typer.echo(f"view {name}: batch {saved.batch} is here, {saved.files} files, {saved.size_bytes:,} bytes")


@view.command(
    "rebuild",
    epilog=examples(
        "headwater view rebuild revenue shop.py", "headwater view rebuild revenue shop.py --back"
    ),
)
def view_rebuild(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    app: Annotated[str, typer.Argument(help="The application file.", show_default=False)],
    *,
    back: Annotated[bool, typer.Option("--back", help="Go back to the run before the last rebuild.")] = False,
    accept_loss: AcceptLoss = False,
) -> None:
    """Make a view anew from the log beside the old one, then swap: readers see neither a gap nor a step back."""
    from headwater.app import App
    from headwater.operate.rebuild import Rebuild

    rebuild = Rebuild(App.load(app), load(), name)

    def say(text: str) -> None:
        typer.echo(f"{name}: {text}", err=True)

    swapped = rebuild.back(say) if back else rebuild.run(say, accept_loss=accept_loss)
    typer.echo(f"view {name} is run {swapped.run} now; {swapped.changed:,} rows differed")


@view.command(
    "check",
    epilog=examples(
        "headwater view check revenue shop.py",
        "headwater view check revenue shop.py --plain",
        "headwater view check revenue shop.py --log kafka://kafka:9092",
    ),
)
def view_check(
    name: Annotated[str, typer.Argument(help="The view.", show_default=False)],
    app: AppFile,
    *,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Compute the batch by Spark's plain operators, none of Headwater's."),
    ] = False,
    log: Bootstrap = None,
) -> None:
    """Compare a view with a batch over the same records, row by row; the pipeline may run meanwhile."""
    from headwater import java
    from headwater.app import App
    from headwater.operate.check import check

    declared = App.load(str(app))
    java.require()
    found = check(declared, _settings_with(log), name, plain=plain)
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
    epilog=examples(
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
