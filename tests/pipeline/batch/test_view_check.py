"""view check: it finds what is wrong and nothing else, with late records, after a rebuild, and beside a pipeline that runs."""

import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest

import headwater as hw
from headwater.cli.main import main
from headwater.client.client import Client, producer
from headwater.errors import UsageError
from headwater.follow.results import current, results
from headwater.operate.views.check import check
from headwater.operate.views.rebuild import Rebuild
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order, Shop, orders
from support.servers import wait_until

pytestmark = pytest.mark.spark

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
TOTALS = "SELECT country, sum(cents) AS cents, count(*) AS n FROM orders GROUP BY country"
APP = """
import headwater as hw
from support.ordershop import Order

app = hw.App("shop")
app.stream("orders", Order, key="customer_id", time="at", topic="{topic}")
app.sql("{view}", "{query}", key="country")
"""


def order(n: int, minute: float) -> Order:
    return Order(n, 1, "de", 100, BEGIN + timedelta(minutes=minute))


def windows(orders):
    from pyspark.sql.functions import avg, count, window

    return orders.groupBy(window("at", "10 minutes")).agg(count("*").alias("n"), avg("cents").alias("mean"))


def test_late_records_are_left_out_as_the_view_has_left_them_out_also_after_a_rebuild(shop: Shop):
    shop.make("orders")
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="5 minutes", topic=shop.name("orders"))
    sided, dropped = shop.name("sided"), shop.name("dropped")
    app.view(key="window", name=sided)(windows)
    app.view(key="window", name=dropped, late=hw.late.drop())(windows)
    with pytest.raises(UsageError, match=r"no view .* with results"):
        check(app, shop.settings, sided)

    for part in ([order(1, 0), order(2, 30)], [order(3, 1), order(4, 60)]):
        shop.send(part)
        Runner(app, shop.settings).once()
    said = f"{sided}: 3 rows equal a batch over 3 records, complete up to 2026-01-05T09:25:00.000000Z"
    assert str(check(app, shop.settings, sided)) == said
    found = check(app, shop.settings, dropped)
    assert (found.differing, found.first.columns) == (1, ["n"])
    assert (found.first.view["n"], found.first.batch["n"]) == (1, 2)
    assert found.notes == (
        "1 late records were dropped and published nowhere: rows may differ because of them",
    )

    # The new run takes all that was there in one batch, so nothing of that is late for it, but what follows is.
    run = str(uuid.uuid4())
    Runner(app, shop.settings, shadows={sided: run}).once()
    shop.send([order(5, 2)])
    assert Rebuild(app, shop.settings, sided).run().run == run
    rows = [record for _, record, _ in shop.records(f"{sided}.late")]
    assert [row["time"][14:16] for row in rows if row["run"] == run] == ["02"]
    found = check(app, shop.settings, sided)
    assert (found.first, found.rows, found.records) == (None, 3, 4)


def test_a_row_that_is_wrong_is_named_and_the_command_fails(shop, tmp_path, monkeypatch, capfd):
    view = shop.name("totals")
    files = {}
    for name, query in (("right", TOTALS), ("other", TOTALS.replace("sum(cents)", "max(cents)"))):
        files[name] = tmp_path / f"{name}_{shop.prefix}.py"
        files[name].write_text(APP.format(topic=shop.name("orders"), view=view, query=query))
    app = hw.App.load(str(files["right"]))
    monkeypatch.setenv("HEADWATER_LOG", shop.settings.log)
    monkeypatch.setenv("HEADWATER_VIEW_TABLES", shop.settings.view_tables)

    def headwater(file: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["headwater", "view", "check", view, str(files[file])])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capfd.readouterr().out.splitlines()

    shop.make("orders")
    shop.send(orders(30))
    Runner(app, shop.settings).once()
    assert headwater("right") == (0, [f"{view}: 3 rows equal a batch over 30 records"])
    code, lines = headwater("other")
    assert (code, lines[:2]) == (
        1,
        [
            f"{view}: 3 of 3 rows differ from a batch over 30 records",
            "the first is de, in cents",
        ],
    )
    assert '"cents":27' in lines[3]

    # A record that the view did not make, in the midst of those that it made.
    (partition,) = {each.partition() for each in Client(shop.bootstrap).read([view]) if each.key() == b"us"}
    out = producer(shop.bootstrap)
    out.produce(view, b'{"country":"at","cents":1,"n":1,"_revision":1}', b"at", partition)
    assert out.flush(30) == 0
    assert headwater("right")[0] == 0
    shop.send(orders(30, start=30))
    Runner(app, shop.settings).once()
    assert headwater("right") == (
        1,
        [
            f"{view}: 1 of 4 rows differ from a batch over 60 records",
            "the first is at",
            '  view   {"country":"at","cents":1,"n":1}',
            "  batch  -",
        ],
    )


def test_a_view_is_checked_beside_the_pipeline_that_runs(shop):
    app = shop.app()
    totals, twice, each = shop.name("totals"), shop.name("twice"), shop.name("each")
    app.sql(totals, TOTALS, key="country")
    app.sql(
        twice,
        "SELECT country, count(*) AS n FROM (SELECT * FROM orders UNION ALL SELECT * FROM orders) GROUP BY country",
        key="country",
    )
    app.sql(each, "SELECT country, cents FROM orders", key="country", append=True)
    shop.make("orders")
    shop.send(orders(30))
    stop, runner = threading.Event(), Runner(app, shop.settings)
    sent = []

    def traffic() -> None:
        while not stop.wait(0.1):
            shop.send(orders(5, start=30 + 5 * len(sent)))
            sent.append(5)

    sender = threading.Thread(target=traffic)
    runner.start()
    try:
        sender.start()
        client = Client(shop.bootstrap)
        for view in (totals, twice, each):
            wait_until(lambda view=view: runner.wait(0) or current(results(client, view)), 120, view)
        before = len(sent)
        found = [check(app, shop.settings, view) for view in (totals, twice, each)]
        assert len(sent) > before
    finally:
        stop.set()
        sender.join()
        runner.stop()
    assert [checked.first for checked in found] == [None] * 3, "\n".join(map(str, found))
    assert [checked.rows == 3 for checked in found] == [True, True, False]
    assert found[2].rows == found[2].records
