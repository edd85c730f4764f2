"""Real-time views: Kafka to Kafka with no batch between, rows that never go back, invalid records settled behind."""

import itertools
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

import headwater as hw
from headwater.config import Settings
from headwater.errors import MachineError
from headwater.operate.log.ledger import check as ledger
from headwater.operate.views.check import check
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.left_out.invalid_records import InvalidRecords
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.left_out.late_records import topic as late_topic
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.run.settlement import Settlement
from headwater.pipeline.spark.session import master
from headwater.pipeline.time.attention import Attention
from headwater.pipeline.topics import Topics
from headwater.result import LeftOut
from headwater.testing import SettableClock
from support.ordershop import Order, Shop, orders
from support.servers import both_logs, wait_until

pytestmark = pytest.mark.spark


@both_logs
def test_real_time_views_publish_at_once_and_never_go_back(shop):
    app = shop.app()
    totals, latest = shop.name("totals"), shop.name("latest")
    app.sql(
        totals,
        "SELECT country, sum(cents) AS cents FROM orders GROUP BY country",
        key="country",
        latency="realtime",
    )

    @app.view(key="customer_id", name=latest, latency="realtime")
    def newest(orders):
        return orders.where("cents >= 0").select("customer_id", "order_id")

    shop.make("orders")
    shop.send([*orders(30), b"bad"])
    topics = Topics(shop.bootstrap)

    def meanwhile(runner):
        wait_until(lambda: runner.wait(0) or len(shop.table(latest)) == 7, 60, "the first rows")
        shop.send(orders(30, start=30))
        wait_until(lambda: runner.wait(0) or shop.table(latest)["3"]["order_id"] == 59, 5, "the next rows")

    shop.run(app, meanwhile)
    shop.run(app, lambda _: shop.send(orders(30, start=60)))
    assert rows(app, shop.settings) == {totals: shop.table(totals), latest: shop.table(latest)}
    for view in (totals, latest):
        assert check(app, shop.settings, view).first is None
    versions = {key: value["_version"] for key, value, _ in shop.records(totals)}
    assert versions == {"de": 30, "fr": 30, "us": 30}

    invalid = {key: value["value"] for key, value, _ in shop.records(shop.name("orders.invalid"))}
    assert list(invalid.values()) == ["bad"]
    assert shop.committed(totals) == topics.ends([shop.name("orders")])


def test_a_real_time_view_takes_what_is_there_and_ends_and_goes_on_in_real_time(shop):
    app, totals = shop.app(), shop.name("totals")
    query = "SELECT country, sum(cents) AS cents FROM orders GROUP BY country"
    app.sql(totals, query, key="country", latency="realtime")
    shop.make("orders")
    for start in (0, 60):
        shop.send([*orders(30, start=start), b"bad"])
        Runner(app, shop.settings).once()
        assert check(app, shop.settings, totals).first is None
        shop.run(app, lambda _, start=start: shop.send(orders(30, start=start + 30)))
    assert check(app, shop.settings, totals).first is None
    assert len(shop.records(shop.name("orders.invalid"))) == 2
    versions = {key: value["_version"] for key, value, _ in shop.records(totals)}
    assert versions == {"de": 40, "fr": 40, "us": 40}


def test_a_real_time_view_is_compared_only_when_it_has_read_all(shop):
    app = shop.app()
    app.sql(
        shop.name("totals"), "SELECT country FROM orders GROUP BY country", key="country", latency="realtime"
    )
    shop.make("orders")
    shop.send(orders(5))
    with pytest.raises(hw.UsageError, match="runs in real time and still has 5 records to read"):
        check(app, shop.settings, shop.name("totals"))


