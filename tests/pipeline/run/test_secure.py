"""A view over a log with TLS and users: Spark reads, writes and commits as the user of the settings, and shows the password nowhere."""

import pytest

from headwater.pipeline.topics import Topics
from support.ordershop import Shop, orders
from support.servers import wait_until

pytestmark = pytest.mark.spark


def test_a_view_runs_over_tls_as_a_user_and_no_file_holds_the_password(
    spark, spark_folder, guarded_broker, tmp_path
):
    process, settings = guarded_broker
    more = {key: getattr(settings, key) for key in ("log", "log_user", "log_password", "log_ca")}
    shop = Shop(process.bootstrap, tmp_path / "app", **more)
    app = shop.app()
    view = shop.name("totals")
    app.sql(view, "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")
    shop.make("orders")
    shop.send([*orders(30), b"bad"])
    ends = Topics(shop.log).ends([shop.name("orders")])
    assert sum(ends[shop.name("orders")].values()) == 31
    shop.run(app, lambda _: wait_until(lambda: shop.committed(view) == ends, what="the view's positions"))

    assert {key: row["n"] for key, row in shop.table(view).items()} == {"de": 10, "fr": 10, "us": 10}
    assert len(shop.records(shop.name("orders.invalid"))) == 1
    files = [
        file for folder in (tmp_path / "app", spark_folder) for file in folder.rglob("*") if file.is_file()
    ]
    assert spark_folder / "logs" / "spark.log" in files
    assert [file for file in files if b"horse" in file.read_bytes()] == []
