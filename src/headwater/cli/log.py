"""The commands for a log: topic, produce, consume, wait, group, replay, lag, ledger."""

import sys
from typing import Annotated

import msgspec
import typer

from headwater.access import Access
from headwater.cli.options import LogAddress, examples, print_rows, settings_for
from headwater.errors import UsageError

__all__ = ["add_commands"]

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def _access(log: str | None) -> Access:
    return settings_for(log).access


topic = typer.Typer(
    help="List, show, create and delete topics.",
    no_args_is_help=True,
    epilog=examples("headwater topic list"),
)
group = typer.Typer(
    help="List, reset and delete consumer groups.",
    no_args_is_help=True,
    epilog=examples("headwater group list"),
)


def add_commands(cli: typer.Typer) -> None:
    """Adds the commands of this module to the command line."""
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
def topic_list(*, log: LogAddress = None) -> None:
    """List all topics with their partitions and end offsets."""
    from headwater.client.client import Client

    client = Client(_access(log))
    partitions = client.partitions()
    ends = client.end_offsets(partitions)
    rows: list[list[object]] = [
        [name, count, sum(end for (topic, _), end in ends.items() if topic == name)]
        for name, count in sorted(partitions.items())
    ]
    print_rows(["topic", "partitions", "end offsets"], rows)


@topic.command("show", epilog=examples("headwater topic show orders"))
def topic_show(name: TopicName, *, log: LogAddress = None) -> None:
    """Show the settings of a topic, and how its records are spread over its partitions."""
    from headwater.operate.log.topic import describe

    shape = describe(_access(log), name)
    changed = ", ".join(f"{key}={value}" for key, value in shape.config.items()) or "defaults"
    typer.echo(f"{name}: {len(shape.partitions)} partitions, {shape.records:,} records, {changed}")
    rows: list[list[object]] = [
        [p.index, p.start, p.end, p.records, f"{p.records / max(shape.records, 1):.1%}"]
        for p in shape.partitions
    ]
    print_rows(["partition", "start", "end", "records", "share"], rows, right=0)
    if len(shape.partitions) > 1 and shape.records:
        typer.echo(f"skew: the largest partition has {shape.skew:.2f} times the mean")


@topic.command(
    "create", epilog=examples("headwater topic create orders --partitions 4 --config cleanup.policy=compact")
)
def topic_create(
    name: TopicName,
    *,
    partitions: Annotated[int, typer.Option(min=1, help="The number of partitions.")] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of the topic; may be repeated."),
    ] = None,
    log: LogAddress = None,
) -> None:
    """Create a topic."""
    from headwater.operate.log.topic import create

    pairs = dict(map(_pair, config or []))
    create(_access(log), name, partitions, pairs)
    typer.echo(f"created {name} with {partitions} partitions")


@topic.command("delete", epilog=examples("headwater topic delete orders --yes"))
def topic_delete(
    name: TopicName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    log: LogAddress = None,
) -> None:
    """Delete a topic with all its records."""
    from headwater.operate.log.topic import delete, partition_count

    access = _access(log)
    partition_count(access, name)
    if not yes:
        typer.confirm(f"Delete {name} and all its records?", abort=True)
    delete(access, name)
    typer.echo(f"deleted {name}")


def produce(
    name: TopicName,
    *,
    key_separator: Annotated[
        str | None,
        typer.Option(help="The text between key and value on each line.  [default: records have no key]"),
    ] = None,
    partitioner: Annotated[
        str,
        typer.Option(
            help="key (Kafka's murmur2), round-robin, sticky, or FILE.PY:FUNCTION(key, partitions)."
        ),
    ] = "key",
    limit: Annotated[
        str | None,
        typer.Option(help="The greatest rate, like 1000/s or '600/min burst 20'.", show_default=False),
    ] = None,
    position: Annotated[
        bool, typer.Option("--position", help="Print the position after the records, for headwater wait.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print records, position and offsets as one JSON object.")
    ] = False,
    log: LogAddress = None,
) -> None:
    """Write each line of standard input as a record, and print the position after the last one."""
    from headwater.client.partitioner import named
    from headwater.operate.log.pipe import write

    written = write(_access(log), name, sys.stdin.buffer, key_separator, named(partitioner), limit=limit)
    if as_json:
        typer.echo(written.json(), nl=False)
    elif position:
        typer.echo(str(written.position))
    typer.echo(f"{written.records:,} records acknowledged, position {written.position}", err=True)


def consume(
    name: TopicName,
    *,
    first: Annotated[str, typer.Option("--from", help="earliest, latest, an offset, or a time.")] = "latest",
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this number of records.")] = None,
    end: Annotated[bool, typer.Option("--end", help="Stop at the end of the topic.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print key, value, time and offset as one JSON object per line.")
    ] = False,
    log: LogAddress = None,
) -> None:
    """Print the records of a topic, and those that arrive, until Ctrl-C."""
    from headwater.operate.log.pipe import read

    for record in read(_access(log), name, first, count=count, end=end):
        sys.stdout.buffer.write(record.json() if as_json else record.line())
        sys.stdout.buffer.flush()


