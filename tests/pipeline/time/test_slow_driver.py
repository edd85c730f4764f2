"""Slowness is an input of these tests: whatever makes a pipeline slow, events that come in order are never late."""

import threading
from collections.abc import Callable

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.follow.results import current, results
from headwater.pipeline.run.runner import Runner
from headwater.sink.loop.sinks import Sinks
from pipeline.orderly_traffic import Traffic
from pipeline.run.test_pace import Held
from support.ordershop import Order, Shop
from support.servers import wait_until

pytestmark = pytest.mark.spark

SLOW_S = 8
"""Four times the idle time of the streams here, and eight times their delay."""


def declared(shop: Shop) -> hw.App:
    app = hw.App("shop")
    app.stream(
        "orders",
        Order,
        key="customer_id",
        time="at",
        delay="1 second",
        idle="2 seconds",
        topic=shop.name("orders"),
    )
    return app


def counted(shop: Shop, view: str) -> int:
    return sum(row["n"] for row in shop.table(view).values())


def elapsed(seconds: float) -> Callable[[], bool]:
    clock = SystemClock()
    begun = clock.monotonic()
    return lambda: clock.monotonic() > begun + seconds


def assert_all_are_counted(shop: Shop, view: str, traffic: Traffic, runner: Runner) -> None:
    traffic.end()
    wait_until(lambda: runner.wait(0) or runner.caught_up(), 120, "all that was sent")
    last = current(results(Client(shop.log), view))
    assert last is not None
    assert (counted(shop, view), last.late) == (traffic.sent, 0)


def test_a_batch_longer_than_idle_makes_no_event_late_that_came_meanwhile(shop):
    shop.make("orders")
    view, app = shop.name("windows"), declared(shop)

    @app.view(key="window", name=view)
    def windows(orders):
        from pyspark.sql import functions as F  # noqa: N812

        def slowly(country):
            if country == "slow":
                threading.Event().wait(SLOW_S)
            return country

        return (
            orders.withColumn("country", F.udf(slowly, "string")("country"))
            .groupBy(F.window("at", "5 seconds"))
            .agg(F.count("country").alias("n"))
        )

    with shop.running(app) as runner, Traffic(shop, shop.name("orders")) as traffic:
        wait_until(lambda: runner.wait(0) or counted(shop, view) > 500, 120, "the first windows")
        traffic.send("slow")
        sent = traffic.sent
        wait_until(lambda: runner.wait(0) or counted(shop, view) > sent + 200, 120, "what came meanwhile")
        assert_all_are_counted(shop, view, traffic, runner)


def test_a_view_that_is_held_for_longer_than_idle_makes_no_event_late_that_came_meanwhile(shop, tmp_path):
    shop.make("orders")
    view, app, store = shop.name("windows"), declared(shop), Held()
    app.sql(
        view,
        "SELECT window, customer_id, count(*) AS n FROM orders GROUP BY window(at, '1 second'), customer_id",
        key=["window", "customer_id"],
        pace="sink",
    )
    app.sink(view, store, name=f"{view}.held")
    shop.settings = Settings(
        **{f: getattr(shop.settings, f) for f in ("log", "view_tables", "spark", "trigger_ms")},
        pace_records=400,
    )
    stop = threading.Event()
    following = threading.Thread(target=Sinks(shop.log, app.graph(), tmp_path).run, args=(stop,), daemon=True)
    try:
        with shop.running(app) as runner, Traffic(shop, shop.name("orders")) as traffic:
            following.start()
            wait_until(lambda: runner.wait(0) or view in runner.waiting(), 120, "the view waits")
            held = elapsed(SLOW_S)
            wait_until(lambda: runner.wait(0) or held(), 60, "a hold longer than idle")
            assert view in runner.waiting()
            store.let_go.set()
            wait_until(lambda: runner.wait(0) or view not in runner.waiting(), 120, "the view continues")
            assert_all_are_counted(shop, view, traffic, runner)
    finally:
        store.let_go.set()
        stop.set()
        following.join(120)


def test_a_slow_driver_still_sees_that_nothing_comes_and_closes_what_is_open(shop):
    """Sessions end by the clock of a driver that looks: no event is late, and none is waited for."""
    shop.make("orders")
    view, app = shop.name("sessions"), declared(shop)

    @app.view(key=["customer_id", "window"], name=view, emit="ready")
    def sessions(orders):
        return hw.sessions(orders, key="customer_id", time="at", gap="3 seconds", n=F.count("*"))

    with shop.running(app) as runner, Traffic(shop, shop.name("orders")) as traffic:
        begun = elapsed(4)
        wait_until(lambda: runner.wait(0) or begun(), 60, "some orders")
        assert counted(shop, view) == 0
        traffic.end()
        wait_until(lambda: runner.wait(0) or counted(shop, view) == traffic.sent, 120, "the sessions' ends")
        last = current(results(Client(shop.log), view))
        assert last is not None
        assert last.late == 0
