"""Time: the watermark for every order of arrival, what is late, and what happens when nothing comes."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.declare.spec import Stream
from headwater.errors import MachineError, UsageError
from headwater.follow.results import results
from headwater.operate.views.reset import reset
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.build import plan_edits as plan
from headwater.pipeline.build.prepare import prepare
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.observed import values
from headwater.pipeline.engine.spark_engine import Spark
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.time import late_split
from headwater.pipeline.time import watermark as time
from headwater.pipeline.time.watermark import (
    NEVER,
    Input,
    due_ms,
    note_silence,
    note_times,
    resume,
    watermark,
)
from headwater.result import Heard, Stragglers
from headwater.testing import SettableClock
from support.ordershop import Order, Shop
from support.servers import wait_until

SECOND = 1_000_000
ONE = {"s": Input(delay_us=10 * SECOND, idle_us=60 * SECOND)}
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)


def after(time_s: int, silent_s: float, at_ms: int = 0) -> Heard:
    """A place that has brought a time and was silent since."""
    return Heard(time_s * SECOND, at_ms, int(silent_s * 1000))


def test_the_slowest_partition_decides():
    assert watermark(ONE, {"s/0": after(500, 0), "s/1": after(300, 0)}, NEVER) == 290 * SECOND


def test_a_silent_partition_holds_up_no_other():
    assert watermark(ONE, {"s/0": after(500, 0), "s/1": after(300, 60)}, NEVER) == 290 * SECOND
    assert watermark(ONE, {"s/0": after(500, 0), "s/1": after(300, 60.001)}, NEVER) == 490 * SECOND


def test_when_all_are_silent_time_advances_by_the_clock():
    assert (
        watermark(ONE, {"s/0": after(500, 60.001), "s/1": after(300, 60.001)}, NEVER) == 490 * SECOND + 1_000
    )
    assert watermark(ONE, {"s/0": after(500, 360), "s/1": after(300, 400)}, NEVER) == 790 * SECOND
    later = {"s/0": after(500, 360, at_ms=40_000), "s/1": after(300, 400)}
    assert watermark(ONE, later, NEVER) == 790 * SECOND
    unread = {"s/0": after(500, 360), "s/1": after(300, 100)}
    assert watermark(ONE, unread, NEVER) == 530 * SECOND, "not beyond what was read of each"


def test_the_clock_does_not_count_while_the_pipeline_is_down():
    known = resume({"s/0": after(500, 4, at_ms=1_000)}, at_ms=5_000, now_ms=86_405_000)
    assert known == {"s/0": after(500, 4, at_ms=86_401_000)}
    assert watermark(ONE, note_silence(known, known, 86_405_000), NEVER) == 490 * SECOND


def test_a_stream_without_records_holds_up_no_other():
    both = ONE | {"other": Input(0, 60 * SECOND)}
    assert watermark(both, {"s/0": after(20, 0)}, NEVER) == 10 * SECOND


def test_a_partition_that_never_brought_a_time_holds_up_the_others_only_while_some_of_it_is_unread():
    known = {"s/0": after(20, 0), "s/1": Heard(NEVER, 0, None)}
    assert watermark(ONE, known, NEVER) == NEVER
    assert watermark(ONE, note_silence(["s/1"], known, 1_000), NEVER) == 10 * SECOND
    by_clock = {"s/0": after(20, 100), "s/1": Heard(NEVER, 0, 70_000)}
    assert watermark(ONE, by_clock, NEVER) == 20 * SECOND, "not beyond what was read of the other"


steps = st.lists(
    st.tuples(st.sampled_from(["s/0", "s/1", "t/0"]), st.integers(-100, 100), st.integers(0, 50)), max_size=40
)


@given(steps=steps)
def test_the_watermark_never_goes_back_and_is_never_ahead_of_an_active_partition(steps):
    inputs = {"s": Input(10 * SECOND, 60 * SECOND), "t": Input(0, 30 * SECOND)}
    known, now_ms, reached = {}, 0, NEVER
    for place, at, wait_s in steps:
        now_ms += wait_s * 1000
        known = note_times({place: at * SECOND}, note_silence(known, known, now_ms), now_ms)
        now = watermark(inputs, known, reached)
        assert now >= reached
        limit = known[place].time_us - inputs[place[0]].delay_us
        assert now == reached or now <= limit
        reached = now


@given(wait_s=st.integers(0, 1_000), open_s=st.integers(0, 1_000))
def test_a_tick_comes_just_when_the_watermark_passes(wait_s, open_s):
    known = {"s/0": after(100, 0, at_ms=1_000)}
    at = due_ms(ONE, known, watermark(ONE, known, NEVER), open_s * SECOND)
    assert watermark(ONE, note_silence(known, known, at), NEVER) >= open_s * SECOND
    if at > 1_000:
        assert watermark(ONE, note_silence(known, known, at - 2), NEVER) < open_s * SECOND + 1_000
    assert due_ms(ONE, known, wait_s, None) is None


def test_exactly_at_the_watermark_is_not_late_and_a_wrong_clock_moves_nothing():
    moment = late_split._Moment(watermark=1_000, now_us=0)
    far = time.FUTURE_US + 1
    judged = late_split._judged(
        "s", pa.array([0, 0, 1, 1, 1]), pa.array([999, 1_000, 5, far, None]), moment, horizon_us=0
    )
    assert judged.field("late").to_pylist() == [True, False, True, False, False]
    assert late_split._greatest([text for text in judged.field("note").to_pylist() if text]) == {
        "s/0": 1_000,
        "s/1": 5,
    }
    horizon = late_split._judged("s", pa.array([0, 0]), pa.array([499, 500]), moment, horizon_us=500)
    assert horizon.field("late").to_pylist() == [True, False]
    assert len(late_split._judged("s", pa.array([], pa.int32()), pa.array([], pa.int64()), moment, 0)) == 0


def test_stragglers_are_named_by_their_position_and_all_are_counted():
    moment = late_split._Moment(watermark=1_000, now_us=0)
    times = pa.array([499, 500, None, 1_000, 999])
    judged = late_split._judged(
        "s", pa.array([0, 0, 0, 1, 1]), times, moment, 500, offset=pa.array([7, 8, 9, 4, 5])
    )
    assert judged.field("straggler").to_pylist() == [None, "0@8", None, None, "1@5"]
    many = 3 * late_split.NAMED_MAX
    judged = late_split._judged(
        "s", pa.array([0] * many), pa.array([600] * many), moment, 500, offset=pa.array(range(many))
    )
    named = judged.field("straggler").to_pylist()
    assert len([each for each in named if each]) == late_split.NAMED_MAX
    assert None not in named


@pytest.mark.spark
def test_spark_judges_as_python_does_with_bounds_that_change_and_a_plan_that_does_not(spark):
    judge = late_split.Judge(spark, 0, {"s": 2})
    times = [999, 1_000, 5, time.FUTURE_US + 1, None]
    rows = spark.createDataFrame([(each,) for each in times], "us BIGINT")
    judged = rows.select(judge.late(rows.us).alias("late"), judge.sound(rows.us).alias("sound"))
    assert [row.late for row in judged.collect()] == [False] * 5  # no watermark yet
    for moment in (late_split._Moment(watermark=1_000, now_us=0), late_split._Moment(watermark=6, now_us=1)):
        judge.set_bounds(moment.watermark, moment.now_us)
        found = judged.collect()
        expected = late_split._judged("s", pa.array([0] * 5), pa.array(times), moment, horizon_us=0)
        assert [row.late for row in found] == expected.field("late").to_pylist()
        assert [row.sound for row in found[:4]] == [True, True, True, moment.now_us > 0]


@pytest.mark.spark
def test_what_was_observed_is_known_by_name_however_many_partitions_there_are(spark):
    """Four columns are not stragglers: they may be the times of three partitions."""
    late_and_times = spark.createDataFrame([(2, 5, None, 7)], "late long, `0` long, `1` long, `2` long")
    row = late_and_times._jdf.head()
    assert late_split.times_in("s", values(row)) == {"s/0": 5, "s/2": 7}
    assert late_split.stragglers_in(values(row)) is None
    kind = "late long, notes array<string>, stragglers long, named array<string>"
    row = spark.createDataFrame([(0, ['{"s/0":3}'], 2, ["0@8", ""])], kind)._jdf.head()
    assert late_split.times_in("s", values(row)) == {"s/0": 3}
    assert late_split.stragglers_in(values(row)) == (2, ["0@8"])


@pytest.mark.spark
def test_partitions_that_came_while_a_view_ran_are_noticed(spark):
    judge = late_split.Judge(spark, 0, {"s": 2})
    assert judge.places(Stream("s", Order, ("id",), "at", "1 minute")) == 2
    judge.check({"s": {0: 5, 1: 7}, "other": {9: 1}})
    with pytest.raises(MachineError, match="topic s has got more partitions"):
        judge.check({"s": {0: 5, 1: 7, 2: 1}})


# ---- through Spark -------------------------------------------------------------------------------------


def order(n: int, minute: float, customer: int = 1) -> Order:
    return Order(n, customer, "de", 100, BEGIN + timedelta(minutes=minute))


def windows(orders):
    from pyspark.sql.functions import count, window

    return orders.groupBy(window("at", "10 minutes")).agg(count("*").alias("n"))


def app(shop: Shop, name: str, late: object = None) -> hw.App:
    declared = hw.App("shop")
    declared.stream(
        "orders", Order, key="customer_id", time="at", delay="5 minutes", topic=shop.name("orders")
    )
    declared.view(key="window", name=name, late=late)(windows)
    return declared


def counts(shop: Shop, view: str) -> dict[str, int]:
    return {key[11:16]: row["n"] for key, row in shop.table(view).items()}


def dropped_by_spark(runner: Runner) -> int:
    return sum(
        state["numRowsDroppedByWatermark"]
        for view in runner.views.values()
        for progress in view.query.recentProgress
        for state in progress["stateOperators"]
    )


@pytest.mark.spark
def test_late_records_land_beside_the_view_once_with_what_they_missed(shop):
    shop.make("orders")
    sided, corrected, dropped = (shop.name(name) for name in ("sided", "corrected", "dropped"))
    apps = [
        app(shop, sided),
        app(shop, corrected, hw.late.correct("1 hour")),
        app(shop, dropped, hw.late.drop()),
    ]
    for part in (
        [order(1, 0), order(2, 30)],
        [order(3, 25), order(4, 24.9), order(5, 60)],  # watermark 09:25: one exactly at it, one before it
        [order(6, 1), order(7, 56)],  # 09:55, and an hour before that is 08:55
        [order(8, -56)],
    ):
        shop.send(part)
        for each in apps:
            runner = Runner(each, shop.settings)
            runner.once()
            assert dropped_by_spark(runner) == 0

    on_time = {"09:00": 1, "09:20": 1, "09:30": 1, "09:50": 1, "10:00": 1}
    assert counts(shop, sided) == counts(shop, dropped) == on_time
    assert counts(shop, corrected) == on_time | {"09:00": 2, "09:20": 2}
    late = [record for _, record, _ in shop.records(f"{sided}.late")]
    assert sorted((row["time"][11:19], row["watermark"][11:19]) for row in late) == [
        ("08:04:00", "09:55:00"),
        ("09:01:00", "09:55:00"),
        ("09:24:54", "09:25:00"),
    ]
    assert [row["time"][11:16] for _, row, _ in shop.records(f"{corrected}.late")] == ["08:04"]
    assert all(row["topic"] == shop.name("orders") and '"order_id"' in row["value"] for row in late)
    assert shop.records(f"{dropped}.late") == []
    client = Client(shop.bootstrap)
    assert [results(client, view)[-1].late for view in (sided, corrected, dropped)] == [3, 1, 3]
    causes = [result.stragglers for result in results(client, corrected)]
    (partition,) = {
        place.partition("@")[0] for cause in causes for each in cause.values() for place in each.places
    }
    assert causes == [
        {},
        {"orders": Stragglers(1, (f"{partition}@3",))},
        {"orders": Stragglers(1, (f"{partition}@5",))},
        {},
    ]
    assert all(result.stragglers == {} for result in results(client, sided))


@pytest.mark.spark
def test_windows_begin_after_a_restart_where_they_began_before_it(shop):
    """They are counted from 1970, not from the first record: no hour is a multiple of seven minutes."""
    shop.make("orders")
    name, declared = shop.name("sevens"), shop.app()
    declared.sql(
        name, "SELECT window, count(*) AS n FROM orders GROUP BY window(at, '7 minutes')", key="window"
    )
    sent = [[order(1, 3)], [order(2, 4), order(3, 13)], [order(4, 14)]]
    for part in sent:
        shop.send(part)
        Runner(declared, shop.settings).once()
    begins = Counter(each.at - timedelta(seconds=each.at.timestamp() % 420) for part in sent for each in part)
    assert counts(shop, name) == {f"{at:%H:%M}": n for at, n in begins.items()}
    assert max(begins.values()) > 1


@pytest.mark.spark
def test_a_partition_that_falls_silent_holds_a_view_up_until_it_counts_as_idle(shop):
    shop.make("orders")
    name, clock = shop.name("windows"), SettableClock()
    shop.send([order(n, 0, customer=n) for n in range(7)])
    customers = {
        each.partition(): int(each.key()) for each in Client(shop.bootstrap).read([shop.name("orders")])
    }
    talking, silent = customers[0], customers[1]
    assert talking != silent

    def reached() -> int:
        last = results(Client(shop.bootstrap), name)[-1]
        return (last.watermark // SECOND - int(BEGIN.timestamp())) // 60

    with shop.running(app(shop, name), clock):
        shop.taken(name, shop.name("orders"), 7)
        for sent, minute in ((8, 30), (9, 31)):
            shop.send([order(sent, minute, customer=talking)])
            shop.taken(name, shop.name("orders"), sent)
        assert reached() == -5
        clock.advance(61)  # streams are idle after a minute
        for sent, minute in ((10, 32), (11, 33)):
            shop.send([order(sent, minute, customer=talking)])
            shop.taken(name, shop.name("orders"), sent)
        assert reached() == 32 - 5
        shop.send([order(12, 1, customer=silent)])
        shop.taken(name, shop.name("orders"), 12)
    assert results(Client(shop.bootstrap), name)[-1].late == 1


@pytest.mark.spark
def test_a_device_a_year_ahead_makes_no_other_late(shop):
    """It counts in the window that it names, and moves no watermark, ours or Spark's."""
    shop.make("orders")
    name = shop.name("windows")
    year = timedelta(days=366)
    far = Order(9, 2, "de", 100, datetime.now(UTC).replace(minute=1) + year)
    sent = 0
    with shop.running(app(shop, name)) as runner:
        for part in ([order(1, 0), order(2, 30)], [far], [order(3, 26)], [order(4, 31), far], [order(5, 27)]):
            shop.send(part)
            sent += len(part)
            shop.taken(name, shop.name("orders"), sent)
        assert dropped_by_spark(runner) == 0
        query = next(iter(runner.views.values())).query
        wait_until(lambda: query.recentProgress, 30, "progress")
        spark = query.recentProgress[-1]["eventTime"]["watermark"]

    ahead = far.at.strftime("%H:00")
    assert counts(shop, name) == {"09:00": 1, "09:20": 2, "09:30": 2, ahead: 2}
    last = results(Client(shop.bootstrap), name)[-1]
    assert last.late == 0
    assert last.watermark == int((BEGIN + timedelta(minutes=26)).timestamp()) * SECOND
    assert spark.startswith("2026-01-05T09:2")


