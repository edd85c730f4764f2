"""The commands for views: list, status, rows, reset, scale, state, backup, restore, rebuild, check."""

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.options import AppFile, LogAddress, examples, print_table, settings_for
from headwater.config import Settings, load
from headwater.errors import UsageError

__all__ = ["view"]

DIFFERENT = 1
"""The exit code if a view differs from a batch."""

AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="Do it even if the log no longer holds all records that the view has read."
    ),
]
ViewName = Annotated[str, typer.Argument(help="The view.", show_default=False)]
BackupUrl = Annotated[
    str, typer.Argument(help="A folder, or a URL like s3://bucket/folder.", show_default=False)
]

view = typer.Typer(
    help="Show views, check them, compute them again, and move their state.",
    epilog=examples("headwater view list", "headwater view rows revenue --where country=DE --limit 5"),
    no_args_is_help=True,
)


@view.command("list", epilog=examples("headwater view list"))
def view_list() -> None:
    """List the views that have a table, with the number of rows and the time of the last change."""
    from datetime import UTC, datetime

    from headwater.view.tables.reader import ViewTable

    settings = load()
    for path in sorted(settings.views.glob("*.db")):
        extent = ViewTable(path).extent()
        changed = datetime.fromtimestamp((extent.changed_at_ms or 0) / 1000, UTC).isoformat(" ", "seconds")
        typer.echo(f"{path.stem:<40} {extent.rows:>10,} rows   {changed if extent.rows else '-'}")


@view.command("status", epilog=examples("headwater view status shop.py"))
def view_status(app: AppFile) -> None:
    """Show the followers of each view with their lag, and which views wait for them."""
    from headwater.client.client import Client
    from headwater.declare.app import App
    from headwater.follow.pace import Pace

    settings = load()
    graph, client = App.load(str(app)).graph(), Client(settings.access)
    typer.echo(f"{'view':<32} {'followed by':<40} {'lag':>10}  pace")
    for name, declared in graph.views.items():
        pace = Pace(client, graph, name, settings.pace_records)
        slow = pace.too_far() if declared.pace else None
        for follower in pace.trailing():
            state = "waits" if follower.name == (slow and slow.name) else declared.pace or "-"
            typer.echo(f"{name:<32} {follower.name:<40} {follower.records:>10,}  {state}")
    client.close()


@view.command("reset", epilog=examples("headwater view reset revenue"))
def view_reset(
    name: ViewName,
    *,
    accept_loss: AcceptLoss = False,
) -> None:
    """Delete the results and state of a stopped view; the next start computes them again from the log."""
    from headwater.operate.views.reset import reset

    reset(load(), name, accept_loss=accept_loss)
    typer.echo(f"view {name} is deleted; the next start computes it again from its streams")


@view.command("scale", epilog=examples("headwater view scale revenue --shards 8"))
def view_scale(
    name: ViewName,
    *,
    shards: Annotated[int, typer.Option(help="The new number of shards.", show_default=False)],
) -> None:
    """Change the number of state shards of a stopped view; its rows do not change."""
    from headwater.operate.views.scale import scale

    before = scale(load(), name, shards)
    typer.echo(f"view {name} had {before} shards and has {shards}; the next start continues with them")


@view.command(
    "state",
    epilog=examples("headwater view state revenue", "headwater view state revenue DE --at 41"),
)
def view_state(
    name: ViewName,
    key: Annotated[
        str | None,
        typer.Argument(
            help="A key, as in the view's topic.  [default: show the size of the state]", show_default=False
        ),
    ] = None,
    *,
    at: Annotated[
        int | None,
        typer.Option(metavar="BATCH", help="After this batch.  [default: last]", show_default=False),
    ] = None,
    operator: Annotated[str, typer.Option(help="The operator with the key.")] = "publish",
) -> None:
    """Show the size of a view's state, or the value of one key."""
    from headwater.operate.views import inspect_state

    settings = load()
    result = inspect_state.at_batch(name, inspect_state.results_of(settings, name), at)
    if key is None:
        typer.echo(f"batch {result.batch} of run {result.run}")
        _print_table([_size_row(size) for size in inspect_state.sizes(result)])
        return
    entry = inspect_state.entry(settings.data / "checkpoints" / name, name, result, operator, key.encode())
    typer.echo(inspect_state.shown(entry.value))
    when = f"batch {entry.changed}" + ("" if entry.exactly else " or before")
    typer.echo(f"after batch {entry.batch}, in shard {entry.shard} of {operator}; written in {when}")


