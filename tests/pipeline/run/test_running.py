"""An application from Python: `app.running()` as a notebook uses it, with its log, console, views and sinks."""

import json
import sqlite3
import urllib.request
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.client.client import Client
from headwater.config import Settings
from support.servers import wait_until

pytestmark = pytest.mark.spark
AT = datetime(2026, 1, 5, 9, tzinfo=UTC)


class Order(hw.Event):
    id: int
    country: str
    price: Decimal
    at: datetime


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("running")


@pytest.fixture(scope="module")
def app(folder):
    app = hw.App("shop")
    orders = app.stream("orders", Order, key="id", time="at")

    @app.view(key="country")
    def revenue(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(F.sum("price").alias("total"), F.max("at").alias("last"))

    app.sink(revenue, hw.sink.Sqlite(str(folder / "revenue.db"), table="revenue"))
    app.capture("files", hw.capture.Sqlite(database(folder), ["product"]))
    app.orders = orders
    return app


def database(folder) -> str:
    """A database with one product."""
    path = str(folder / "shop.db")
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE product (id INTEGER PRIMARY KEY)")
        made.execute("INSERT INTO product VALUES (1)")
    return path


@pytest.fixture(scope="module")
def running(app, folder, spark):
    settings = Settings(
        log=f"embedded:{folder}/log",
        view_tables=f"sqlite:{folder}/log/views",
        broker_port=0,
        console_port=0,
        partitions=1,
        trigger_ms=0,
    )
    with app.running(settings) as running:
        yield running


def test_what_is_sent_is_in_the_rows_with_python_values(running, app):
    first = Order(1, "DE", Decimal("9.50"), AT)
    sent = running.send(app.orders, [first, Order(2, "DE", Decimal("0.50"), AT)])
    rows = running.rows("revenue", at_least=sent, timeout=60)
    assert rows == [{"country": "DE", "total": Decimal(10), "last": AT}]

    sent = running.send("orders", Order(3, "AT", Decimal(1), AT))
    frame = running.rows(app.graph().views["revenue"], at_least=sent, timeout=60).to_pandas()
    assert list(frame["country"]) == ["AT", "DE"]
    assert list(frame["total"]) == [Decimal(1), Decimal(10)]


def test_captures_run_too(running):
    client = Client(running.settings.access)
    wait_until(lambda: sum(client.end_offsets(["files.product"]).values()) > 0, 60, "the product")
    client.close()


def test_an_application_that_planning_refuses_touches_no_database(folder, spark, tmp_path):
    settings = Settings(
        log=f"embedded:{tmp_path}", view_tables=f"sqlite:{tmp_path}/views", broker_port=0, console_port=0
    )
    wrong = hw.App("wrong")
    wrong.stream("orders", Order, key="id", time="at")
    wrong.capture("files", hw.capture.Sqlite(database(tmp_path), ["product"]))

    @wrong.view(key="id")
    def v(orders: DataFrame) -> DataFrame:
        return orders.select(*map(F.col, ["id", "coun" + "ri"]))

    with pytest.raises(hw.UsageError, match="view 'v': "), wrong.running(settings):
        pass
    with sqlite3.connect(tmp_path / "shop.db") as left:
        assert left.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


def test_console_and_sinks_run_too(running, folder):
    sent = running.send("orders", Order(9, "FR", Decimal(2), AT))
    running.wait("revenue", sent, timeout=60)

    def sink_has_it():
        with sqlite3.connect(folder / "revenue.db") as database:
            return database.execute("SELECT 1 FROM revenue WHERE country = 'FR'").fetchone()

    wait_until(sink_has_it, 60, "the row in the sink")
    with urllib.request.urlopen(f"{running.url}/views/revenue?country=FR") as answer:  # noqa: S310  our own address
        assert [row["country"] for row in json.load(answer)["rows"]] == ["FR"]


@pytest.mark.parametrize("call", ["rows", "wait"])
def test_an_unknown_view_is_refused_with_the_names_there_are(running, call):
    with pytest.raises(hw.UsageError, match="unknown view 'revenu'; expected revenue"):
        getattr(running, call)("revenu", at_least="0~orders:0=1")


def test_a_position_that_is_not_reached_in_time_is_an_error(running):
    with pytest.raises(hw.NotReachedError):
        running.rows("revenue", at_least="0~orders:0=1000000", timeout=0.2)


def test_it_can_be_started_again_and_has_its_rows(app, folder, spark):
    settings = Settings(
        log=f"embedded:{folder}/again",
        view_tables=f"sqlite:{folder}/again/views",
        broker_port=0,
        console_port=0,
    )
    plain = hw.App("again")
    plain.stream("orders", Order, key="id", time="at")
    plain.sql("counts", "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")
    with plain.running(settings) as first:
        sent = first.send("orders", Order(1, "DE", Decimal(1), AT))
        assert first.rows("counts", at_least=sent, timeout=60) == [{"country": "DE", "n": 1}]
    with plain.running(settings) as second:
        assert second.rows("counts", at_least=sent, timeout=60) == [{"country": "DE", "n": 1}]
