"""Rebuild: readers see neither a gap nor a step back, whatever ends it, and the old run can be had again."""

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import headwater as hw
from headwater.client import Client
from headwater.errors import UsageError
from headwater.operate.rebuild import Rebuild
from headwater.pipeline.points import SWAP_POINTS
from headwater.pipeline.runner import Runner
from headwater.result import current, results
from ordershop import Shop, orders
from servers import wait_until

pytestmark = pytest.mark.spark

ALL = "SELECT country, sum(cents) AS cents, count(*) AS n FROM orders GROUP BY country"
BIG = "SELECT country, sum(cents) AS cents, count(*) AS n FROM orders WHERE country <> 'fr' AND cents > 20 GROUP BY country"
APP = """
    import headwater as hw
    from ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("totals", "{query}", key="country")
"""
KILLED = """
    import os, sys
    from pathlib import Path
    import headwater as hw
    from headwater.config import load
    from headwater.operate.rebuild import Rebuild

    class Killed(Rebuild):
        def _swap(self, run):
            Path(os.environ["CRASH_FILE"]).write_text(sys.argv[2])  # catching up meets the same points before
            return super()._swap(run)

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

    swapped = Rebuild(app(shop, view, BIG, **more), shop.settings, view).run()

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
    """A pipeline with its first batch behind it."""
    shop.make("orders")
    shop.send(orders(30))
    runner = Runner(app(shop, view), shop.settings)
    runner.start()
    try:
        wait_until(lambda: len(shop.table(view)) == 3, 60, "the first batch")
        yield runner
    finally:
        runner.stop()


def test_a_running_pipeline_goes_on_with_the_new_run(shop):
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
    with pytest.raises(UsageError, match="unknown view 'nobody'"):
        Rebuild(app(shop, view), shop.settings, "nobody")
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
