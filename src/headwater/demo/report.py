"""The output of the demo on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from headwater.demo.latency import percentile
from headwater.demo.tally import Figures

__all__ = ["Report", "ViewReport"]

PROBLEMS_SHOWN = 10


class ViewReport(msgspec.Struct, frozen=True):
    """One view at the end: its rows, their differences from the batch and the generator, and the latency."""

    name: str
    rows: int
    batch: list[str]
    sums: list[str]
    delays: list[int]


class Report:
    """Prints the progress of the demo; plain lines if the output is not a terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._console.print(text)

    def begin(self, seed: int, rate: float, speed: float, folder: Path) -> None:
        self.say(f"[bold]Headwater demo[/bold]: a web shop, about {rate:g} events a second, seed {seed}")
        self.say(f"A minute here is {speed:g} minutes in the shop. Everything is in {folder}")

    def ready(self, what: str, where: str, seconds: float) -> None:
        self.say(f"  {what + (' ' + where if where else ''):<34} after {seconds:5.1f} s")

    def page(self, url: str) -> None:
        self.say(f"\n  Watch it: [bold cyan]{url}[/bold cyan]   (Ctrl-C ends)\n")

    def progress(self, seconds: float, rows: Mapping[str, int], restarts: Mapping[str, int]) -> None:
        counts = "  ".join(f"{name} {count:,}" for name, count in rows.items())
        again = "".join(f"  [yellow]{name} restarted {count}x[/yellow]" for name, count in restarts.items())
        self.say(f"  {seconds:5.0f} s  rows on the page: {counts}{again}")

    def verdict(
        self,
        views: Sequence[ViewReport],
        figures: Figures,
        invalid: Sequence[str],
        restarts: Mapping[str, int],
    ) -> bool:
        """Prints the summary; True if everything is right."""
        self._console.print(_view_table(views))
        self._console.print(_topic_table(figures, invalid))
        for name, count in restarts.items():
            self.say(f"{name} ended unexpectedly and was restarted {count} time(s)")
        problems = [problem for view in views for problem in (*view.batch, *view.sums)] + list(invalid)
        for problem in problems[:PROBLEMS_SHOWN]:
            self.say(f"[red]wrong[/red]  {problem}")
        if problems:
            self.say(f"[bold red]{len(problems)} differences[/bold red]")
            return False
        rows = sum(view.rows for view in views)
        records = sum(figures.records.values())
        checked = f"{rows:,} rows from {records:,} records, every one of them checked."
        self.say(f"[bold green]All right[/bold green]: {checked}")
        return True


def _view_table(views: Sequence[ViewReport]) -> Table:
    table = Table(
        title="Views: every row against a batch run, every sum against the generator", title_justify="left"
    )
    table.add_column("view", no_wrap=True)
    for heading in ("rows", "batch", "sums", "event to page", "p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in views:
        table.add_row(
            view.name,
            f"{view.rows:,}",
            _sign(view.batch),
            _sign(view.sums),
            _ms(percentile(view.delays, 0.5)),
            _ms(percentile(view.delays, 0.99)),
        )
    return table


def _topic_table(figures: Figures, invalid: Sequence[str]) -> Table:
    table = Table(title="Topics", title_justify="left")
    for heading in ("topic", "records", "sent twice", "broken", "found invalid"):
        table.add_column(heading, justify="left" if heading == "topic" else "right")
    wrong = {problem.partition(":")[0].removeprefix("invalid ") for problem in invalid}
    for topic, records in figures.records.items():
        repeated, broken = figures.repeated.get(topic, 0), figures.broken.get(topic, 0)
        outcome = "[red]not equal[/red]" if topic in wrong else f"[green]{broken:,}[/green]"
        table.add_row(topic, f"{records:,}", f"{repeated:,}", f"{broken:,}", outcome)
    return table


def _sign(problems: Sequence[str]) -> str:
    return f"[red]{len(problems)} differ[/red]" if problems else "[green]equal[/green]"


def _ms(value: int | None) -> str:
    return "-" if value is None else f"{value:,} ms"
