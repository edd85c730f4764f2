"""Rebuild: readers see neither a gap nor a step back, whatever ends it, and the old run can be had again."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicPartition

import headwater as hw
from headwater.client.client import Client, admin
from headwater.errors import UsageError
from headwater.follow.results import current, results
from headwater.operate.log.topic import describe
from headwater.operate.views.rebuild import Rebuild
from headwater.pipeline.kill_points import SWAP_POINTS
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.time.watermark import TICK_PARTITIONS
from headwater.pipeline.topics import records_between
from headwater.result import topic
from support.commandline import Outcome, complaint, headwater
from support.ordershop import Shop, orders
from support.servers import wait_until

pytestmark = pytest.mark.spark

ALL = "SELECT country, sum(cents) AS cents, count(*) AS n FROM orders GROUP BY country"
BIG = "SELECT country, sum(cents) AS cents, count(*) AS n FROM orders WHERE country <> 'fr' AND cents > 20 GROUP BY country"
APP = """
    import headwater as hw
    from support.ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("totals", "{query}", key="country")
"""
LOSSY_APP = """
    import headwater as hw
    from support.ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", topic="{topic}")
    app.sql("{view}", "{query}", key="country")
"""
KILLED = """
    import os, sys
    from pathlib import Path
    import headwater as hw
    from headwater.config import load
    from headwater.operate.views.rebuild import Rebuild

    class Killed(Rebuild):
        def _swap(self, run, say):
            Path(os.environ["CRASH_FILE"]).write_text(sys.argv[2])  # catching up meets the same points before
            return super()._swap(run, say)

    Killed(hw.App.load(sys.argv[1]), load(), "totals").run()
