"""Calendar: days, weeks and months of a time zone, over changes of clocks and leap days."""

import random
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from zoneinfo import ZoneInfo

import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.follow.results import results
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = [
    "Europe/Berlin",
    "America/Sao_Paulo",  # clocks went forward at midnight
    "America/Havana",  # and here back to it
    "America/St_Johns",  # until 2011 back over it, at 00:01
    "Australia/Lord_Howe",  # by half an hour
    "Pacific/Apia",  # without 30 December 2011
    "Asia/Kathmandu",
]


def moments() -> list[datetime]:
    """Every half hour around what is difficult, and random moments of five years."""
    difficult = [
        "2011-11-06",
        "2011-12-30",
        "2018-11-04",
        "2024-02-29",
        "2026-03-29",
        "2026-10-25",
        "1969-12-31",
    ]
    begins = [datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1) for day in difficult]
    near = [begin + timedelta(minutes=30 * n) for begin in begins for n in range(4 * 48)]
    rng = random.Random(3)
    years = [datetime(year, 1, 1, tzinfo=UTC) for year in (2011, 2018, 2024, 2025, 2026)]
    return near + [year + timedelta(microseconds=rng.randrange(366 * 86_400 * 10**6)) for year in years * 100]


def first(day: date, unit: str) -> date:
    return {"day": day, "week": day - timedelta(days=day.weekday()), "month": day.replace(day=1)}[unit]


def after(day: date, unit: str) -> date:
    longest = {"day": 1, "week": 7, "month": 31}[unit]
    return first(first(day, unit) + timedelta(days=longest), unit)


def begin(day: date, zone: str) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def expected(at: datetime, unit: str, zone: str) -> tuple[datetime, datetime]:
    day = first(at.astimezone(ZoneInfo(zone)).date(), unit)
    day = after(day, unit) if at >= begin(after(day, unit), zone) else day
    return begin(day, zone), begin(after(day, unit), zone)


def test_each_moment_lies_in_the_window_that_pythons_zones_say(spark):
    from pyspark.sql.functions import lit, unix_micros

    frame = spark.createDataFrame([(at,) for at in moments()], "at timestamp")
    cases = [(zone, "day") for zone in ZONES] + [(ZONES[0], "month"), (ZONES[1], "week")]
    numbers = [unix_micros(name) for name in ("at", "window.start", "window.end")]
    parts = [
        hw.calendar(frame, unit, time="at", zone=zone).select(lit(zone), lit(unit), *numbers)
        for zone, unit in cases
    ]
    found = reduce(lambda a, b: a.union(b), parts).collect()
    assert len(found) == len(cases) * len(moments())
    for zone, unit, *times in found:
        at, start, end = (EPOCH + timedelta(microseconds=each) for each in times)
        assert (zone, at, start, end) == (zone, at, *expected(at, unit, zone))
        assert start <= at < end
    lengths = {(row[0], row[1], row[3]): (row[4] - row[3]) // 3_600_000_000 for row in found}
    named = {(zone, unit, EPOCH + timedelta(microseconds=us)): n for (zone, unit, us), n in lengths.items()}
    assert named["Europe/Berlin", "day", begin(date(2026, 3, 29), "Europe/Berlin")] == 23
    assert named["Europe/Berlin", "day", begin(date(2026, 10, 25), "Europe/Berlin")] == 25
    assert named["Europe/Berlin", "month", begin(date(2024, 2, 1), "Europe/Berlin")] == 29 * 24


def test_the_zone_of_the_session_does_not_matter(spark):
    frame = spark.createDataFrame([(datetime(2026, 3, 29, 12, tzinfo=UTC),)], "at timestamp")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        window = "unix_seconds(window.start) AS start", "unix_seconds(window.end) AS end"
        found = hw.calendar(frame, "day", time="at", zone="Europe/Berlin").selectExpr(*window).first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (found.start, found.end) == tuple(
        begin(date(2026, 3, day), "Europe/Berlin").timestamp() for day in (29, 30)
    )


def test_a_stream_forgets_days_that_are_over_and_judges_what_is_late(shop):
    from pyspark.sql.functions import count

    def days(orders):
        local = hw.calendar(orders, "day", time="at", zone="Europe/Berlin")
        return local.groupBy("window").agg(count("*").alias("n"))

    shop.make("orders")
    name = shop.name("days")
    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at", delay="1 hour", topic=shop.name("orders"))
    app.view(key="window", name=name)(days)
    kept = []
    for day in (27, 28, 29, 30, 31):
        midnight = begin(date(2026, 3, day), "Europe/Berlin")
        shop.send(
            [
                Order(day, 1, "de", 1, midnight),
                Order(day, 1, "de", 1, midnight + timedelta(hours=22, minutes=59)),
            ]
        )
        runner = Runner(app, shop.settings)
        runner.once()
        (progress,) = [each for each in runner.views[name].query.recentProgress if each["stateOperators"]]
        kept.append(progress["stateOperators"][0]["numRowsTotal"])
        assert progress["stateOperators"][0]["numRowsDroppedByWatermark"] == 0
    shop.send([Order(1, 1, "de", 1, begin(date(2026, 3, 28), "UTC"))])
    Runner(app, shop.settings).once()

    assert {key[:16]: row["n"] for key, row in shop.table(name).items()} == {
        "2026-03-26T23:00": 2,
        "2026-03-27T23:00": 2,
        "2026-03-28T23:00": 2,
        "2026-03-29T22:00": 2,
        "2026-03-30T22:00": 2,
    }
    assert kept == [1, 2, 3, 3, 3]
    assert [row["time"][:16] for _, row, _ in shop.records(f"{name}.late")] == ["2026-03-28T00:00"]
    assert results(Client(shop.bootstrap), name)[-1].late == 1


@pytest.mark.parametrize(
    ("unit", "time", "zone", "message"),
    [
        ("hour", "at", "UTC", "unknown unit; got 'hour'; expected day, week"),
        ("day", "name", "UTC", "time='name' is not a timestamp column.*of type string; expected at"),
        ("day", "when", "UTC", "time='when' is not a timestamp column.*no such column; expected at"),
        ("day", "at", "Europe/Berlinn", "unknown time zone; got 'Europe/Berlinn'"),
    ],
)
def test_an_unknown_calendar_is_refused(spark, unit, time, zone, message):
    frame = spark.createDataFrame([], "at timestamp, name string")
    with pytest.raises(UsageError, match=message):
        hw.calendar(frame, unit, time=time, zone=zone)
