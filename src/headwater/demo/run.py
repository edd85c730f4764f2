"""`headwater demo`: the whole system on one machine, with traffic and a final check of every number."""

import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from headwater.client.client import Client
from headwater.clock import Clock, SystemClock
from headwater.config import Settings
from headwater.declare.app import App
from headwater.decoders import from_json
from headwater.demo import check, latency
from headwater.demo.event import TOPICS
from headwater.demo.page import Page
from headwater.demo.report import Report, ViewReport
from headwater.demo.tally import Figures
from headwater.durable import make_folder
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.follow.results import newest
from headwater.node.node import Node, ensure_free
from headwater.node.supervisor import Interrupted, Part
from headwater.pipeline.spark import java

__all__ = ["SHOP", "Demo", "Plan"]

SHOP = Path(__file__).with_name("shop.py")
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""Without the first option half of the CPU until the first row goes into optimizations that a short run never
uses (53 s instead of 30). Without the second one Java then keeps only 48 MB of compiled code. Spark needs
more, and a sixth of a core would go into discarding it again."""
CAUGHT_UP_S = 180.0
BATCH_S = 300.0
TRAFFIC_LATE_S = 180.0
"""How much longer than planned the traffic may take, if the log did not answer for a while."""
PROGRESS_S = 5.0
LOOK_S = 0.2
WRONG = 1
INTERRUPTED = 130
"""The exit codes of a run with a wrong number, and of one that was interrupted before its check."""


class Plan(msgspec.Struct, frozen=True):
    """The options of the command line."""

    seconds: float | None = None
    seed: int = 1
    rate: float = 400
    speed: float = 60
    port: int | None = None
    data: Path | None = None


class Demo:
    """One run of the demo. ``run`` returns the exit code: 0, or 1 if a number is wrong."""

    def __init__(
        self, settings: Settings, plan: Plan, stop: threading.Event, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._stop = stop
        self._clock = clock or SystemClock()
        self._begun = self._clock.monotonic()
        self._reported: tuple[dict[str, int], dict[str, int]] | None = None
        self._reported_at = 0.0
        self._report = Report()
        self._graph = App.load(str(SHOP)).graph()

    def run(self) -> int:
        """Starts everything, runs the shop, and checks the numbers if the run has a time limit."""
        folder = _folder(self._plan.data)
        java.require()
        self._report.begin(self._plan.seed, self._plan.rate, self._plan.speed, folder)
        code = self._run(self._place(folder))
        if self._plan.data is None and code != WRONG:
            shutil.rmtree(folder, ignore_errors=True)
        return code

    def _run(self, settings: Settings) -> int:
        views = list(self._graph.views)
        try:
            with (
                Node(settings, SHOP, self._graph, stop=self._stop, java_options=JAVA_OPTIONS) as node,
                Page(node.url, views, node.settings.console_token) as page,
            ):
                self._start(node, page)
                self._await(node, page, "", self._traffic_limit_s(), lambda: _running(node, "traffic"))
                what = "the views to catch up with the log"
                self._await(
                    node, page, what, CAUGHT_UP_S, partial(self._lag, Client(node.settings.access), page)
                )
                return self._check(node, page)
        except Interrupted:
            self._report.say("stopped")
            return 0 if self._plan.seconds is None else INTERRUPTED

    def _place(self, folder: Path) -> Settings:
        """The user's settings, with all data of this run in one folder, and with free ports."""
        places = {"view_tables": f"sqlite:{folder / 'views'}"}
        if self._settings.embedded is not None:
            places["log"] = f"embedded:{folder}"
        console = (
            _port_or_any(self._settings.console_host, self._settings.console_port)
            if self._plan.port is None
            else self._plan.port
        )
        broker = _port_or_any(self._settings.host, self._settings.broker_port)
        return msgspec.structs.replace(self._settings, console_port=console, broker_port=broker, **places)

    def _start(self, node: Node, page: Page) -> None:
        """Starts the log, then Spark and the console, then the traffic, and reports the time of each."""
        node.start_log()
        _ensure_no_records(Client(node.settings.access), node.settings.log)
        self._report.ready("log", node.settings.bootstrap, self._elapsed())
        self._report.say("starting Spark and the console …")
        node.start_parts()
        self._report.ready("Spark", node.settings.spark, self._elapsed())
        page.follow(self._clock)
        self._report.page(node.url)
        node.supervisor.start(self._traffic(node))

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._begun

    def _traffic(self, node: Node) -> Part:
        plan = self._plan
        options = {"--seed": plan.seed, "--rate": plan.rate, "--speed": plan.speed, "--seconds": plan.seconds}
        arguments = [
            text for option, value in options.items() if value is not None for text in (option, str(value))
        ]
        return node.part("traffic", *arguments, str(_tally(node)))

    def _traffic_limit_s(self) -> float:
        return math.inf if self._plan.seconds is None else self._plan.seconds + TRAFFIC_LATE_S

    def _await(self, node: Node, page: Page, what: str, limit_s: float, missing: Callable[[], str]) -> None:
        """Waits until ``missing`` returns an empty text, and reports progress.

        MachineError with that text after the limit.
        """
        if what:
            self._report.say(f"waiting for {what}, {limit_s:.0f} s at most")
        limit = self._clock.monotonic() + limit_s
        while reason := missing():
            node.supervisor.check()
            self._report_progress(node, page)
            if self._clock.monotonic() > limit:
                raise MachineError(f"gave up waiting: {reason}", hint=f"see {node.folder / 'logs'}")
            if self._stop.wait(LOOK_S):
                raise Interrupted

    def _report_progress(self, node: Node, page: Page) -> None:
        """Reports the first row at once, and then changes every few seconds."""
        rows, restarts = page.rows_seen(), node.supervisor.restarts()
        is_due = self._elapsed() >= self._reported_at + PROGRESS_S
        if rows and self._reported is None:
            self._report.ready("first row on the page", "", self._elapsed())
        elif rows and is_due and (rows, restarts) != self._reported:
            self._report.progress(self._elapsed(), rows, restarts)
        else:
            return
        self._reported, self._reported_at = (rows, restarts), self._elapsed()

    def _lag(self, client: Client, page: Page) -> str:
        """The lag of the first view that lags, or whose table does; empty if there is none."""
        try:
            for name, view in self._graph.views.items():
                ends = client.end_offsets(stream.topic for stream in self._graph.inputs(view).values())
                done = client.committed(f"headwater.{name}", ends)
                lag = sum(max(0, end - done.get(place, 0)) for place, end in ends.items())
                if lag:
                    return f"{name} has {lag} records of its inputs still to read"
            return _table_lag(client, page, list(self._graph.views))
        except HeadwaterError as error:
            return str(error)

    def _check(self, node: Node, page: Page) -> int:
        """Compares the rows of the page with a batch run and with the generator, and prints the verdict."""
        shown = {name: page.rows(name) for name in self._graph.views}
        client = Client(node.settings.access)
        figures = from_json(_tally(node).read_bytes(), Figures)
        invalid = {
            topic: len({record.key() for record in client.read([f"{topic}.invalid"])})
            for topic in TOPICS.values()
        }
        delays = latency.delays(client.read(TOPICS.values()), page.seen())
        node.supervisor.stop("pipeline")
        batch = self._batch(node, page)
        sums = check.sum_differences(shown, figures)
        views = [
            ViewReport(
                name,
                rows=len(shown[name]),
                batch=check.differences(name, view.key, shown[name], list(batch[name].values())),
                sums=sums[name],
                delays=delays[name],
            )
            for name, view in self._graph.views.items()
        ]
        right = self._report.verdict(
            views, figures, check.invalid_differences(invalid, figures), node.supervisor.restarts()
        )
        return 0 if right else WRONG

    def _batch(self, node: Node, page: Page) -> Mapping[str, Mapping[str, check.Row]]:
        """The same views computed by a batch run over the same log, in a process of its own."""
        out = node.folder / "batch.json"
        node.supervisor.start(node.part("batch", str(SHOP), str(out)))
        self._await(node, page, "a batch run over the whole log", BATCH_S, lambda: _running(node, "batch"))
        return from_json(out.read_bytes(), dict[str, dict[str, check.Row]])


