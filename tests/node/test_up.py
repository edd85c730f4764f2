"""``headwater up`` with one real application: what fails takes nothing with it, says why, and heals when it can.

The application has a database and a store that do not answer, a sink that is refused, and a view that fails on a record.
"""

import sqlite3

import pytest

from support.databases import RedisProcess
from support.servers import free_port
from support.upprocess import UpProcess, upping

pytestmark = [pytest.mark.own_spark, pytest.mark.timeout(600)]

APP = """
    from pathlib import Path
    import headwater as hw
    from pyspark.sql import functions as F

    app = hw.App("shop")

    class Order(hw.Event):
        id: int
        country: str

    app.stream("orders", Order, key="id", time=hw.ARRIVAL)
    app.sql("good", "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")

    @app.view(key="country", on_error="stop")
    def fragile(orders):
        def checked(country):
            if country == "xx" and not Path({folder!r}, "patched").exists():
                raise ValueError("no such country")
            return country

        named = orders.withColumn("country", F.udf(checked, "string")("country"))
        return named.groupBy("country").agg(F.count("*").alias("n"))

    app.capture("db", hw.capture.Postgres("postgresql://nobody@127.0.0.1:{port}/none", ["t"]))
    app.sink("good", hw.sink.Sqlite({folder!r} + "/good.db"))
    app.sink("good", hw.sink.Redis("redis://127.0.0.1:{redis}"))
    app.sink("good", hw.sink.Sqlite({folder!r} + "/none.db", columns={{"country": "NOTHING"}}), name="good.refused")
"""


class Shop:
    """The application as a user runs it, and the orders that were sent to it."""

    def __init__(self, up: UpProcess, redis_port: int) -> None:
        self.up, self.redis_port = up, redis_port
        self.sent = 0

    def send(self, *countries: str) -> None:
        keys = range(self.sent, self.sent + len(countries))
        self.up.send(
            "orders", {str(n): {"id": n, "country": name} for n, name in zip(keys, countries, strict=True)}
        )
        self.sent += len(countries)

    def is_(self, part: str, state: str) -> bool:
        """As the console says."""
        _, body = self.up.get(f"/health?part={part.replace(' ', '+')}")
        return [each["state"] for each in body.get("parts", [])] == [state]

    def rows(self) -> int:
        """The orders in the store of the sink that works."""
        with sqlite3.connect(self.up.folder / "good.db") as connection:
            try:
                return connection.execute("SELECT sum(n) FROM good").fetchone()[0] or 0
            except sqlite3.OperationalError:
                return 0


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder, redis_port = tmp_path_factory.mktemp("up"), free_port()
    app = APP.format(folder=str(folder), port=free_port(), redis=redis_port)
    with upping(folder, app) as up:
        yield Shop(up, redis_port)


def test_everything_else_works_while_a_database_and_a_store_are_away_and_a_sink_is_refused(shop):
    shop.send("de", "fr", "us")
    shop.up.until(lambda: shop.rows() == 3, "the first orders in the store that works")
    shop.up.until(lambda: shop.is_("capture db", "failing"), "notice of the database")
    states = {
        "log": "running",
        "capture db": "failing",
        "view fragile": "running",
        "view good": "running",
        "sink good.redis": "failing",
        "sink good.refused": "stopped",
        "sink good.sqlite": "running",
        "console": "running",
    }
    shop.up.until(lambda: shop.up.states() == states, "the states of all parts")
    shop.up.says(r"capture db is failing: .*127\.0\.0\.1")
    shop.up.says(r"sink good\.redis is failing: the store is away: ")
    shop.up.says(r"sink good\.refused has stopped: ")
    table = shop.up.command("status")
    assert table.returncode == 1
    assert "the store is away" in table.stdout


def test_a_store_that_comes_back_heals_its_sink(shop, tmp_path):
    redis = RedisProcess(tmp_path)
    redis.port = shop.redis_port
    redis.start()
    try:
        shop.up.until(lambda: shop.is_("sink good.redis", "running"), "its recovery")
        shop.up.says("sink good.redis has recovered, after ")
    finally:
        redis.end()


def test_a_view_that_fails_on_a_record_is_stopped_and_named_and_health_says_so(shop):
    shop.send("xx", "de")
    shop.up.until(lambda: shop.is_("view fragile", "stopped"), "its end")
    shop.up.until(lambda: shop.rows() == shop.sent, "the same orders in the other view")
    assert shop.up.get("/health?part=fragile")[0] == 503
    status, report = shop.up.get("/health?part=good")
    assert (status, report["parts"][0]["state"]) == (200, "running")
    fragile = shop.up.get("/ready?part=view+fragile")[1]["parts"][0]
    assert "no such country" in fragile["error"]
    shop.up.until(lambda: shop.up.get("/health?part=fragile")[1]["parts"][0]["lag_records"] == 2, "its lag")
    shop.up.says(r"view fragile has stopped: .*no such country")


def test_a_command_for_a_stopped_view_works_while_the_others_run_and_starts_it_again(shop):
    running = shop.up.command("view", "reset", "good")
    assert (running.returncode, "while the pipeline runs" in running.stderr) == (2, True)
    (shop.up.folder / "patched").touch()
    reset = shop.up.command("view", "reset", "fragile")
    assert reset.returncode == 0, reset.stderr
    shop.up.until(lambda: shop.is_("view fragile", "running"), "its start")
    rows = lambda: sum(row["n"] for row in shop.up.get("/views/fragile")[1].get("rows", []))  # noqa: E731
    shop.up.until(lambda: rows() == shop.sent, "all orders again")