@pytest.mark.parametrize(
    ("query", "key", "said"),
    [
        (
            "SELECT order_id, cents FROM orders",
            "order_id",
            "rows of one key may come from several partitions",
        ),
        ("SELECT a.customer_id FROM orders a JOIN orders b USING (order_id)", "customer_id", "it uses Join"),
    ],
)
def test_a_view_whose_rows_could_go_back_is_refused(shop, query, key, said):
    app = shop.app()
    app.sql(shop.name("wrong"), query, key=key, latency="realtime")
    with pytest.raises(hw.UsageError, match=said):
        Runner(app, shop.settings).start()


def test_the_embedded_spark_gets_a_slot_for_every_real_time_task():
    import os

    assert master(Settings(spark="local[*,4]"), 6) == f"local[{6 + os.cpu_count()},4]"
    assert master(Settings(spark="local[*,4]"), 0) == "local[*,4]"
    assert master(Settings(spark="spark://host:7077"), 6) == "spark://host:7077"
    with pytest.raises(
        hw.UsageError,
        match="too few slots for the real-time views; got 'local\\[2,4\\]'; expected at least 6",
    ):
        master(Settings(spark="local[2,4]"), 6)


def test_windows_in_real_time_tell_of_late_records_and_a_clock_far_ahead_closes_none(shop):
    """Ten minutes of orders, one of the year 9999, one that is late, and one more: all but the late one are in their windows."""
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", topic=shop.name("orders"), delay="1 minute")
    counted = shop.name("counted")
    app.sql(
        counted,
        "SELECT window(at, '1 minute') AS window, count(*) AS n FROM orders GROUP BY window(at, '1 minute')",
        key="window",
        latency="realtime",
    )
    begun = datetime(2026, 1, 5, 9, tzinfo=UTC)

    def order(number: int, minutes: float) -> Order:
        at = begun + timedelta(minutes=minutes)
        return Order(order_id=number, customer_id=1, country="de", cents=1, at=at)

    shop.make("orders")
    shop.send([*(order(n, n) for n in range(10)), b"no order"])
    shop.send([Order(order_id=98, customer_id=1, country="de", cents=1, at=datetime(9999, 1, 1, tzinfo=UTC))])
    late = late_topic(counted)

    def meanwhile(runner):
        wait_until(lambda: runner.wait(0) or len(shop.table(counted)) == 11, 60, "the first windows")
        number = itertools.count(100)

        def is_left_out() -> bool:
            shop.send([order(next(number), 0.5)])
            return runner.wait(1) or bool(shop.records(late))

        wait_until(is_left_out, 60, "a late record")
        shop.send([order(99, 9.5)])
        wait_until(lambda: runner.wait(0) or _counts(shop, counted)[9] == 2, 60, "a row that is not late")
        settled(runner)

    def settled(runner):
        ends = lambda: Topics(shop.bootstrap).ends([shop.name("orders")])  # noqa: E731
        wait_until(lambda: runner.wait(0) or shop.committed(counted) == ends(), 60, "its positions")
        counted_late = lambda: next(status.left_out for status in runner.statuses())  # noqa: E731
        wait_until(  # a moment after the positions are committed
            lambda: runner.wait(0) or counted_late().late == len(shop.records(late)), 60, "its counts"
        )
        left_out.append(counted_late())

    left_out = []
    shop.run(app, meanwhile)
    found = [msgspec.convert(value, LateRecord) for _, value, _ in shop.records(late)]
    assert {each.time for each in found} == {"2026-01-05T09:00:30.000000Z"}
    assert {each.watermark for each in found} == {"2026-01-05T09:08:00.000000Z"}
    assert check(app, shop.settings, counted).first is None
    before = _counts(shop, counted)[0]

    def again(runner):
        shop.send([order(200, 0.5), order(201, 9.6)])
        wait_until(lambda: runner.wait(0) or _counts(shop, counted)[9] == 3, 60, "the rows after a restart")
        settled(runner)

    shop.run(app, again)
    (account,) = ledger(shop.log, [counted])
    assert (account.late, account.invalid) == (len(found) + 1, 1)
    assert left_out == [LeftOut(late=len(found), invalid=1), LeftOut(late=len(found) + 1, invalid=1)]
    assert account.processed == account.produced - account.late - account.invalid
    assert _counts(shop, counted)[0] == before, "a record that is late before a restart is late behind it"
    assert check(app, shop.settings, counted).first is None


