"""A key with very many rows, through Spark: a change costs what it changes, in state, in output and in memory.

SKEW_ROWS is how many rows the one key has, SKEW_SEED decides which of them changes.
"""

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

import headwater as hw
from headwater.client.client import Client
from headwater.follow.results import results
from headwater.pipeline.run.runner import Runner
from headwater.result import Result
from pipeline.tableload import Customer, Order
from support.ordershop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROWS = int(os.environ.get("SKEW_ROWS", "100000"))
SEED = int(os.environ.get("SKEW_SEED", "0"))
AT_ONCE = 50_000
WORKER_BYTES_MAX = (512 << 20) + 1500 * ROWS
"""What a Python worker may take at most: itself, and each row of the key some times over."""


def declared(shop: Shop) -> hw.App:
    app = hw.App("shop")
    app.table("customers", Customer, key="customer_id", topic=shop.name("customers"))
    app.table("orders", Order, key="order_id", topic=shop.name("orders"))

    @app.view(key="order_id", name=shop.name("named"))
    def named(orders: DataFrame, customers: DataFrame) -> DataFrame:
        return hw.join(orders, customers, on="customer_id")

    return app


def send(shop: Shop, topic: str, *events: hw.Event) -> None:
    for start in range(0, len(events), AT_ONCE):  # a producer holds 100,000 records
        shop.send_to(shop.name(topic), events[start : start + AT_ONCE], f"{topic[:-1]}_id")


def written(last: Result, operator: str) -> int:
    """Entries that a batch has written."""
    chains = [chain for chain in last.state[operator] if chain and chain[-1].version == last.batch]
    return sum(chain[-1].rows for chain in chains)


def most_bytes() -> int:
    """What a process below this one that is not Java, a worker of Spark, has taken at most."""
    parents, most = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        except OSError:  # it has ended meanwhile
            continue
        parents[int(folder.name)] = int(status["PPid"])
        if status["Name"].strip() != "java" and "VmHWM" in status:
            most[int(folder.name)] = int(status["VmHWM"].split()[0]) << 10

    def mine(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or mine(parents[pid]))

    return max(taken for pid, taken in most.items() if mine(pid))


def test_a_key_with_very_many_rows_costs_what_changes(shop):
    app, view, one = declared(shop), shop.name("named"), f"o{random.Random(SEED).randrange(ROWS)}"
    shop.make("customers", "orders")

    def taken() -> Result:
        Runner(app, shop.settings).once()
        return results(Client(shop.bootstrap), view)[-1]

    send(shop, "customers", Customer("c", "de"), Customer("other", "fr"))
    send(shop, "orders", *(Order(f"o{n}", "c", n) for n in range(ROWS)), Order("x", "other", 1))
    taken()  # a batch has no more than a million records, so there may be two
    assert sum(each.changed for each in results(Client(shop.bootstrap), view)) == ROWS + 1

    send(shop, "customers", Customer("c", "us"))
    last = taken()
    assert (last.changed, written(last, "join4")) == (ROWS, 1)  # the row of the customer

    send(shop, "orders", Order(one, "c", -1))
    last = taken()
    assert (last.changed, written(last, "join4"), written(last, "publish")) == (1, 1, 1)
    rows = shop.table(view)
    assert len(rows) == ROWS + 1
    assert {row["region"] for key, row in rows.items() if key != "x"} == {"us"}
    assert rows[one]["cents"] == -1
    assert most_bytes() < WORKER_BYTES_MAX
