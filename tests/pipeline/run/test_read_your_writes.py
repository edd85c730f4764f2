"""Reading one's own writes through a running pipeline: send, wait, and the row is there, without looking twice."""

import pytest

import headwater as hw
from headwater.follow.follower import Follower
from headwater.pipeline.run.runner import Runner
from headwater.position import Position
from headwater.view.tables.delivery import Delivery
from headwater.view.tables.reader import ViewTable
from support.ordershop import orders
from support.servers import wait_until

pytestmark = pytest.mark.spark

SUMS = "SELECT country, sum(cents) AS cents, count(*) AS orders FROM orders GROUP BY country"


def test_what_was_sent_is_in_the_view_when_the_wait_ends(shop, tmp_path):
    app = shop.app()
    view = shop.name("totals")
    app.sql(view, SUMS, key="country")
    stream = app.graph().streams["orders"]
    shop.make("orders")
    folder = tmp_path / "views"
    runner, delivery = Runner(app, shop.settings), Delivery(shop.log, [view], folder, lambda *_: None)
    runner.start()
    delivery.start()
    try:
        with hw.Writer(shop.settings) as writer, Follower(shop.settings) as follower:
            for n in range(5):
                written = writer.send(stream, orders(5, start=5 * n))
                made = follower.wait(view, written, timeout=60)

                assert sum(row["orders"] for row in shop.table(view).values()) == 5 * (n + 1)
                table = ViewTable(folder / f"{view}.db")
                wait_until(lambda t=table, m=made: Position(t.position().offsets).covers(m), 20, "the table")
                assert sum(row.columns()["orders"] for row in table.rows().rows) == 5 * (n + 1)
            with pytest.raises(hw.UsageError, match=f"does not read {view}; .* {stream.topic}"):
                follower.wait(view, made)
    finally:
        delivery.stop()
        runner.stop()
