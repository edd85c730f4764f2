"""The point of capture: stores that follow the database's own log are in step with it; those that are written beside it drift."""

import sys
import threading
from pathlib import Path

import pytest

from headwater.capture.loop.feed import Feed
from headwater.declare.app import App
from headwater.sink.loop.sinks import Sinks
from support.captured import database, running
from support.databases import RedisProcess
from support.servers import BrokerProcess, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "instep"


@pytest.fixture
def cache(tmp_path):
    process = RedisProcess(tmp_path / "redis")
    process.start()
    yield process
    process.end()


@pytest.fixture
def url(postgres, cache, tmp_path, monkeypatch) -> str:
    """The shop's database; the example finds it and the cache by its environment."""
    url = database(postgres.url)
    for name, value in (("DATABASE", url), ("CACHE", cache.url), ("FOLDER", str(tmp_path))):
        monkeypatch.setenv(f"SHOP_{name}", value)
    return url


@pytest.fixture
def shop(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import shop

    yield shop
    del sys.modules["shop"]


def test_captured_stores_are_in_step_and_those_written_twice_drift(
    shop, url, cache, own_broker: BrokerProcess, tmp_path
):
    shop.create(url)
    graph = App.load(str(EXAMPLE / "app.py")).graph()
    captured = graph.captures["shop"].database
    sinks, stop = Sinks(own_broker.bootstrap, graph, tmp_path), threading.Event()
    following = threading.Thread(target=sinks.run, args=(stop,))
    following.start()
    try:
        with running(Feed("shop", captured.open("shop", tmp_path), own_broker.bootstrap)):
            shop.trade(url, cache.url, tmp_path / "twice.db")
            truth = shop.rows(url)

            def stores() -> dict:
                return {
                    "cache, captured": shop.cached(cache.url, "product:"),
                    "search, captured": shop.indexed(f"{tmp_path}/search/shop.public.product"),
                    "warehouse, captured": shop.delta(f"{tmp_path}/warehouse/shop.public.product"),
                }

            wait_until(lambda: all(rows == truth for rows in stores().values()), 60, "all stores in step")
            both = stores() | {
                "cache, written twice": shop.cached(cache.url, "twice:"),
                "warehouse, written twice": shop.warehoused(tmp_path / "twice.db"),
            }
    finally:
        stop.set()
        following.join(120)
        captured.remove("shop")
    assert shop.report(truth, both).count("\n") == 5
    wrong = {name: len(shop.differing(truth, rows)) for name, rows in both.items()}
    assert wrong["cache, captured"] == wrong["search, captured"] == wrong["warehouse, captured"] == 0
    assert wrong["cache, written twice"] > 0
    assert wrong["warehouse, written twice"] > 0
