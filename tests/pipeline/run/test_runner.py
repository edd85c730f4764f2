"""Views run for real: records into the log, the pipeline over them, the view's topic against plain Python."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.client.partitioner import murmur2
from headwater.pipeline.batch.batch import batch, rows
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.topics import Topics
from support.ordershop import Order, hurry, orders
from support.servers import both_logs, wait_until

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[3] / "examples" / "orders" / "app.py"
SUMS = "SELECT country, sum(cents) AS cents, count(*) AS orders FROM orders GROUP BY country"


def sums(events):
    table = defaultdict(lambda: [0, 0])
    for event in events:
        table[event.country][0] += event.cents
        table[event.country][1] += 1
    return {country: {"country": country, "cents": c, "orders": n} for country, (c, n) in table.items()}


def stamp(moment):
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@both_logs
def test_the_orders_example_gives_the_answer_of_plain_python(shop):
    app = hw.App.load(str(EXAMPLE))
    example = app.graph().streams["orders"].type
    begin = datetime(2026, 1, 5, 9, tzinfo=UTC)
    events = [
        example(n, n % 5, ("de", "fr")[n % 2], n / 4, begin + timedelta(seconds=7 * n)) for n in range(200)
    ]
    revenue, per_minute = defaultdict(float), defaultdict(int)
    for event in events:
        revenue[event.at - timedelta(seconds=event.at.timestamp() % 300), event.country] += event.total
        per_minute[event.at.replace(second=0)] += 1

    Topics(shop.bootstrap).ensure(["orders"], 2, compact=False)
    shop.send_to("orders", events)
    shop.run(app)

    assert shop.table("revenue") == {
        f'["{stamp(start)}","{country}"]': {
            "window": {"start": stamp(start), "end": stamp(start + timedelta(minutes=5))},
            "country": country,
            "revenue": total,
        }
        for (start, country), total in revenue.items()
    }
    assert shop.table("orders_per_minute") == {
        stamp(start): {
            "window": {"start": stamp(start), "end": stamp(start + timedelta(minutes=1))},
            "orders": n,
        }
        for start, n in per_minute.items()
    }
    assert rows(app, shop.settings) == {name: shop.table(name) for name in ("revenue", "orders_per_minute")}
    published = Topics(shop.bootstrap).read(["revenue"])
    assert all(record.partition() == murmur2(record.key()) % 2 for record in published)


def test_a_sql_view_equals_the_python_view(shop):
    app = shop.app()
    app.sql(shop.name("sql"), SUMS, key="country")

    @app.view(key="country", name=shop.name("python"))
    def totals(orders):
        return orders.groupBy("country").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))

    events = orders(50)
    shop.make("orders")
    shop.send(events)
    shop.run(app)
    assert shop.table(shop.name("sql")) == shop.table(shop.name("python")) == sums(events)


@both_logs
def test_a_restart_continues_without_a_lost_or_doubled_row(shop):
    app = shop.app()
    view = shop.name("totals")
    app.sql(view, SUMS, key="country")
    shop.make("orders")
    shop.send(orders(40))
    shop.run(app)
    first = len(shop.records(view))
    shop.run(app)
    assert len(shop.records(view)) == first

    shop.send(orders(40, start=40))
    shop.run(app, lambda _: shop.send(orders(20, start=80)))
    assert shop.table(view) == sums(orders(100))
    assert rows(app, shop.settings) == {view: sums(orders(100))}


def test_once_takes_what_is_there_and_ends(shop):
    app = shop.app()
    view = shop.name("totals")
    app.sql(view, SUMS, key="country")
    shop.make("orders")
    shop.send(orders(10))
    Runner(app, shop.settings).once()
    shop.send(orders(10, start=10))
    Runner(app, shop.settings).once()
    assert shop.table(view) == sums(orders(20))


def test_only_changes_are_published_each_with_a_revision_and_every_batch_has_a_result(shop):
    app = shop.app()
    view = shop.name("totals")
    app.sql(view, "SELECT country, max(cents) AS most FROM orders GROUP BY country", key="country")
    shop.make("orders")
    shop.send(orders(3))
    shop.run(app)
    shop.run(
        app, lambda _: shop.send([*orders(2), *orders(1, start=99)])
    )  # de gets a greater one, fr and us do not

    published = [(row["country"], row["most"], row["_revision"]) for _, row, _ in shop.records(view)]
    assert sorted(published) == [("de", 0, 1), ("de", 99, 2), ("fr", 1, 1), ("us", 2, 1)]
    results = [result for _, result, _ in shop.records(f"{view}.progress")]
    assert [result["batch"] for result in results] == [0, 1]
    assert [result["changed"] for result in results] == [3, 1]
    assert len({result["run"] for result in results}) == 1
    assert sum(results[-1]["inputs"][shop.name("orders")].values()) == 6


def test_lag_tools_see_what_a_view_has_read(shop):
    app = shop.app()
    view = shop.name("totals")
    app.sql(view, SUMS, key="country")
    shop.make("orders")
    shop.send(orders(20))
    ends = Topics(shop.bootstrap).ends([shop.name("orders")])
    shop.run(app, lambda _: wait_until(lambda: shop.committed(view) == ends, what="the view's positions"))


@both_logs
def test_an_invalid_record_is_counted_once_by_three_views(shop):
    app = shop.app()
    views = [shop.name(f"v{n}") for n in range(3)]
    for view in views:
        app.sql(view, SUMS, key="country")
    shop.make("orders")
    bad = [
        b"nonsense",
        b'{"order_id": "x"}',
        None,
        b'{"order_id": 1, "customer_id": 1, "country": "de", "cents": 1}',
    ]
    shop.send([*orders(10), *bad, *orders(10, start=10)])
    shop.run(app)

    invalid = shop.records(shop.name("orders.invalid"))
    by_key = {key: value for key, value, _ in invalid}
    assert len(by_key) == len(bad)
    assert all(key == f"{v['topic']}-{v['partition']}-{v['offset']}" for key, v in by_key.items())
    found = {(v["value"], v.get("field"), v["reason"].partition("; expected")[0]) for v in by_key.values()}
    assert found == {
        ("nonsense", None, 'the value is "nonsense"'),
        ('{"order_id": "x"}', "order_id", "field 'order_id': got \"x\""),
        (None, None, "the value is null"),
        (bad[3].decode(), "at", "field 'at': got nothing"),
    }
    for view in views:
        assert shop.table(view) == sums(orders(20))


def test_a_stream_by_pattern_reads_all_its_topics_but_none_of_ours(shop):
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", pattern=rf"{shop.prefix}\..*")
    view = shop.name("totals")
    app.sql(view, "SELECT _topic AS topic, count(*) AS orders FROM orders GROUP BY _topic", key="topic")
    shop.make("a", "b")
    shop.send([*orders(3), b"bad"], "a")

    def later(_):
        shop.make("c")
        shop.send(orders(2), "c")

    shop.run(app, later)
    shop.send(orders(5), "b")
    shop.run(app)
    counts = {key.removeprefix(f"{shop.prefix}."): row["orders"] for key, row in shop.table(view).items()}
    assert counts == {"a": 3, "b": 5, "c": 2}
    assert len(shop.records(shop.name("a.invalid"))) == 1


def test_a_stream_that_is_used_twice_in_a_view_is_read_twice(shop):
    app = shop.app()
    view = shop.name("rate")

    @app.view(key="window", name=view)
    def rate(orders):
        again = orders.select(F.col("order_id").alias("other"), F.col("at").alias("at2"))
        matched = orders.join(again, F.expr("order_id = other AND at2 BETWEEN at AND at + INTERVAL 1 HOUR"))
        pairs = matched.select("at", F.lit(0).alias("one"), F.lit(1).alias("pair"))
        both = orders.select("at", F.lit(1).alias("one"), F.lit(0).alias("pair")).union(pairs)
        return both.groupBy(F.window("at", "1 minute")).agg(
            F.sum("one").alias("ones"), F.sum("pair").alias("pairs")
        )

    shop.make("orders")
    shop.send([*orders(40), b"bad"])
    shop.run(app, lambda _: shop.send(orders(40, start=40)))
    table = shop.table(view)
    assert sum(row["ones"] for row in table.values()) == sum(row["pairs"] for row in table.values()) == 80
    assert rows(app, shop.settings) == {view: table}
    assert len({key for key, _, _ in shop.records(shop.name("orders.invalid"))}) == 1


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT customer_id FROM orders", "key column 'country' is not in its output; got customer_id"),
        ("SELECT nothing FROM orders", "there is no column 'nothing'"),
        ("SELECT country, at, at FROM orders", "has two columns named 'at'"),
        ("SELECT country, cents FROM orders ORDER BY 1", "sorts the rows of a stream"),
    ],
)
def test_a_query_that_cannot_run_is_refused_in_one_line(shop, query, said):
    app = shop.app()
    app.sql(shop.name("wrong"), query, key="country")
    with pytest.raises(hw.UsageError) as caught:
        Runner(app, shop.settings).start()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_watermark_set_by_a_helper_is_refused_before_anything_starts(shop):
    app = shop.app()

    @app.view(key="country", name=shop.name("totals"))
    def totals(orders):
        return hurry(orders).groupBy("country").count()

    with pytest.raises(hw.UsageError, match=r"sets its own watermark; .*delay="):
        Runner(app, shop.settings).start()


def test_a_query_that_fails_ends_wait_with_its_reason(shop):
    app = shop.app()
    view = shop.name("broken")
    app.sql(view, "SELECT order_id, raise_error('no such luck') AS x FROM orders", key="order_id")
    shop.make("orders")
    shop.send(orders(1))
    runner = Runner(app, shop.settings)
    runner.start()
    with pytest.raises(hw.MachineError, match=f"view '{view}' has stopped; got .*no such luck"):
        wait_until(lambda: runner.wait(0.1), 30, "the failure")
    runner.stop()


def test_batch_is_a_frame_over_the_whole_log(shop):
    app = shop.app()
    app.sql(shop.name("totals"), SUMS, key="country")
    shop.make("orders")
    shop.send(orders(6))
    frame = batch(app, shop.settings, shop.name("totals"))
    assert {row.country: row.orders for row in frame.collect()} == {"de": 2, "fr": 2, "us": 2}
    with pytest.raises(hw.UsageError, match="unknown view 'nothing'"):
        batch(app, shop.settings, "nothing")


def test_batch_goes_up_to_a_position_and_no_further(shop):
    app = shop.app()
    app.sql(shop.name("totals"), SUMS, key="country")
    shop.make("orders")
    shop.send(orders(6))
    topic = shop.name("orders")
    ends = Topics(shop.log).ends([topic])
    shop.send(orders(6, start=6))

    def total(offsets: dict[str, dict[int, int]]) -> int:
        position = hw.Position(offsets)
        return sum(row.orders for row in app.batch(shop.name("totals"), position, shop.settings).collect())

    assert total(ends) == 6
    assert total({topic: {0: ends[topic][0]}}) + total({topic: {1: ends[topic][1]}}) == 6
    assert app.batch(shop.name("totals"), settings=shop.settings).count() == 3
    for wrong, says in (
        ({topic: {0: 1_000}}, "the log ends before the position"),
        ({"other": {0: 1}}, "names no topic"),
    ):
        with pytest.raises(hw.UsageError, match=says):
            total(wrong)
