"""Silence: rows of plain Spark aggregates become complete by the clock, without new records and without batches."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.errors import FencedError
from headwater.follow.follower import Follower
from headwater.follow.results import results
from headwater.operate.views.rebuild import Rebuild
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.time.open_ends import ENDS_MAX, ends_in, open_ends
from headwater.pipeline.topics import Topics
from headwater.position import Position
from headwater.result import Result
from headwater.testing import SettableClock
from headwater.view.tables import completeness
from support.ordershop import Order, Shop
from support.servers import wait_until

SECOND = 1_000_000
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)

seconds = st.lists(st.integers(-100, 100_000), max_size=100)


@given(ends=seconds, watermark=st.integers(-50, 50_000))
def test_of_many_ends_the_first_and_the_last_are_known_and_none_that_was_passed(ends, watermark):
    after = sorted({end for end in ends if end > watermark})
    rows = pa.table({"_until": pa.array([*(end * SECOND for end in ends), None], pa.int64())})

    for found in (
        ends_in(rows, watermark * SECOND),
        open_ends([end * SECOND for end in ends], watermark * SECOND),
    ):
        assert list(found) == sorted(set(found))
        assert {end // SECOND for end in found} <= set(after)
        assert found[:1] == tuple(end * SECOND for end in after[:1])
        assert found[-16:] == tuple(end * SECOND for end in after[-16:])
        assert len(found) == min(len(after), ENDS_MAX)


def test_an_end_within_a_second_counts_at_the_end_of_the_second():
    rows = pa.table({"_until": pa.array([1, SECOND, SECOND + 1], pa.int64())})
    assert ends_in(rows, 0) == open_ends([1, SECOND, SECOND + 1], 0) == (SECOND, 2 * SECOND)
    assert ends_in(pa.table({"_key": ["a"]}), 0) == ()


# ---- through Spark -------------------------------------------------------------------------------------


class Idle:
    """The views of README, and two more, on an application that hears nothing."""

    def __init__(self, shop: Shop, *, alone: bool = False) -> None:
        """``alone``: with the first view only."""
        self.shop = shop
        self.clock = SettableClock()
        self.names = [shop.name(each) for each in ("revenue", "per_minute", "starts", "first")]
        self.app = hw.App("shop")
        self.app.stream(
            "orders", Order, key="order_id", time="at", delay="10 minutes", topic=shop.name("orders")
        )
        revenue, per_minute, starts, first = self.names

        @self.app.view(key=["window", "country"], name=revenue)
        def revenue(orders):
            return orders.groupBy(F.window("at", "5 minutes"), "country").agg(F.sum("cents").alias("revenue"))

        if alone:
            self.names = self.names[:1]
            return
        grouped = "FROM orders GROUP BY window(at, '1 minute')"
        self.app.sql(per_minute, f"SELECT window, count(*) AS orders {grouped}", key=["window"])
        self.app.sql(starts, f"SELECT window.start AS minute, count(*) AS n {grouped}", key="minute")
        self.app.view(key="order_id", name=first)(lambda orders: orders.dropDuplicates(["order_id", "at"]))

    @contextmanager
    def running(self) -> Iterator[Runner]:
        with self.shop.running(self.app, self.clock) as runner:
            wait_until(runner.caught_up, 120, "catching up")
            yield runner

    def last(self) -> list[Result]:
        client = Client(self.shop.bootstrap)
        return [results(client, name)[-1] for name in self.names]

    def published(self) -> int:
        """How many results there are."""
        return sum(
            Client(self.shop.bootstrap).end_offsets([f"{name}.progress" for name in self.names]).values()
        )

    def complete(self) -> list[str]:
        """Up to when a reader of each view has complete rows, as the console shows it."""
        found = []
        with Follower(self.shop.log) as follower:
            for name, last in zip(self.names, self.last(), strict=True):
                follower.follow(name)
                wait_until(lambda name=name: follower.poll(0.05) is not None and follower.caught_up(name), 30)
                reached = follower.complete(name, Position({name: last.outputs}))
                found.append(completeness.text(reached)[11:16])
        return found


def order(n: int, minute: float, country: str = "de") -> Order:
    return Order(n, 1, country, 100, BEGIN + timedelta(minutes=minute))


def at_least(idle: Idle, *times: str) -> None:
    wait_until(lambda: all(a >= b for a, b in zip(idle.complete(), times, strict=True)), 30, f"{times}")


@pytest.mark.spark
def test_the_last_windows_become_complete_in_silence_once_everything_is_read(shop):
    """Windows of five minutes and of one, one whose start alone is shown, and rows without windows."""
    shop.make("orders")
    idle = Idle(shop)
    shop.send([order(1, 0), order(2, 3.5), order(3, 4.5, "fr")])
    with idle.running() as runner:
        publishers = [view.publisher for view in runner.views.values()]
        batches = [publisher.batches for publisher in publishers]
        idle.clock.advance(60 + 6 * 60)  # idle, and from 08:54:30 to 09:00:30
        for publisher in publishers:
            publisher.say_complete()
        assert idle.complete() == ["00:00"] * 4, "no window has ended yet"
        idle.clock.advance(3 * 60)
        at_least(idle, "00:00", "09:03", "09:03", "00:00")
        with runner.held():
            shop.send([order(4, 4.6)])
            idle.clock.advance(3600)
            before = idle.published()
            for publisher in publishers:
                publisher.say_complete()
            assert idle.published() == before, "a record is unread"
        wait_until(runner.caught_up, 60, "the last order")
        assert [publisher.batches for publisher in publishers] == [count + 1 for count in batches]
        idle.clock.advance(60 + 9.5 * 60)  # idle, and from 08:54:36 to 09:04:06
        at_least(idle, "08:54", "09:04", "09:04", "08:54")

    with idle.running() as runner:  # a restart in the middle of the silence
        publishers = [view.publisher for view in runner.views.values()]
        assert idle.complete() == ["08:54", "09:04", "09:04", "08:54"]
        idle.clock.advance(60 + 11 * 60)
        at_least(idle, "09:05", "09:05", "09:05", "09:04")
        before = idle.published()
        for _ in range(3):
            idle.clock.advance(86_400)
            for publisher in publishers:
                publisher.say_complete()
        assert idle.published() == before, "there is nothing more to complete"
        assert [last.ends for last in idle.last()] == [()] * 4
        assert [publisher.batches for publisher in publishers] == [0] * 4

    rows = [shop.table(name) for name in idle.names]
    for name in idle.names:
        shop.lose_commit(name)  # the batch is repeated, by the time that it had
    shop.send([order(5, 0.5)])
    with idle.running():
        assert [last.late for last in idle.last()] == [1] * 4
    assert [shop.table(name) for name in idle.names] == rows, "what is complete has changed"


@pytest.mark.spark
def test_a_rebuild_in_silence_takes_the_silence_over(shop):
    shop.make("orders")
    idle = Idle(shop, alone=True)
    shop.send([order(1, 0)])
    with idle.running():
        idle.clock.advance(3600)
        at_least(idle, "09:05")
    Rebuild(idle.app, shop.settings, idle.names[0], SystemClock()).run()
    assert idle.complete() < ["09:05"]
    with idle.running():
        at_least(idle, "09:05")


@pytest.mark.spark
def test_a_driver_that_was_replaced_notices_it_in_silence(shop):
    shop.make("orders")
    idle = Idle(shop, alone=True)
    shop.send([order(1, 0)])
    with idle.running() as runner:
        runner.watch.follow_s = 0.0
        run = idle.last()[0].run
        with closing(RunResults(Topics(shop.log), idle.names[0], run, SystemClock())) as successor:
            successor.take_over()
        idle.clock.advance(3600)
        with pytest.raises(FencedError, match="run by another driver"):
            wait_until(lambda: runner.wait(0.1), 60, "the end of the runner")
