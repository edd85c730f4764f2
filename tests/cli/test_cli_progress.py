"""How far a snapshot is, on a terminal and off it."""

import io
import logging
import threading

from rich.console import Console

from headwater.capture.source import Progress
from headwater.cli import snapshot_bar
from headwater.cli.snapshot_bar import ProgressLines, show
from headwater.testing import SettableClock
from support.servers import wait_until


class Reading:
    """A source in the middle of a snapshot; each look finds it further on."""

    def __init__(self) -> None:
        self.rows = 0

    @property
    def progress(self) -> Progress:
        self.rows += 1_000
        return Progress("public.orders", self.rows, 1_000_000)


def shown(console: Console, enough) -> None:
    source, over, failures = Reading(), threading.Event(), []

    def work() -> None:
        try:
            show(source, over, console)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: failures or enough())
    finally:
        over.set()
        thread.join(120)
    assert failures == []


def test_a_terminal_shows_a_bar_with_speed_and_time_left():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)

    def enough() -> bool:
        last = out.getvalue().rpartition("public.orders")[2]
        return "rows/s" in last and "? rows/s" not in last and "0:" in last

    shown(console, enough)
    assert "? rows/s" in out.getvalue(), "the first picture is drawn before a speed is known"


def test_elsewhere_lines_have_speed_and_time_left(monkeypatch, caplog):
    monkeypatch.setattr(snapshot_bar, "LOGGED_EVERY_S", 0.05)
    caplog.set_level(logging.INFO)
    shown(Console(file=io.StringIO()), lambda: len(caplog.messages) > 1)
    assert caplog.messages[0].startswith("snapshot of public.orders: 1,000 rows of about 1,000,000, ")
    assert "rows/s" in caplog.messages[0]
    assert caplog.messages[0].endswith(" left")


def test_the_speed_is_that_since_the_line_before():
    clock, said = SettableClock(), list[str]()
    lines = ProgressLines(clock, said.append)
    for rows, about in ((10_000, 100_000), (10_000, 100_000), (40_000, 100_000), (120_000, 100_000)):
        clock.advance(10)
        lines.look(Progress("t", rows, about))
    lines.look(None)
    assert said == [
        "snapshot of t: 10,000 rows of about 100,000, 1,000 rows/s, 0:01:30 left",
        "snapshot of t: 40,000 rows of about 100,000, 3,000 rows/s, 0:00:20 left",
        "snapshot of t: 120,000 rows of about 100,000, 8,000 rows/s",
    ]
