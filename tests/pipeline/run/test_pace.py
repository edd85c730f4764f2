"""A slow sink holds up the view that it follows, and nothing is lost by it."""

import threading

import pytest

from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.follow.pace import Pace
from headwater.pipeline.run.runner import Runner
from headwater.sink.loop.sinks import Sinks
from support.ordershop import orders
from support.servers import wait_until

pytestmark = pytest.mark.spark

BOUND = 1_000
FLOOD = 6_000


class Held:
    """A store that takes nothing until it is let go, and then a batch at a time."""

    kind = "held"
    typed = False

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.rows: dict[str, int] = {}
        self._upto: dict[int, int] = {}

    def check(self, feed) -> None:
        pass

    def open(self, feed):  # noqa: ARG002  one store for all
        return self

    def claim(self, partitions):
        return {p: self._upto[p] for p in partitions if p in self._upto}

    def apply(self, batch) -> None:
        assert self.let_go.wait(120)
        for change in batch.changes:
            self.rows[change.key] = self.rows.get(change.key, 0) + 1
        self._upto |= batch.upto

    def reset(self) -> None:
        self._upto = {}

    def close(self) -> None:
        pass


class Gauge(threading.Thread):
    """Watches the lag of the sink, in records, all the time."""

    def __init__(self, pace: Pace) -> None:
        super().__init__(daemon=True)
        self._pace = pace
        self._ending = threading.Event()
        self.most = 0
        self.start()

    def run(self) -> None:
        while not self._ending.wait(0.02):
            self.most = max([self.most, *(each.records for each in self._pace.trailing())])

    def end(self) -> int:
        self._ending.set()
        self.join(120)
        return self.most


def test_a_view_reads_no_faster_than_its_slowest_sink(shop, tmp_path):
    view, store = shop.name("each"), Held()
    app = shop.app()
    app.sql(view, "SELECT order_id, cents FROM orders", key="order_id", pace="sink")
    app.sink(view, store, name=f"{view}.held")
    shop.make("orders")
    shop.send(orders(FLOOD))
    shop.settings = Settings(
        **{f: getattr(shop.settings, f) for f in ("log", "view_tables", "spark", "trigger_ms")},
        pace_records=BOUND,
    )
    runner, stop = Runner(app, shop.settings), threading.Event()
    sinks = Sinks(shop.log, app.graph(), tmp_path)
    following = threading.Thread(target=sinks.run, args=(stop,), daemon=True)
    client, clock = Client(shop.log), SystemClock()
    gauge = Gauge(Pace(client, app.graph(), view, BOUND))
    runner.start()
    following.start()
    try:
        wait_until(lambda: view in runner.waiting(), 120, "the view waits")
        assert runner.waiting()[view].name == f"sink {view}.held"
        written = len(shop.records(view))
        assert BOUND // 4 < written <= BOUND
        since = clock.monotonic()
        wait_until(lambda: runner.wait(0) or clock.monotonic() > since + 3, 10, "three seconds")
        assert len(shop.records(view)) == written

        store.let_go.set()
        wait_until(lambda: runner.wait(0) or len(store.rows) == FLOOD, 180, "all rows in the store")
        assert set(store.rows.values()) == {1}
        assert gauge.end() <= BOUND
        assert runner.waiting() == {}
    finally:
        stop.set()
        runner.stop()
        following.join(120)
        client.close()