@pytest.mark.spark
def test_spark_says_when_it_has_begun_to_look_for_the_records_of_a_batch(shop):
    """It notes the time of a batch only after it has asked all sources, and the first of them was not silent until then."""
    found = []

    class Noting(Spark):
        def compute(self, rows, plan, query):
            checkpoint = Checkpoint(Path(plan.places[PUBLISH].files).parents[1])
            found.append((self.began_ms(query), checkpoint.planned_ms(plan.batch), plan.now_us // 1000))
            return super().compute(rows, plan, query)

    shop.make("orders")
    view, begun_ms = shop.name("windows"), SystemClock().now_ms()
    for part in ([order(1, 0)], [order(2, 1)]):
        shop.send(part)
        Runner(app(shop, view), shop.settings, engine=Noting(shop.settings)).once()
    assert len(found) == 2
    for began_ms, planned_ms, now_ms in found:
        assert begun_ms <= began_ms <= planned_ms <= now_ms


@pytest.mark.spark
def test_a_batch_that_is_repeated_is_judged_as_it_was(shop):
    """Spark's commit is lost after a published batch with a late record: what Spark then keeps is what was published."""
    shop.make("orders")
    view = shop.name("windows")
    for part in ([order(1, 0), order(2, 30)], [order(3, 1), order(4, 31)]):
        shop.send(part)
        Runner(app(shop, view), shop.settings).once()
    published = shop.records(view), shop.records(f"{view}.late")
    shop.lose_commit(view)
    Runner(app(shop, view), shop.settings).once()
    assert (shop.records(view), shop.records(f"{view}.late")) == published

    shop.send([order(5, 32)])
    Runner(app(shop, view), shop.settings).once()
    assert counts(shop, view) == {"09:00": 1, "09:30": 3}


@pytest.mark.spark
def test_a_reset_takes_the_late_records_away_that_the_new_run_counts(shop):
    shop.make("orders")
    view = shop.name("windows")
    for part in ([order(1, 0), order(2, 30)], [order(3, 1), order(4, 31)]):
        shop.send(part)
        Runner(app(shop, view), shop.settings).once()
    assert len(shop.records(f"{view}.late")) == 1
    reset(shop.settings, view)
    Runner(app(shop, view), shop.settings).once()
    assert counts(shop, view) == {"09:00": 2, "09:30": 2}
    assert shop.records(f"{view}.late") == []


@pytest.mark.spark
def test_what_takes_records_at_any_time_has_no_late_ones(shop):
    shop.make("orders")
    name = shop.name("totals")
    declared = shop.app()
    declared.sql(name, "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")
    for part in ([order(1, 600)], [order(2, 0)]):
        shop.send(part)
        Runner(declared, shop.settings).once()
    assert shop.table(name)["de"]["n"] == 2
    assert f"{name}.late" not in Client(shop.bootstrap).partitions()


@pytest.mark.spark
def test_rows_that_do_not_change_leave_the_view_with_no_further_input(shop):
    shop.make("orders")
    clock = SettableClock()
    declared = shop.app()
    name = shop.name("newest")
    declared.view(key="customer_id", name=name, forget="1 hour")(lambda orders: orders)
    runner = Runner(declared, shop.settings, clock)
    runner.start()
    try:
        shop.send([order(1, 0, customer=1), order(2, 0, customer=2)])
        wait_until(lambda: len(shop.table(name)) == 2, 60, "two rows")
        clock.advance(3_000)
        shop.send([order(3, 1, customer=2)])
        wait_until(lambda: shop.table(name)["2"]["order_id"] == 3, 60, "a newer row")
        clock.advance(1_000)
        wait_until(lambda: list(shop.table(name)) == ["2"], 60, "the older row's end")
        clock.advance(3_600)
        wait_until(lambda: shop.table(name) == {}, 60, "the newer row's end")
    finally:
        runner.stop()
    assert results(Client(shop.bootstrap), name)[-1].opens == {"publish": [None, None]}


@pytest.mark.parametrize("late", ["1 day", hw.late.correct("a while")])
def test_a_wrong_policy_is_refused(late):
    declared = hw.App("shop")
    declared.stream("orders", Order, key="customer_id", time="at")
    declared.view(key="window", name="v", late=late)(windows)
    with pytest.raises(UsageError, match=r"late= is wrong.*hw\.late\.side"):
        declared.graph()


class Plain(hw.Event):
    """An event without a time, whose fields are called as what belongs to a record."""

    customer_id: int
    topic: str
    partition: str
    offset: int
    timestamp: str


@pytest.mark.spark
def test_events_without_a_time_are_counted_by_their_arrival_and_a_late_one_says_so(shop):
    shop.make("visits")
    name, declared = shop.name("per_hour"), hw.App("shop")
    declared.stream(
        "visits", Plain, key="customer_id", time=hw.ARRIVAL, delay="5 minutes", topic=shop.name("visits")
    )
    declared.sql(
        name,
        "SELECT window, partition, count(*) AS n FROM visits GROUP BY window(_arrival, '1 hour'), partition",
        key=["window", "partition"],
    )
    # Recent, since the log lets go what came long ago.
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
    for minutes, n in ((0, 1), (90, 2), (10, 3), (91, 4)):
        at = int((begin + timedelta(minutes=minutes)).timestamp() * 1000)
        shop.send_at(at, [Plain(1, "t", "p", n, "now")], topic="visits")
        Runner(declared, shop.settings).once()
    found = {json.loads(key)[0][:13]: row["n"] for key, row in shop.table(name).items()}
    assert found == {f"{begin:%Y-%m-%dT%H}": 1, f"{begin + timedelta(hours=1):%Y-%m-%dT%H}": 2}
    (late,) = [record for _, record, _ in shop.records(f"{name}.late")]
    assert (late["time"][14:16], json.loads(late["value"])["offset"]) == ("10", 3)


@pytest.mark.spark
def test_batch_takes_late_records_too(shop):
    """Nothing is late for a batch: all of the log is there."""
    shop.make("orders")
    name = shop.name("w")
    shop.send([order(1, 0), order(2, 600), order(3, 0)])
    assert [row["n"] for row in rows(app(shop, name), shop.settings)[name].values()] == [2, 1]


@pytest.mark.spark
@pytest.mark.parametrize(("year", "counts"), [(b"9999", [1, 1, 3]), (b"+200000", [1, 3])])
def test_a_date_at_the_end_of_time_makes_no_other_late(shop, year, counts):
    """One after it is invalid."""
    shop.make("orders")
    name = shop.name("windows")
    end = b'{"order_id":9,"customer_id":2,"country":"de","cents":1,"at":"%b-12-31T23:10:00Z"}' % year
    for part in ([order(1, 0)], [order(2, 20), end], [order(3, 21)], [order(4, 22)]):
        shop.send(part)
        Runner(app(shop, name), shop.settings).once()
    assert sorted(row["n"] for row in shop.table(name).values()) == counts
    assert results(Client(shop.bootstrap), name)[-1].late == 0


@pytest.mark.spark
def test_only_a_view_that_keeps_something_for_a_time_declares_event_time_to_spark(shop, spark):
    from pyspark.sql import functions as F  # noqa: N812

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="10 seconds", topic=shop.name("orders"))
    app.view(key="customer_id", name="totals")(lambda orders: orders.groupBy("customer_id").count())
    app.view(key="order_id", name="dear")(lambda orders: orders.where("cents > 100"))
    app.view(key=["customer_id", "window"], name="windows")(
        lambda orders: orders.groupBy("customer_id", F.window("at", "1 minute")).count()
    )
    graph, watermarks = app.graph(), {}
    for name in ("totals", "dear", "windows"):
        made = prepare(spark, shop.settings, graph, graph.views[name], 2, partitions={shop.name("orders"): 2})
        watermarks[name] = plan.watermarks(made.frame)
    assert watermarks == {"totals": 0, "dear": 0, "windows": 1}
