"""The commands for queues: list, status, peek, cancel, purge, reset, redrive."""

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import LogAddress, examples, print_rows, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater.operate.queues.peek import Peeked
    from headwater.operate.queues.status import PartitionStatus, QueueStatus

__all__ = ["queue"]

WATCH_S = 1.0
CLEAR = "\x1b[H\x1b[2J"
LEFT = 1
"""The exit code if something that was to be settled is held."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue, a share group.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]

queue = typer.Typer(
    help="Look after queues: share groups, their messages and their dead letters.",
    epilog=examples(
        "headwater queue list", "headwater queue status mailer", "headwater queue redrive mailer"
    ),
    no_args_is_help=True,
)


@queue.command("list", epilog=examples("headwater queue list", "headwater queue list --json"))
def queue_list(*, as_json: AsJson = False, log: LogAddress = None) -> None:
    """List all queues with their members and messages."""
    from headwater.operate.queues.status import statuses

    found = statuses(settings_for(log).access)
    if as_json:
        _print_json(found)
        return
    columns = ["queue", "topics", "members", "waiting", "held", "delayed", "scheduled", "dead", "expired"]
    rows: list[list[object]] = [
        [one.queue, ", ".join(one.topics), one.members, *_counts(one), one.dead, one.expired] for one in found
    ]
    print_rows(columns, rows, right=2)


@queue.command(
    "status",
    epilog=examples(
        "headwater queue status",
        "headwater queue status mailer --watch",
        "headwater queue status mailer --json",
    ),
)
def queue_status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The queue.  [default: all]", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print again every second, with the rate, until Ctrl-C.")
    ] = False,
    log: LogAddress = None,
) -> None:
    """Show each partition of a queue: members, what waits, is held, delayed, scheduled, dead and expired."""
    import sys
    import threading

    from headwater.clock import SystemClock
    from headwater.operate.queues.status import QueueStatus, statuses

    access, clock, pause = settings_for(log).access, SystemClock(), threading.Event()
    last: dict[str, tuple[QueueStatus, float]] = {}
    while True:
        now = clock.monotonic()
        found = []
        for one in statuses(access, name):
            before = last.get(one.queue)
            found.append(one if before is None else one.since(before[0], now - before[1]))
            last[one.queue] = one, now
        if watch and not as_json and sys.stdout.isatty():
            typer.echo(CLEAR, nl=False)
        if as_json:
            _print_json(found)
        else:
            for one in found:
                _print_status(one)
            if not found:
                typer.echo("there are no queues; a share group becomes one when its first member reads")
        if not watch:
            return
        pause.wait(WATCH_S)


@queue.command(
    "peek",
    epilog=examples(
        "headwater queue peek mailer",
        "headwater queue peek mailer --state delayed --limit 5 --json",
        "headwater queue peek mailer.dead",
    ),
)
def queue_peek(
    name: Name,
    *,
    state: Annotated[
        str | None,
        typer.Option(help="waiting, held, delayed or scheduled.  [default: all]", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Stop after this number of messages.")] = 20,
    as_json: AsJson = False,
    log: LogAddress = None,
) -> None:
    """Show messages of a queue without locking them; those of NAME.dead are its dead letters."""
    from headwater.operate.queues.peek import peek

    messages = peek(settings_for(log).access, name, state, limit)
    if as_json:
        _print_json(messages)
        return
    columns = ["message", "state", "attempts", "due", "age", "key", "headers", "value"]
    print_rows(columns, [_peek_row(one) for one in messages], right=len(columns))


@queue.command(
    "cancel",
    epilog=examples(
        "headwater queue cancel mailer mails-0-17 mails-1-4", "headwater queue cancel mailer order-4711"
    ),
)
def queue_cancel(
    name: Name,
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="TOPIC-PARTITION-OFFSET, or the header headwater-id of a message.",
            show_default=False,
        ),
    ],
    *,
    as_json: AsJson = False,
    log: LogAddress = None,
) -> None:
    """Settle single messages, which are not delivered then; ends with 1 if a member holds one of them."""
    from headwater.operate.queues.settlement import cancel

    outcomes = cancel(settings_for(log).access, name, ids)
    if as_json:
        _print_json(outcomes)
    else:
        for one in outcomes:
            typer.echo(f"{one.id} is {'cancelled' if one.is_cancelled else 'held by a member, and was left'}")
    if not all(one.is_cancelled for one in outcomes):
        raise typer.Exit(LEFT)


@queue.command("purge", epilog=examples("headwater queue purge mailer --yes"))
def queue_purge(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Purge without asking.")] = False,
    as_json: AsJson = False,
    log: LogAddress = None,
) -> None:
    """Settle all messages that wait, also delayed ones; those that members hold are left to them."""
    from headwater.operate.queues.contents import places_of
    from headwater.operate.queues.settlement import purge

    access = settings_for(log).access
    places_of(access, name)  # a wrong name is said before anything is asked
    if not yes:
        typer.confirm(f"Settle all messages of {name} that wait?", abort=True)
    found = purge(access, name)
    if as_json:
        _print_json(found)
        return
    settled, held = (sum(getattr(one, key) for one in found) for key in ("settled", "held"))
    left = f"; {held:,} were left, which members hold" if held else ""
    typer.echo(f"settled {settled:,} offsets of {name}{left}")


@queue.command(
    "reset",
    epilog=examples(
        "headwater queue reset mailer --to 2026-01-05T09:00:00Z --dry-run",
        "headwater queue reset mailer --to earliest --key customer-7",
        "headwater queue reset mailer --to earliest --where 'country = DE'",
    ),
)
def queue_reset(
    name: Name,
    *,
    to: Annotated[str, typer.Option(help="earliest, latest, an offset, or a time.", show_default=False)],
    key: Annotated[
        str | None, typer.Option(help="Deliver only messages of this key again.", show_default=False)
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="'FIELD = VALUE'",
            help="Deliver only messages again whose JSON has that; also != < <= > >=.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="One of its topics.  [default: all]", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    log: LogAddress = None,
) -> None:
    """Let a queue without members begin at another place, and deliver all or some messages again."""
    from headwater.operate.log.replay import parse_point
    from headwater.operate.queues.predicate import chooser
    from headwater.operate.queues.reset import reset

    choice = chooser(key, where)
    access = settings_for(log).access
    found = reset(access, name, parse_point(to), choice=choice, topic=topic or "", dry_run=dry_run)
    if as_json:
        _print_json(found)
        return
    columns = ["topic", "partition", "from", "to", *([] if choice is None else ["again"])]
    rows: list[list[object]] = [
        [one.topic, one.partition, one.start, one.target, *([] if choice is None else [one.again])]
        for one in found
    ]
    print_rows(columns, rows)
    typer.echo("nothing was changed (--dry-run)" if dry_run else f"queue {name} was moved")


@queue.command(
    "redrive",
    epilog=examples(
        "headwater queue redrive mailer --dry-run",
        "headwater queue redrive mailer --limit 100 --rate 10/s",
        """headwater queue redrive mailer --key ada --edit '{"to": "ada@example.org"}'""",
        "headwater queue redrive mailer --edit repair.py:with_address",
    ),
)
def queue_redrive(
    name: Name,
    *,
    dry_run: DryRun = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of letters.", show_default=False)
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="The greatest rate, like 10/s.", show_default=False)
    ] = None,
    edit: Annotated[
        str | None,
        typer.Option(
            help="FILE.PY:FUNCTION(record), or JSON that is merged into each message.", show_default=False
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only letters of this key.", show_default=False)] = None,
    as_json: AsJson = False,
    log: LogAddress = None,
) -> None:
    """Move dead letters back to their topics, in their order, each once."""
    from headwater.operate.queues.edit import parse_edit
    from headwater.operate.queues.redrive import Wanted, dead_letters, redrive
    from headwater.write.rate_limit import Limit

    wanted = Wanted(
        limit,
        key,
        None if edit is None else parse_edit(edit),
        None if rate is None else Limit.parse(rate),
    )
    access = settings_for(log).access
    counts: dict[str, int] = {}
    for moved in dead_letters(access, name, wanted) if dry_run else redrive(access, name, wanted):
        counts[moved.topic] = counts.get(moved.topic, 0) + 1
        if as_json:
            _print_json([moved])
        elif dry_run:
            typer.echo(f"{moved.letter} to {moved.topic}: {moved.attempts} attempts, {moved.reason}")
    total = ", ".join(f"{count:,} to {topic}" for topic, count in counts.items()) or "no letters"
    typer.echo(
        f"would move {total}; nothing was changed (--dry-run)" if dry_run else f"moved {total}", err=as_json
    )


def _print_json(found: "Iterable[object]") -> None:
    import msgspec

    for one in found:
        typer.echo(msgspec.json.encode(one).decode())


def _print_status(one: "QueueStatus") -> None:
    rate = "" if one.settled_per_s is None else f", {one.settled_per_s:,.0f} settled a second"
    oldest = "" if one.oldest_s is None else f", the oldest has waited for {_duration(one.oldest_s)}"
    typer.echo(f"{one.queue}: {one.members} members, {one.dead:,} dead letters{oldest}{rate}")
    columns = ["topic", "partition", "members", "waiting", "held", "delayed", "scheduled", "expired"]
    columns += ["exhausted", "oldest"]
    rows: list[list[object]] = []
    for part in one.partitions:
        age = None if part.oldest_s is None else _duration(part.oldest_s)
        counts = [*_counts(part), part.expired, part.exhausted]
        rows.append([part.topic, part.partition, part.members, *counts, age])
    print_rows(columns, rows)


def _counts(one: "QueueStatus | PartitionStatus") -> list[object]:
    """Of Apache Kafka's queues it is only known how much is left: it is shown as waiting."""
    waiting = one.unsettled if one.waiting is None else one.waiting
    return [waiting, one.held, one.delayed, one.scheduled]


def _peek_row(one: "Peeked") -> list[object]:
    due = None if one.due is None else one.due.isoformat(timespec="seconds")
    headers = " ".join(f"{name}={value}" for name, value in one.headers)
    return [one.id, one.state, one.attempts, due, _duration(one.age_s), one.key, headers, one.value]


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