def test_a_partition_that_the_plan_does_not_look_at_ends_a_view_with_windows_and_the_next_start_hears_it(
    shop,
):
    """Its times would not be heard: it would count as silent, and its records as late."""
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", topic=shop.name("orders"), delay="1 minute")
    counted = shop.name("counted")
    app.sql(
        counted,
        "SELECT window(at, '1 minute') AS window, count(*) AS n FROM orders GROUP BY window(at, '1 minute')",
        key="window",
        latency="realtime",
    )
    shop.make("orders")
    begun = datetime(2026, 1, 5, 9, tzinfo=UTC)
    first, second = (Order(order_id=n, customer_id=1, country="de", cents=1, at=begun) for n in range(2))

    def grown(runner):
        shop.send([first])
        wait_until(lambda: runner.wait(0) or shop.table(counted), 60, "the first window")
        count = Topics(shop.bootstrap).partitions()[shop.name("orders")]
        admin = AdminClient({"bootstrap.servers": shop.bootstrap})
        admin.create_partitions([NewPartitions(shop.name("orders"), count + 1)])[shop.name("orders")].result()
        out = Producer({"bootstrap.servers": shop.bootstrap})
        value = msgspec.json.encode(second)
        wait_until(lambda: runner.wait(2) or _sent(out, shop.name("orders"), value, count), 90, "the end")

    with pytest.raises(MachineError, match=r"has got more partitions.*start it again"):
        shop.run(app, grown)

    def again(runner):
        wait_until(lambda: runner.wait(0) or _counts(shop, counted)[0] > 1, 60, "its records")

    shop.run(app, again)


def _sent(out, topic, value, partition) -> None:
    out.produce(topic, value, "1", partition)
    out.flush(5)


class Groups:
    """Positions of a view's group; ``answers`` are what commits come to."""

    def __init__(self, known, *answers):
        self.known, self.notes, self.answers = known, {}, list(answers)

    def committed(self, _):
        return self.known, self.notes

    def commit(self, _, positions, notes):
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        self.known, self.notes = positions, notes
        return True


def _settlement(folder, groups, batches, *, looked):
    """The settlement of a view whose process has begun after batch ``batches[0] - 1``, when the others are complete. ``looked`` gets what is read again."""
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.view(key="customer_id", name="v", latency="realtime")(lambda orders: orders)
    graph, clock = app.graph(), SettableClock()

    def invalid(_, starts, ends):
        looked.append((starts.get("orders", {}).get(0, 0), ends["orders"][0]))
        return []

    def complete(batch):
        for name, text in (("offsets", f'{{"orders":{{"0":{10 * batch + 10}}}}}'), ("commits", "{}")):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{batch}").write_text(
                f'v1\n{{"nextBatchWatermarkMs":0,"batchWatermarkMs":0}}\n{text}\n'
            )

    engine = SimpleNamespace(groups=groups, invalid=invalid)
    topics = SimpleNamespace(log="", of=lambda *_: ["orders"], ensure=lambda *_, **__: None)
    first, *others = batches
    for batch in first:
        complete(batch)
    made = Settlement(
        Prepared(graph.views["v"], None, {}, {}, 1, {}, None),
        Checkpoint(folder),
        engine,
        invalid=InvalidRecords(topics, graph, 1, engine),
        late=None,
        side_topic=None,
        clock=clock,
        attention=Attention(clock),
        ends=lambda _: {},
    )
    for batch in others:
        complete(batch)
    return made


def _query(*batches):
    reports = [{"batchId": batch, "observedMetrics": {}} for batch in batches]
    return SimpleNamespace(recentProgress=reports, isActive=True)


