"""The commands that look after a log, ours or Apache Kafka's: topic, produce, consume, wait, group, replay, lag, ledger."""

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headwater.access import Access
from headwater.cli_parts import Bootstrap, examples
from headwater.config import load
from headwater.errors import UsageError

__all__ = ["add_commands"]

Name = Annotated[str, typer.Argument(show_default=False)]


def _access(log: str | None) -> Access:
    """The log of the settings, or another one: an address alone is reached in the same way as that of the settings."""
    if log is None or "://" in log:
        return load(log=log).access
    return msgspec.structs.replace(load().access, bootstrap=log)


def _show(columns: list[str], rows: list[list[object]], *, right: int = 1) -> None:
    """A table whose columns from ``right`` on are numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i >= right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row])
    Console().print(table)


topic = typer.Typer(
    help="Topics: list, show, create, delete.", no_args_is_help=True, epilog=examples("headwater topic list")
)
group = typer.Typer(
    help="Consumer groups: list, reset, delete.",
    no_args_is_help=True,
    epilog=examples("headwater group list"),
)


def add_commands(cli: typer.Typer) -> None:
    """Puts the commands of this module under the command line."""
    cli.add_typer(topic, name="topic")
    cli.add_typer(group, name="group")
    for command, shown in (
        (
            produce,
            (
                "echo 'k:{\"a\": 1}' | headwater produce orders --key-separator :",
                "headwater produce orders --partitioner round-robin < lines.jsonl",
            ),
        ),
        (
            consume,
            (
                "headwater consume orders --from earliest --count 10",
                "headwater consume orders --from 2026-01-05T09:00:00Z",
            ),
        ),
        (
            wait,
            (
                "headwater wait revenue --at-least 0~orders:0=17,1=4",
                'headwater wait revenue --at-least "$(headwater produce orders --position < lines.jsonl)"',
            ),
        ),
        (replay, ("headwater replay orders --from 2026-01-05 --to 2026-01-06 --into orders-monday",)),
        (lag, ("headwater lag", "headwater lag headwater.revenue --json")),
        (ledger, ("headwater ledger", "headwater ledger orders revenue.postgres --json")),
    ):
        cli.command(epilog=examples(*shown))(command)


@topic.command("list", epilog=examples("headwater topic list"))
def topic_list(*, log: Bootstrap = None) -> None:
    """All topics with their partitions and records."""
    from headwater.client import Client

    client = Client(_access(log))
    partitions = client.partitions()
    ends = client.end_offsets(partitions)
    rows: list[list[object]] = [
        [name, count, sum(end for (each, _), end in ends.items() if each == name)]
        for name, count in sorted(partitions.items())
    ]
    _show(["topic", "partitions", "end offsets"], rows)


@topic.command("show", epilog=examples("headwater topic show orders"))
def topic_show(name: Name, *, log: Bootstrap = None) -> None:
    """One topic: its settings, and how evenly its records are spread over its partitions."""
    from headwater.operate.topic import describe

    shape = describe(_access(log), name)
    changed = ", ".join(f"{key}={value}" for key, value in shape.config.items()) or "defaults"
    typer.echo(f"{name}: {len(shape.partitions)} partitions, {shape.records:,} records, {changed}")
    rows: list[list[object]] = [
        [p.index, p.start, p.end, p.records, f"{p.records / max(shape.records, 1):.1%}"]
        for p in shape.partitions
    ]
    _show(["partition", "start", "end", "records", "share"], rows, right=0)
    if len(shape.partitions) > 1 and shape.records:
        typer.echo(f"skew: the fullest partition has {shape.skew:.2f} times the mean")


@topic.command(
    "create", epilog=examples("headwater topic create orders --partitions 4 --config cleanup.policy=compact")
)
def topic_create(
    name: Name,
    *,
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions.")] = 1,
    config: Annotated[
        list[str] | None, typer.Option(help="A topic setting, key=value; may be repeated.")
    ] = None,
    log: Bootstrap = None,
) -> None:
    """Creates a topic."""
    from headwater.operate.topic import create

    pairs = dict(_pair(each) for each in config or [])
    create(_access(log), name, partitions, pairs)
    typer.echo(f"created {name} with {partitions} partitions")


@topic.command("delete", epilog=examples("headwater topic delete orders --yes"))
def topic_delete(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    log: Bootstrap = None,
) -> None:
    """Deletes a topic with all its records."""
    from headwater.operate.topic import delete

    if not yes:
        typer.confirm(f"Delete {name} and all its records?", abort=True)
    delete(_access(log), name)
    typer.echo(f"deleted {name}")


def produce(
    name: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    key_separator: Annotated[
        str | None,
        typer.Option(help="What stands between key and value on a line; without it records have no key."),
    ] = None,
    partitioner: Annotated[
        str,
        typer.Option(
            help="key (Kafka's murmur2), round-robin, sticky, or FILE.PY:FUNCTION of key and number of partitions."
        ),
    ] = "key",
    limit: Annotated[
        str | None,
        typer.Option(help="How many records may leave: 1000/s, 600/min burst 20.", show_default=False),
    ] = None,
    position: Annotated[
        bool, typer.Option("--position", help="Print the position behind the records, for headwater wait.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print records, position and offsets as one JSON object.")
    ] = False,
    log: Bootstrap = None,
) -> None:
    """Writes each line of standard input as a record, and says how many were acknowledged and where they end."""
    from headwater.operate.pipe import write
    from headwater.partition import named

    written = write(_access(log), name, sys.stdin.buffer, key_separator, named(partitioner), limit=limit)
    if as_json:
        typer.echo(written.json(), nl=False)
    elif position:
        typer.echo(str(written.position))
    typer.echo(f"{written.records:,} records acknowledged, position {written.position}", err=True)


def consume(
    name: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    first: Annotated[str, typer.Option("--from", help="earliest, latest, an offset, or a time.")] = "latest",
    count: Annotated[int | None, typer.Option(min=1, help="End after so many records.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End at the end of the topic.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Key, value, time and place as one JSON object a line.")
    ] = False,
    log: Bootstrap = None,
) -> None:
    """Prints the records of a topic, then those that arrive, until Ctrl-C."""
    from headwater.operate.pipe import read

    for record in read(_access(log), name, first, count=count, end=end):
        sys.stdout.buffer.write(record.json() if as_json else record.line())
        sys.stdout.buffer.flush()


def wait(
    view: Annotated[str, typer.Argument(metavar="VIEW", show_default=False)],
    *,
    at_least: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="A position in the topics that the view reads, as produce tells it.",
            show_default=False,
        ),
    ],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 10,
    log: Bootstrap = None,
) -> None:
    """Waits until a view has taken in what was written, and prints the position of the view that holds it."""
    from headwater.wait import wait as wait_for

    typer.echo(str(wait_for(view, at_least, timeout, log=_access(log))))


@group.command("list", epilog=examples("headwater group list"))
def group_list(*, log: Bootstrap = None) -> None:
    """All consumer groups and their state."""
    from headwater.operate.group import groups

    _show(["group", "state"], [[found.name, found.state] for found in groups(_access(log))], right=2)


@group.command(
    "reset",
    epilog=examples(
        "headwater group reset billing --topic orders --to earliest --dry-run",
        "headwater group reset billing --topic orders --to 2026-01-05T09:00:00Z",
    ),
)
def group_reset(
    name: Name,
    *,
    topic: Annotated[str, typer.Option(help="The topic whose offsets are moved.", show_default=False)],
    to: Annotated[str, typer.Option(help="earliest, latest, an offset, or a time.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    log: Bootstrap = None,
) -> None:
    """Moves a group that nobody is in to another place in a topic."""
    from headwater.operate.replay import parse_point, reset

    moves = reset(_access(log), name, topic, parse_point(to), dry_run=dry_run)
    _show(
        ["partition", "from", "to"],
        [[m.partition, m.committed if m.committed >= 0 else "none", m.target] for m in moves],
        right=0,
    )
    typer.echo("nothing was changed (--dry-run)" if dry_run else f"group {name} was moved")


@group.command("delete", epilog=examples("headwater group delete billing"))
def group_delete(name: Name, *, log: Bootstrap = None) -> None:
    """Forgets a group that nobody is in, with its offsets."""
    from headwater.operate.group import delete

    delete(_access(log), name)
    typer.echo(f"deleted {name}")


def replay(
    name: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    into: Annotated[str, typer.Option(help="The topic to be made.", show_default=False)],
    first: Annotated[str, typer.Option("--from", help="earliest, an offset, or a time.")] = "earliest",
    last: Annotated[str, typer.Option("--to", help="latest, an offset, or a time.")] = "latest",
    log: Bootstrap = None,
) -> None:
    """Copies a stretch of a topic into a new one, with keys, headers and times, partition by partition."""
    from headwater.operate.replay import parse_point
    from headwater.operate.replay import replay as copy

    count = copy(_access(log), name, into, parse_point(first), parse_point(last))
    typer.echo(f"{count:,} records of {name} are now in {into}")


def lag(
    name: Annotated[str | None, typer.Argument(metavar="[GROUP]", show_default=False)] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    log: Bootstrap = None,
) -> None:
    """How far groups are behind, in records and seconds, and how long until retention passes them."""
    from headwater.operate.lag import lags

    found = lags(_access(log), name)
    if as_json:
        for each in found:
            typer.echo(msgspec.json.encode(each).decode())
        return
    rows: list[list[object]] = [
        [
            e.group,
            e.topic,
            e.partition,
            e.committed,
            e.end,
            e.records,
            _duration(e.seconds),
            _duration(e.lost_in_seconds),
        ]
        for e in found
    ]
    _show(["group", "topic", "partition", "committed", "end", "records", "behind", "lost in"], rows, right=2)
    for each in found:
        if each.missed:
            typer.echo(
                f"warning: {each.group} has missed {each.missed:,} records of {each.topic}-{each.partition}",
                err=True,
            )
        elif each.in_danger:
            left = _duration(each.lost_in_seconds)
            typer.echo(
                f"warning: retention reaches {each.group} in {each.topic}-{each.partition} in {left}",
                err=True,
            )


def ledger(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Topics, views and sinks; without one, every topic that a view or a sink reads.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    log: Bootstrap = None,
) -> None:
    """What has become of every record, for each topic and consumer; ends with 1 when an account does not add up."""
    from headwater.operate.ledger import TERMS, Unbalanced, accounts

    found = accounts(_access(log), names or ())
    if as_json:
        for each in found:
            typer.echo(msgspec.json.encode(each).decode())
    else:
        some = [term for term in TERMS if any(getattr(each, term) for each in found)]
        shown = list(dict.fromkeys(["produced", "processed", "waiting", *some]))
        rows: list[list[object]] = [
            [each.topic, each.consumer, *(getattr(each, term) for term in shown)] for each in found
        ]
        _show(["topic", "consumer", *shown], rows, right=2)
    faults = [each.fault for each in found if each.fault]
    for fault in faults:
        typer.echo(f"does not add up: {fault}", err=True)
    if faults:
        raise typer.Exit(Unbalanced.exit_code)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError("that is no setting", got=repr(text), expected="key=value")
    return key, value