"""


def app(shop: Shop, view: str, query: str = ALL, **more: str) -> hw.App:
    declared = shop.app()
    declared.sql(view, query, key="country", **more)
    return declared


def seen(shop: Shop, view: str) -> list[tuple[str, int, int | None]]:
    """Every change of the view in order: country, revision, number; None for one that is gone."""
    return [
        (key, row["_revision"], row["n"]) if row else (key, 0, None) for key, row, _ in shop.records(view)
    ]


def run_of(shop: Shop, view: str) -> str:
    return current(results(Client(shop.bootstrap), view)).run


@pytest.mark.parametrize("more", [{}, {"forget": "90 days"}], ids=["plain", "forget"])
def test_a_new_version_takes_the_place_of_the_old_in_one_step_and_back(shop, more):
    shop.make("orders")
    view = shop.name("totals")
    for start in (0, 30):
        shop.send(orders(30, start=start))
        Runner(app(shop, view, **more), shop.settings).once()
    before, first = seen(shop, view), run_of(shop, view)
    for partition in range(TICK_PARTITIONS):  # of all other views
        shop.send_tick(partition)

    said = []
    swapped = Rebuild(app(shop, view, BIG, **more), shop.settings, view).run(said.append)

    assert said[-2:] == ["60 of 60 records", f"{swapped.changed:,} rows differed"]
    assert all(line.endswith(" of 60 records") for line in said[:-1]), "ticks are not records"
    assert run_of(shop, view) == swapped.run != first
    news = seen(shop, view)[len(before) :]
    assert sorted(news) == [("de", 3, 13), ("fr", 0, None), ("us", 3, 13)]
    assert not any(name.startswith(view) and "shadow" in name for name in Client(shop.bootstrap).partitions())

    shop.send(orders(30, start=60))
    Runner(app(shop, view, BIG, **more), shop.settings).once()
    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 23, "us": 23}
    assert {r for key, r, _ in seen(shop, view)[-2:]} == {4}

    unfinished = str(uuid.uuid4())
    Runner(app(shop, view, **more), shop.settings, shadows={view: unfinished}).once()
    Rebuild(app(shop, view, **more), shop.settings, view).back()
    assert run_of(shop, view) == first
    kept = {folder.name for folder in (shop.settings.data / "checkpoints" / view).iterdir()}
    assert kept == {first, swapped.run, unfinished}
    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 30, "us": 30, "fr": 30}
    shop.send(orders(3, start=90))
    Runner(app(shop, view, **more), shop.settings).once()
    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 31, "us": 31, "fr": 31}


@contextmanager
def running(shop: Shop, view: str) -> Iterator[Runner]:
    """A pipeline after its first batch."""
    shop.make("orders")
    shop.send(orders(30))
    runner = Runner(app(shop, view), shop.settings)
    runner.start()
    try:
        wait_until(lambda: len(shop.table(view)) == 3, 60, "the first batch")
        yield runner
    finally:
        runner.stop()


def test_a_running_pipeline_continues_with_the_new_run(shop):
    view = shop.name("totals")
    with running(shop, view) as runner:
        first = run_of(shop, view)
        Rebuild(app(shop, view), shop.settings, view).run()
        assert run_of(shop, view) != first
        shop.send(orders(30, start=30))
        wait_until(
            lambda: runner.wait(0) or {row["n"] for row in shop.table(view).values()} == {20},
            120,
            "a batch of the new run by the old process",
        )
        assert [row[1] for row in seen(shop, view)] == [1, 1, 1, 2, 2, 2]


def test_a_running_pipeline_of_another_version_ends_and_says_so(shop):
    view = shop.name("totals")
    with running(shop, view) as runner:
        Rebuild(app(shop, view, BIG), shop.settings, view).run()
        shop.send(orders(30, start=30))
        with pytest.raises(UsageError, match="rebuilt by another version of the application"):
            wait_until(lambda: runner.wait(0.1), 60, "the end of the old version")


def test_what_cannot_be_rebuilt_is_refused(shop):
    shop.make("orders")
    view = shop.name("totals")
    with pytest.raises(UsageError, match="unknown view 'unknown'"):
        Rebuild(app(shop, view), shop.settings, "unknown")
    with pytest.raises(UsageError, match="has no results to be rebuilt"):
        Rebuild(app(shop, view), shop.settings, view).run()
    shop.send(orders(3))
    Runner(app(shop, view), shop.settings).once()
    with pytest.raises(UsageError, match="has no earlier run to go back to"):
        Rebuild(app(shop, view), shop.settings, view).back()


@pytest.mark.timeout(1200)
def test_a_rebuild_that_is_killed_can_be_begun_again(shop, tmp_path):
    """At each point of the swap: readers see the old run or the new one, whole, and the next try ends the work."""
    points = SWAP_POINTS if "CRASH_ROUNDS" in os.environ else ("before commit",)
    shop.prefix = ""
    shop.make("orders")
    versions = [(tmp_path / f"version{n}.py", query) for n, query in enumerate((ALL, BIG))]
    for file, query in versions:
        file.write_text(textwrap.dedent(APP).format(query=query))
    shop.send(orders(60))
    Runner(hw.App.load(str(versions[0][0])), shop.settings).once()
    answers = {ALL: {"de": 20, "fr": 20, "us": 20}, BIG: {"de": 13, "us": 13}}
    environment = os.environ | shop.settings.environ() | {"CRASH_FILE": str(tmp_path / "crash")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    for n, point in enumerate(points):
        (_, old), (file, new) = versions[n % 2], versions[(n + 1) % 2]
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(file), point]
        ended = subprocess.run(command, env=environment, check=False, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
        assert numbers(shop) == answers[new if point == "after commit" else old]

        swapped = Rebuild(hw.App.load(str(file)), shop.settings, "totals").run()
        assert run_of(shop, "totals") == swapped.run
        assert numbers(shop) == answers[new]
    revisions: dict[str, int] = {}
    for key, revision, _ in seen(shop, "totals"):
        assert revision in {0, revisions.get(key, 0) + 1}
        revisions[key] = revision


def numbers(shop: Shop) -> dict[str, int]:
    return {key: row["n"] for key, row in shop.table("totals").items()}


def slow_app(shop: Shop, view: str) -> hw.App:
    """A millisecond for each order."""
    declared = shop.app()

    @declared.view(key="country", name=view)
    def totals(orders):
        from pyspark.sql import functions as F  # noqa: N812

        def slowly(country):
            threading.Event().wait(0.001)
            return country

        named = orders.withColumn("country", F.udf(slowly, "string")("country"))
        return named.groupBy("country").agg(F.count("*").alias("n"))

    return declared


class Watched(Rebuild):
    """Notes how often it has caught up, and what it lacks when it swaps."""

    near_s = 0.0

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.near_s = 5.0
        self.caught_up = 0
        self.lacked: list[int] = []
        self.swaps: list[tuple[int, int]] = []

    def _catch_up(self, *given) -> None:
        super()._catch_up(*given)
        self.caught_up += 1
        self.lacked.append(records_between(self._last(given[0]).inputs, self._visible().inputs))

    def _swap(self, run, *more):
        self.swaps.append((self.caught_up, self.lacked[-1]))
        return super()._swap(run, *more)


@pytest.mark.timeout(600)
def test_under_traffic_the_live_view_is_fenced_once_little_is_missing_and_continues_with_the_new_run(shop):
    shop.make("orders")
    view, stop = shop.name("totals"), threading.Event()
    shop.send(orders(20_000))
    sent = [20_000]

    def traffic() -> None:
        while not stop.wait(0.2):
            shop.send(orders(40, start=sent[0]))
            sent[0] += 40

    with shop.running(slow_app(shop, view)) as runner:
        counted = lambda: sum(row["n"] for row in shop.table(view).values())  # noqa: E731
        wait_until(lambda: runner.wait(0) or counted() == sent[0], 120, "the first orders")
        first = run_of(shop, view)
        sender = threading.Thread(target=traffic, daemon=True)
        sender.start()
        rebuild, said = Watched(slow_app(shop, view), shop.settings, view), []
        try:
            rebuild.run(said.append)
        finally:
            stop.set()
            sender.join(60)
        first_batch = [int(line.partition(" of ")[0].replace(",", "")) for line in said if " of " in line]
        assert [read for read in first_batch if 0 < read < 20_000], "it moves within a batch"
        caught_up, lacking = rebuild.swaps[0]
        assert len(rebuild.swaps) == 1, "the live view was fenced more than once"
        assert caught_up > 1
        assert lacking < rebuild.lacked[0]
        assert run_of(shop, view) != first
        wait_until(lambda: runner.wait(0) or counted() == sent[0], 120, "all orders, by the new run")


class Interrupted(Rebuild):
    """Ends right after the fence."""

    def _visible_result(self, *_):
        raise KeyboardInterrupt


def test_a_live_view_takes_its_place_back_when_the_rebuild_that_fenced_it_is_gone(shop):
    view = shop.name("totals")
    with running(shop, view) as runner:
        runner.watch.follow_s = 3.0
        first = run_of(shop, view)
        with pytest.raises(KeyboardInterrupt):
            Interrupted(app(shop, view), shop.settings, view).run()
        shop.send(orders(30, start=30))
        wait_until(
            lambda: runner.wait(0) or {row["n"] for row in shop.table(view).values()} == {20},
            120,
            "the old run",
        )
        assert run_of(shop, view) == first
        Rebuild(app(shop, view), shop.settings, view).run()
        assert run_of(shop, view) != first


def test_a_rebuild_from_less_than_the_view_was_made_of_is_refused_until_the_loss_is_accepted(
    shop, tmp_path, capsys
):
    shop.make("orders")
    view, topic_name = shop.name("totals"), shop.name("orders")
    file = tmp_path / "app.py"
    file.write_text(textwrap.dedent(LOSSY_APP).format(topic=topic_name, view=view, query=ALL))
    shop.send(orders(30))
    Runner(app(shop, view), shop.settings).once()
    Rebuild(app(shop, view), shop.settings, view).run()
    asked, place = admin(shop.log), TopicPartition(topic_name, 0, 5)
    asked.delete_records([place])[place].result(30)

    def rebuild(*more: str) -> Outcome:
        command = ("view", "rebuild", view, str(file), *more)
        return headwater(capsys, tmp_path, *command, **shop.settings.environ())

    refused = complaint(rebuild())
    lacks = rf"got {topic_name} lacks 5 records from before 20\S+Z \({topic_name}-0 offsets 0 to 4\)"
    assert re.search(rf"{view}' cannot be rebuilt: .*{lacks}; .*; --accept-loss computes its rows", refused)
    assert sum(row["n"] for row in shop.table(view).values()) == 30
    assert rebuild("--accept-loss").code == 0
    assert sum(row["n"] for row in shop.table(view).values()) == 25
    assert rebuild().code == 0, "nothing is missing of what it is made of now"
    newest = current(results(Client(shop.bootstrap), view))
    assert newest.begun == {topic_name: {0: 5, 1: 0}}


def test_streams_and_appended_rows_are_kept_in_full_and_state_in_small_segments(shop):
    view, appended = shop.name("totals"), shop.name("each")
    declared = app(shop, view)
    declared.sql(appended, "SELECT order_id, cents FROM orders", key="order_id", append=True)
    Runner(declared, shop.settings).once()
    config = lambda name: describe(shop.log, name).config  # noqa: E731
    for name in (shop.name("orders"), appended):
        assert (config(name)["retention.ms"], config(name)["cleanup.policy"]) == ("-1", "delete")
    assert config(view)["cleanup.policy"] == "compact"
    for name in (topic(view), "headwater.ticks"):
        assert int(config(name)["segment.bytes"]) <= 16 << 20
    assert config(topic(view))["cleanup.policy"] == "compact"