def test_a_batch_that_cannot_be_settled_is_settled_a_moment_later(tmp_path, caplog):
    """A log that is away for a moment ends neither the view nor the watch over it."""
    away = RuntimeError("the log is away")
    groups = Groups({}, away, away)
    settlement = _settlement(tmp_path, groups, [[], 0], looked=[])
    for _ in range(3):
        settlement.follow(_query(0))
    assert groups.known == {"orders": {0: 10}}
    assert caplog.text.count("is not settled yet and will be tried again: the log is away") == 1


def test_batches_whose_reports_are_gone_are_settled_all_the_same(tmp_path):
    """Spark keeps a few reports; a log may be away for longer."""
    groups, looked = Groups({"orders": {0: 10}}), []
    settlement = _settlement(tmp_path, groups, [[0], 1, 2, 3, 4], looked=looked)
    settlement.follow(_query(3))
    assert groups.known == {"orders": {0: 40}}, "the report of batch 4 is still to come"
    assert looked == [(10, 20), (20, 30)]
    settlement.follow(_query(3, 4))
    assert groups.known == {"orders": {0: 50}}


@pytest.mark.parametrize(("kept", "expected"), [(range(300, 302), (3010, 3020)), (range(2), (0, 20))])
def test_records_from_long_ago_are_not_told_once_more_when_the_positions_of_a_view_have_expired(
    tmp_path, kept, expected
):
    groups, looked = Groups({}), []
    settlement = _settlement(tmp_path, groups, [list(kept)], looked=looked)
    settlement.follow(_query())
    assert looked == [expected]


def test_late_records_of_batches_that_a_crash_has_left_unsettled_are_told_and_no_others(shop):
    """Two batches end and are not settled: one by the old bound, with a record that only the new one would leave out, one by the new bound."""
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", topic=shop.name("orders"), delay="1 minute")
    counted = shop.name("counted")
    app.sql(
        counted,
        "SELECT window(at, '1 minute') AS window, count(*) AS n FROM orders GROUP BY window(at, '1 minute')",
        key="window",
        latency="realtime",
    )
    begun = datetime(2026, 1, 5, 9, tzinfo=UTC)

    def send(number: int, minutes: float) -> None:
        at = begun + timedelta(minutes=minutes)
        shop.send([Order(order_id=number, customer_id=1, country="de", cents=1, at=at)])

    def ends():
        return Topics(shop.bootstrap).ends([shop.name("orders")])

    shop.make("orders")
    send(1, 1)

    def crash(runner):
        settlement, checkpoint = runner.views[counted].settlement, runner.views[counted].checkpoint
        wait_until(lambda: runner.wait(0) or shop.committed(counted) == ends(), 60, "the first order")
        set_bound = settlement._set_bound
        since = []

        def tell(batch: int) -> None:
            set_bound(batch)
            if settlement._times.watermark == 1_767_604_740_000_000:  # 09:19
                since.append(batch)
                settlement.settle = lambda _: None
                send(3, 15)  # the batch that runs takes it in

        settlement._set_bound = tell
        send(2, 20)
        wait_until(lambda: runner.wait(0) or since, 60, "the new watermark")
        wait_until(lambda: runner.wait(0) or checkpoint.last() >= since[0] - 1, 60, "the end of its batch")
        send(4, 16)
        wait_until(lambda: runner.wait(0) or checkpoint.complete() == ends(), 60, "the end of the next one")

    shop.run(app, crash)
    assert shop.records(late_topic(counted)) == []
    shop.run(app, lambda _: wait_until(lambda: shop.committed(counted) == ends(), 60, "what was not settled"))
    found = [msgspec.convert(value, LateRecord) for _, value, _ in shop.records(late_topic(counted))]
    assert [(each.time[11:19], each.watermark[11:19]) for each in found] == [("09:16:00", "09:19:00")]
    assert _counts(shop, counted) == [1, 1, 1]
    assert check(app, shop.settings, counted).first is None


def _counts(shop: Shop, view: str) -> list[int]:
    """The rows of the windows in their order."""
    return [row["n"] for _, row in sorted(shop.table(view).items())]