def _running(node: Node, part: str) -> str:
    return "" if node.supervisor.exit_code(part) == 0 else f"the {part} process still runs"


def _tally(node: Node) -> Path:
    return node.folder / "tally.json"


def _table_lag(client: Client, page: Page, views: list[str]) -> str:
    for name in views:
        offsets, made = page.position(name).of(name), newest(client, name)
        ends = made.outputs if made else {p: end for (_, p), end in client.end_offsets([name]).items()}
        lag = sum(max(0, end - offsets.get(partition, 0)) for partition, end in ends.items())
        if lag:
            return f"the table of {name} lacks {lag} records of its topic"
    return ""


def _ensure_no_records(client: Client, log: str) -> None:
    """UsageError for a log with records of an earlier run: the check counts whole topics."""
    if any(client.end_offsets(TOPICS.values()).values()):
        raise UsageError(
            f"the log {log} already has records of a shop",
            hint="use an empty log, or the embedded one with --data and a new folder",
        )


def _port_or_any(host: str, port: int) -> int:
    try:
        return ensure_free(host, port, "")
    except MachineError:
        return 0


def _folder(wanted: Path | None) -> Path:
    """The folder of the run: the given one, or a temporary one, which is kept only if a number is wrong."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    if any(make_folder(wanted).iterdir()):
        raise UsageError(f"data folder {wanted} is not empty", hint="the demo needs an empty folder")
    return wanted.absolute()
