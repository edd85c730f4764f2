"""An application that only planning can refuse touches nothing: no database, no store and no topic."""

import signal
import sqlite3

import psycopg
import pytest

from headwater.client.client import Client
from support.servers import BrokerProcess, wait_until
from support.upprocess import UpProcess

pytestmark = [pytest.mark.own_spark, pytest.mark.timeout(600)]

WRONG = """
    import headwater as hw
    from pyspark.sql import functions as F

    app = hw.App("shop")

    class Order(hw.Event):
        id: int
        country: str

    class Product(hw.Row):
        id: int

    app.capture("files", hw.capture.Sqlite({folder!r} + "/shop.db", ["product"]))
    app.capture("servers", hw.capture.Postgres({postgres!r}, ["public.refused"]))
    app.stream("orders", Order, key="id", time=hw.ARRIVAL)
    app.table("product", Product, key="id", topic="files.product", envelope="debezium")
    app.sql("good", "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")

    @app.view(key="id")
    def wrong(orders):
        return orders.select(*map(F.col, ["id", "coun" + "ry"]))

    app.sink("orders", hw.sink.Sqlite({folder!r} + "/out.db"))
    app.sink("good", hw.sink.Parquet({folder!r} + "/lake"))
    app.sink("good", hw.sink.Call(print), name="told")
"""


def of_postgres(url):
    with psycopg.connect(url) as connection:
        slots = connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
        publications = connection.execute("SELECT pubname FROM pg_publication").fetchall()
    return slots, publications


@pytest.fixture
def up(tmp_path, postgres):
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE product (id INTEGER PRIMARY KEY)")
    with psycopg.connect(postgres.url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS public.refused (id INT PRIMARY KEY)")
    running = UpProcess(tmp_path)
    running.write(WRONG.format(folder=str(tmp_path), postgres=postgres.url))
    yield running
    if running.process is not None:
        running.process.kill()


def test_a_wrong_plan_leaves_nothing_behind(up, postgres, tmp_path):
    before = of_postgres(postgres.url)
    up.start()
    wait_until(lambda: up.process.poll() is not None, 60, "its end")
    assert up.process.returncode == 2
    assert "headwater: view 'wrong': " in up.said().splitlines()[-1]

    with sqlite3.connect(tmp_path / "shop.db") as database:
        made = database.execute("SELECT type, name FROM sqlite_master").fetchall()
    assert made == [("table", "product")]
    assert of_postgres(postgres.url) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["app.py", "data", "shop.db", "up.txt"]
    broker = BrokerProcess(up.data)
    broker.start()
    try:
        assert set(Client(broker.bootstrap).partitions()) <= {"__consumer_offsets", "__transaction_state"}
    finally:
        broker.end(signal.SIGKILL)