def wait(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view.", show_default=False)],
    *,
    at_least: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="A position in the topics that the view reads, as printed by headwater produce.",
            show_default=False,
        ),
    ],
    timeout: Annotated[float, typer.Option(min=0, help="The longest time to wait, in seconds.")] = 10,
    log: LogAddress = None,
) -> None:
    """Wait until a view contains the records before a position, and print its own position then."""
    from headwater.follow.follower import wait as wait_for

    typer.echo(str(wait_for(view, at_least, timeout, log=_access(log))))


@group.command("list", epilog=examples("headwater group list"))
def group_list(*, log: LogAddress = None) -> None:
    """List all consumer groups and their state."""
    from headwater.operate.log.group import groups

    print_rows(["group", "state"], [[one.name, one.state] for one in groups(_access(log))], right=2)


@group.command(
    "reset",
    epilog=examples(
        "headwater group reset billing --topic orders --to earliest --dry-run",
        "headwater group reset billing --topic orders --to 2026-01-05T09:00:00Z",
    ),
)
def group_reset(
    name: GroupName,
    *,
    topic: Annotated[str, typer.Option(help="The topic.", show_default=False)],
    to: Annotated[str, typer.Option(help="earliest, latest, an offset, or a time.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    log: LogAddress = None,
) -> None:
    """Move the offsets of a group without members to another position in a topic."""
    from headwater.operate.log.replay import parse_point, reset

    moves = reset(_access(log), name, topic, parse_point(to), dry_run=dry_run)
    print_rows(
        ["partition", "from", "to"],
        [[m.partition, m.committed if m.committed >= 0 else "none", m.target] for m in moves],
        right=0,
    )
    typer.echo("nothing was changed (--dry-run)" if dry_run else f"group {name} was moved")


@group.command("delete", epilog=examples("headwater group delete billing"))
def group_delete(name: GroupName, *, log: LogAddress = None) -> None:
    """Delete a group without members, with its offsets."""
    from headwater.operate.log.group import delete

    delete(_access(log), name)
    typer.echo(f"deleted {name}")


def replay(
    name: TopicName,
    *,
    into: Annotated[str, typer.Option(help="The name of the new topic.", show_default=False)],
    first: Annotated[str, typer.Option("--from", help="earliest, an offset, or a time.")] = "earliest",
    last: Annotated[str, typer.Option("--to", help="latest, an offset, or a time.")] = "latest",
    log: LogAddress = None,
) -> None:
    """Copy a range of a topic into a new topic, with partitions, keys, headers and times."""
    from headwater.operate.log.replay import parse_point
    from headwater.operate.log.replay import replay as copy

    count = copy(_access(log), name, into, parse_point(first), parse_point(last))
    typer.echo(f"{count:,} records of {name} are now in {into}")


def lag(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP]", help="The group.  [default: all]", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
    log: LogAddress = None,
) -> None:
    """Show the lag of groups in records and seconds, and the time left until retention passes them."""
    from headwater.operate.log.lag import lags

    found = lags(_access(log), name)
    if as_json:
        for one in found:
            typer.echo(msgspec.json.encode(one).decode())
        return
    rows: list[list[object]] = [
        [
            one.group,
            one.topic,
            one.partition,
            one.committed,
            one.end,
            one.records,
            _duration(one.seconds),
            _duration(one.lost_in_seconds),
        ]
        for one in found
    ]
    columns = ["group", "topic", "partition", "committed", "end", "records", "lag", "lost in"]
    print_rows(columns, rows, right=2)
    for one in found:
        place = f"{one.topic}-{one.partition}"
        if one.missed:
            typer.echo(f"warning: {one.group} has missed {one.missed:,} records of {place}", err=True)
        elif one.in_danger:
            left = _duration(one.lost_in_seconds)
            typer.echo(f"warning: retention reaches {one.group} in {place} in {left}", err=True)


def ledger(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Topics, views and sinks.  [default: all topics with a view or sink]",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
    log: LogAddress = None,
) -> None:
    """Account for every record of each topic and consumer; exit with 1 if an account does not add up."""
    from headwater.operate.log.ledger import TERMS, Unbalanced, accounts

    found = accounts(_access(log), names or ())
    if as_json:
        for account in found:
            typer.echo(msgspec.json.encode(account).decode())
    else:
        some = [term for term in TERMS if any(getattr(account, term) for account in found)]
        shown = list(dict.fromkeys(["produced", "processed", "waiting", *some]))
        rows: list[list[object]] = [
            [account.topic, account.consumer, *(getattr(account, term) for term in shown)]
            for account in found
        ]
        print_rows(["topic", "consumer", *shown], rows, right=2)
    faults = [account.fault for account in found if account.fault]
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
        raise UsageError("--config is wrong", got=repr(text), expected="KEY=VALUE")
    return key, value
