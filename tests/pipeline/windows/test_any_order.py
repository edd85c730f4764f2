"""Every kind of window under every late policy, through Spark: records late, doubled, in any order, in any cut, with a restart between any two batches and batches that are run once more.

The view says the same as a batch over the records that were not late; a row that was called complete was; every record is accounted
for. The seeds of a run have keys of their own, and share it. TIME_SEED is the first seed, TIME_SEEDS their number.
"""

import json
import os
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.follow.results import results
from headwater.operate.views.check import check
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order, Shop

FIRST = int(os.environ.get("TIME_SEED", "0"))
SEEDS = int(os.environ.get("TIME_SEEDS", "5"))
TOGETHER = 5
"""Seeds that share a run."""
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
KEYS = 3
BATCHES = 3
EVENTS = 40
INVALID = 3
AGGREGATES = {"n": "count(*)", "cents": "sum(cents)", "first": "first(order_id)", "last": "last(order_id)"}


def tumbling(orders):
    from pyspark.sql import functions as F  # noqa: N812

    window = F.window("at", "10 minutes")
    return orders.groupBy("customer_id", window).agg(F.count("*").alias("n"), F.sum("cents").alias("cents"))


def hopping(orders):
    from pyspark.sql import functions as F  # noqa: N812

    window = F.window("at", "30 minutes", "10 minutes")
    return orders.groupBy("customer_id", window).agg(
        F.max("cents").alias("most"), F.min("cents").alias("least")
    )


def columns():
    from pyspark.sql import functions as F  # noqa: N812

    return {name: F.expr(text) for name, text in AGGREGATES.items()}


def sessions(orders):
    return hw.sessions(orders, "customer_id", time="at", gap="7 minutes", **columns())


def sliding(orders):
    return hw.sliding(orders, "customer_id", time="at", size="15 minutes", **columns())


def unique(orders):
    return hw.distinct(orders, ["customer_id", "order_id"], time="at", within="1 hour")


def daily(orders):
    from pyspark.sql import functions as F  # noqa: N812

    days = hw.calendar(orders, "day", time="at", zone="Asia/Kolkata")
    return days.groupBy("customer_id", "window").agg(F.count("*").alias("n"), F.sum("cents").alias("cents"))


CORRECT = hw.late.correct("40 minutes")
KINDS = {
    "tumbling": (tumbling, ["customer_id", "window"], {}),
    "tumbling_ready": (tumbling, ["customer_id", "window"], {"emit": "ready", "late": CORRECT}),
    "tumbling_dropped": (tumbling, ["customer_id", "window"], {"late": hw.late.drop()}),
    "daily": (daily, ["customer_id", "window"], {"late": CORRECT}),
    "hopping": (hopping, ["customer_id", "window"], {"late": CORRECT}),
    "sessions": (sessions, ["customer_id", "window"], {"late": CORRECT}),
    "sessions_ready": (sessions, ["customer_id", "window"], {"emit": "ready"}),
    "sliding": (sliding, ["customer_id", "window"], {"late": CORRECT}),
    "unique": (unique, ["customer_id", "order_id"], {"late": CORRECT}),
}


def declared(shop: Shop) -> hw.App:
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="10 minutes", topic=shop.name("orders"))
    for name, (function, key, options) in KINDS.items():
        app.view(key=key, name=shop.name(name), **options)(function)
    return app


def happening(seed: int) -> list[tuple[float, Order]]:
    """The orders of one seed and when they arrive: most soon after they happened, some long after, some twice."""
    choose, arriving = random.Random(seed), []
    for n in range(EVENTS):
        minute = choose.choice([choose.uniform(0, 120), choose.randrange(0, 120, 5)])
        customer, cents = seed * KEYS + choose.randrange(KEYS), choose.randrange(1000)
        order = Order(seed * EVENTS + n, customer, "de", cents, BEGIN + timedelta(minutes=minute))
        copies = choose.choice([1] * 9 + [2])
        waits = [choose.choice([0, 1, choose.uniform(0, 15), choose.uniform(0, 90)]) for _ in range(copies)]
        arriving += [(minute + wait, order) for wait in waits]
    return arriving


def batches(first: int) -> list[list[Order | bytes]]:
    """What some seeds do together, in the batches in which it arrives, each in any order, with records that cannot be read."""
    choose = random.Random(first)
    arriving = [each for seed in range(first, first + TOGETHER) for each in happening(seed)]
    arriving.sort(key=lambda each: each[0])
    cuts = [0, *sorted(choose.sample(range(1, len(arriving)), BATCHES - 1)), len(arriving)]
    parts = [[order for _, order in arriving[start:end]] for start, end in pairwise(cuts)]
    for part in parts:
        choose.shuffle(part)
    for n in range(INVALID):
        choose.choice(parts).append(b'{"order_id": "none %d"}' % n)
    return parts


def published(shop: Shop, view: str) -> list[tuple[str, dict | None, int]]:
    """The records of a view with the watermark of the batch that has published them."""
    client = Client(shop.bootstrap)
    made = sorted(results(client, view), key=lambda result: result.batch)
    found = []
    for record in client.read([view]):
        batch = next(each for each in made if each.outputs.get(record.partition(), 0) > record.offset())
        found.append((record.key().decode(), json.loads(record.value() or b"null"), batch.watermark))
    return found


def until_us(row: dict) -> int:
    text = row.get("_until") or row["window"]["end"]
    return int(datetime.fromisoformat(text).timestamp() * 1_000_000)


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, TOGETHER))
def test_a_view_says_the_same_whatever_the_order(shop, first):
    shop.make("orders")
    app, parts, choose = declared(shop), batches(first), random.Random(first)
    end = Order(-1, first * KEYS, "de", 1, BEGIN + timedelta(days=1))
    for part in [*parts, [end], []]:
        shop.send(part)
        Runner(app, shop.settings).once()
        for name in choose.sample(list(KINDS), len(KINDS) // 2):
            shop.lose_commit(shop.name(name))

    assert shop.table(shop.name("tumbling_dropped")) == shop.table(shop.name("tumbling"))
    for name in KINDS:
        if not name.endswith("_dropped"):  # what was dropped, a check cannot know
            checked = check(app, shop.settings, shop.name(name))
            assert checked.first is None, f"seeds {first} and following: {checked}"
        history: dict[str, int] = {}
        for key, row, watermark in published(shop, shop.name(name)):
            if row is not None:
                assert row["_revision"] == history.get(key, 0) + 1, (
                    f"seeds {first} and following, {name}: {key}"
                )
                if name.endswith("_ready"):
                    assert until_us(row) <= watermark, (
                        f"seeds {first} and following, {name}: {key} was called complete too early"
                    )
            history[key] = row["_revision"] if row is not None else 0

    sent = sum(map(len, parts)) + 1
    late = len(shop.records(f"{shop.name('tumbling')}.late"))
    counted = sum(row["n"] for row in shop.table(shop.name("tumbling")).values())
    assert late > 0
    assert counted + late + INVALID == sent
