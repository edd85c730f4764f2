"""The command for the parts of an application: status."""

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import examples
from headwater.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.health.condition import PartStatus
    from headwater.health.report import Report

__all__ = ["add_status", "lines"]

NOT_HEALTHY = 1
WATCH_S = 1.0
CLEAR = "\x1b[H\x1b[2J"
COLORS = {"running": "green", "starting": "yellow", "paused": "yellow"}


def add_status(cli: typer.Typer) -> None:
    """Adds the command to the program."""
    cli.command(epilog=examples("headwater status", "headwater status --json", "headwater status --watch"))(
        status
    )


def status(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, as GET /health does.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print again whenever something has changed, until Ctrl-C.")
    ] = False,
) -> None:
    """Show every part of the running application: whether it works, how far it lags, since when it fails.

    Ends with exit code 1 if a part fails.
    """
    import sys
    import threading

    import msgspec

    from headwater.clock import SystemClock
    from headwater.health.report import read

    folder, clock, pause = load().data, SystemClock(), threading.Event()
    redraw = watch and not as_json and sys.stdout.isatty()
    shown = None
    while True:
        report = read(folder, clock)
        if redraw or report != shown:
            text = (
                msgspec.json.encode(report).decode() if as_json else "\n".join(lines(report, clock.now_ms()))
            )
            typer.echo(f"{CLEAR}{text}" if redraw else text)
            shown = report
        if not watch:
            raise typer.Exit(0 if report.is_healthy else NOT_HEALTHY)
        pause.wait(WATCH_S)


def lines(report: "Report", now_ms: int) -> "Iterator[str]":
    """A line for each part, and one more for its error."""
    if not report.parts:
        yield "nothing runs with these settings; headwater up APP starts an application"
        return
    titles = [part.name if part.kind == part.name else f"{part.kind} {part.name}" for part in report.parts]
    width = max(len("part"), *map(len, titles))
    yield f"{'part':<{width}}  state     since      lag"
    for title, part in zip(titles, report.parts, strict=True):
        state = typer.style(f"{part.state:<8}", fg=COLORS.get(part.state, "red"))
        since = _duration(now_ms - part.since_ms)
        restarts = f"   {part.restarts} restart{'s' if part.restarts > 1 else ''}" if part.restarts else ""
        yield f"{title:<{width}}  {state}  {since:<9}  {_lag(part)}{_work(part)}{restarts}".rstrip()
        if part.error:
            yield f"    {_error(part, now_ms)}"


def _error(part: "PartStatus", now_ms: int) -> str:
    if not part.state.is_bad:
        ago = "" if part.error_ms is None else f", {_duration(now_ms - part.error_ms)} ago"
        return f"last error{ago}: {part.error}"
    if part.next_try_ms is None:
        return part.error
    return f"{part.error}; next try in {_duration(part.next_try_ms - now_ms)}"


def _lag(part: "PartStatus") -> str:
    if part.lag_ms is not None:
        return f"{part.lag_ms / 1000:,.1f} s"
    if part.lag_records is not None:
        return f"{part.lag_records:,} record{'' if part.lag_records == 1 else 's'}"
    return "-"


def _work(part: "PartStatus") -> str:
    if part.work is None:
        return ""
    work = part.work
    counts = {"in work": work.in_work, "handled": work.handled, "retried": work.retried, "dead": work.dead}
    return "".join(f"   {count:,} {what}" for what, count in counts.items())


def _duration(ms: int) -> str:
    seconds = max(ms, 0) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
