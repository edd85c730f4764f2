"""The account of views that really run: what their batches have counted is what the headers of the log say."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.client.client import Client, producer
from headwater.declare.schema import encode
from headwater.follow.results import results
from headwater.operate.log.ledger import TERMS, check
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order, Shop
from support.servers import both_logs

pytestmark = pytest.mark.spark

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


def order(n: int, minute: float) -> Order:
    return Order(n, 1, "de", 100, BEGIN + timedelta(minutes=minute))


def app(shop: Shop) -> hw.App:
    declared = hw.App("shop")
    topic = shop.name("orders")
    declared.stream("orders", Order, key="customer_id", time="at", delay="5 minutes", topic=topic)
    by_time = "SELECT window, count(*) AS n FROM orders GROUP BY window(at, '10 minutes')"
    declared.sql(shop.name("by_time"), by_time, key="window")
    declared.sql(shop.name("by_order"), "SELECT order_id, customer_id FROM orders", key="order_id")
    declared.sql(
        shop.name("twice"),
        "SELECT order_id FROM orders WHERE cents > 5 UNION ALL SELECT order_id FROM orders",
        key="order_id",
    )

    @declared.view(key="customer_id", name=shop.name("below"), inputs={"found": shop.name("by_order")})
    def below(found):
        return hw.group(found, "customer_id", n=F.count("*"))

    return declared


@both_logs
def test_every_record_that_a_view_has_read_is_in_one_term_of_its_account(shop):
    shop.make("orders")
    for part in (
        [order(1, 0), order(2, 30), b"no order", order(3, 31)],
        [order(4, 1), order(5, 60), b"{}", None, order(6, 2), order(7, 90)],
    ):
        shop.send(part)
        Runner(app(shop), shop.settings).once()
    shop.send([order(8, 91), order(9, 92)])

    found = {each.consumer: each for each in check(shop.log, [shop.name("orders"), shop.name("below")])}
    terms = {
        view: {term: getattr(found[shop.name(view)], term) for term in ("produced", *TERMS)}
        for view in ("by_time", "by_order", "below")
    }
    nothing = dict.fromkeys(TERMS, 0)
    whole = nothing | {"produced": 12, "waiting": 2, "invalid": 3}
    assert terms["by_time"] == whole | {"processed": 5, "late": 2}
    assert terms["by_order"] == whole | {"processed": 7}
    assert terms["below"] == nothing | {"produced": 7, "processed": 7}
    newest = results(Client(shop.log), shop.name("by_time"))[-1].taken[shop.name("orders")]
    assert (newest.processed, newest.late, newest.invalid, newest.since) == (5, 2, 3, {})


def test_records_of_an_aborted_transaction_reach_no_view(shop):
    shop.make("orders")
    shop.send([order(1, 0), order(2, 1)])
    made = producer(shop.log, **{"transactional.id": uuid.uuid4().hex, "message.timeout.ms": 30_000})
    made.init_transactions(30)
    for n, end in ((3, made.abort_transaction), (4, made.commit_transaction)):
        made.begin_transaction()
        made.produce(shop.name("orders"), encode(order(n, 2)), "1")
        assert made.flush(30) == 0
        end(30)
    declared, view = shop.app(), shop.name("by_order")
    declared.sql(view, "SELECT order_id FROM orders", key="order_id")
    Runner(declared, shop.settings).once()

    (found,) = check(shop.log, [view])
    assert (found.produced, found.processed, found.aborted) == (4, 3, 1)
    assert sorted(shop.table(view)) == ["1", "2", "4"]