def _size_row(size: Any) -> dict[str, str]:
    return {
        "operator": size.operator,
        "shards": str(size.shards),
        "entries": f"{size.entries:,}",
        "bytes": f"{size.state_bytes:,}",
        "files": str(size.files),
        "bytes of files": f"{size.file_bytes:,}",
        "largest shard": f"{size.largest} ({size.largest_bytes:,} bytes)",
    }


@view.command("backup", epilog=examples("headwater view backup revenue s3://bucket/state"))
def view_backup(name: ViewName, url: BackupUrl) -> None:
    """Copy the checkpoint and state of a stopped view to a folder or URL."""
    from headwater.operate.views.backup import backup

    made = backup(load(), name, url)
    typer.echo(f"view {name}: batch {made.batch} is backed up, {made.files} files, {made.size_bytes:,} bytes")


@view.command("restore", epilog=examples("headwater view restore revenue s3://bucket/state"))
def view_restore(name: ViewName, url: BackupUrl) -> None:
    """Copy the backup of a view to this machine; the next start continues from it."""
    from headwater.operate.views.backup import restore

    found = restore(load(), name, url)
    typer.echo(
        f"view {name}: batch {found.batch} is restored, {found.files} files, {found.size_bytes:,} bytes"
    )


@view.command(
    "rebuild",
    epilog=examples(
        "headwater view rebuild revenue shop.py", "headwater view rebuild revenue shop.py --back"
    ),
)
def view_rebuild(
    name: ViewName,
    app: Annotated[str, typer.Argument(help="The application file.", show_default=False)],
    *,
    back: Annotated[
        bool, typer.Option("--back", help="Return to the run before the last rebuild instead.")
    ] = False,
    accept_loss: AcceptLoss = False,
) -> None:
    """Compute a view again from the log while readers keep the old rows, then swap without a gap."""
    from headwater.declare.app import App
    from headwater.operate.views.rebuild import Rebuild

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
    name: ViewName,
    app: AppFile,
    *,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Compute the batch by Spark's own operators, without Headwater's."),
    ] = False,
    log: LogAddress = None,
) -> None:
    """Compare a view, row by row, with a batch over the same records; the pipeline may keep running."""
    from headwater.declare.app import App
    from headwater.operate.views.check import check
    from headwater.pipeline.spark import java

    declared = App.load(str(app))
    java.require()
    report = check(declared, settings_for(log), name, plain=plain)
    typer.echo(str(report))
    if report.first is not None:
        raise typer.Exit(DIFFERENT)


@view.command(
    "rows",
    epilog=examples(
        "headwater view rows revenue --json",
        "headwater view rows revenue --where country=DE --order -revenue --limit 10",
    ),
)
def view_rows(
    name: ViewName,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Show only such rows; COLUMN.lt=, COLUMN.gte= and so on compare; may be repeated.",
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
        int | None, typer.Option(min=1, help="Show no more rows than this.", show_default=False)
    ] = None,
) -> None:
    """Print the rows of a view."""
    import msgspec

    from headwater.view.tables.query import parse
    from headwater.view.tables.reader import ViewTable

    path = _table(load(), name)
    query = parse([*map(_condition, where or ()), *([("order", order)] if order else ())])
    rows = [row.columns() for row in ViewTable(path).rows(msgspec.structs.replace(query, limit=limit)).rows]
    if as_json:
        for row in rows:
            typer.echo(msgspec.json.encode(row))
    else:
        _print_table(rows)


def _table(settings: Settings, name: str) -> Path:
    views = sorted(path.stem for path in settings.views.glob("*.db"))
    if name not in views:
        near = difflib.get_close_matches(name, views, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"views are: {', '.join(views) or 'none yet'}"
        raise UsageError(f"there is no view {name!r} in {settings.views}", hint=hint)
    return settings.views / f"{name}.db"


def _condition(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise UsageError("--where is wrong", got=repr(text), expected="COLUMN=VALUE")
    return column, value


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table()
    for column in rows[0] if rows else ():
        table.add_column(column)
    for row in rows:
        table.add_row(
            *(str(value["start"] if column == "window" else value) for column, value in row.items())
        )
    print_table(table)
