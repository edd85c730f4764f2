"""Sketches: as exact as they say, and merged by us as by Spark; the examples of docs/analytics.md, run."""

import asyncio
import re
import sys
import types
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

import headwater as hw
from headwater.declare.schema import encode
from headwater.errors import UsageError
from headwater.pipeline.run.runner import Runner
from headwater.sketches import merge
from headwater.view.hub import Hub
from headwater.view.results import ViewProgress
from headwater.view.tables.delivery import Delivery
from headwater.view.tables.reader import ViewTable
from headwater.view.web import Info, ViewInfo, build
from support.ordershop import Shop
from support.servers import wait_until

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs" / "analytics.md"
ROWS = 60_000
MINUTES = 12
USERS = 30_000


def sketches() -> list:
    return [
        hw.sketch.distinct("user").alias("distinct"),
        hw.sketch.members("user").alias("members"),
        hw.sketch.percentiles("value", (0.5, 0.999)).alias("percentiles"),
        hw.sketch.frequent("page", 3).alias("frequent"),
        hw.sketch.bloom("user", 5_000).alias("bloom"),
    ]


def user(n: int) -> str:
    return f"üser-{n * 7_919 % USERS}"


def page(n: int) -> str:
    return "start" if n % 2 else "cart" if n % 6 == 0 else f"page-{n}"


@pytest.fixture(scope="module")
def made(spark):
    """Sketches of minutes, and of all of them: from Spark's union functions, and from all values at once."""
    from pyspark.sql import functions as F  # noqa: N812

    numbers = [(n, n * MINUTES // ROWS, user(n), n * 7_919 % ROWS / ROWS, page(n)) for n in range(ROWS)]
    visits = spark.createDataFrame(
        numbers, "n int, minute int, user string, value double, page string"
    ).cache()
    minutes = visits.groupBy("minute").agg(*sketches())
    kept = minutes.collect()
    united = spark.createDataFrame(kept, minutes.schema).agg(
        F.hll_sketch_estimate(F.hll_union_agg("distinct.sketch")).alias("distinct"),
        F.theta_sketch_estimate(F.theta_union_agg("members.sketch", F.lit(16))).alias("members"),
        F.kll_sketch_get_quantile_double(F.kll_merge_agg_double("percentiles.sketch"), F.lit(0.5)).alias(
            "p50"
        ),
    )
    return {row.minute: row for row in kept}, united.first(), visits.agg(*sketches()).first()


def merged(rows, column: str) -> merge.Merging:
    first, *others = (bytes(row[column].sketch) for row in rows)
    found = merge.begin(first)
    for each in others:
        merge.add(found, each)
    return found


def test_a_row_is_as_exact_as_it_says(made):
    minutes, _, _ = made
    for minute, row in minutes.items():
        numbers = range(minute * ROWS // MINUTES, (minute + 1) * ROWS // MINUTES)
        users = {user(n) for n in numbers}
        for found in (row.distinct, row.members):
            assert found.estimate == pytest.approx(len(users), rel=3 * found.error)
        assert row.bloom.estimate == pytest.approx(len(users), rel=0.05)
        values = sorted(n * 7_919 % ROWS / ROWS for n in numbers)
        for name, rank in (("p50", 0.5), ("p99_9", 0.999)):
            there = sum(value <= row.percentiles.estimate[name] for value in values) / len(values)
            assert there == pytest.approx(rank, abs=3 * row.percentiles.error)
        counts = {each.item: each["count"] for each in row.frequent.estimate}
        slack = row.frequent.error * len(numbers)
        for name, exact in (("start", len(numbers) / 2), ("cart", len(numbers) / 6)):
            assert exact - 1 <= counts[name] <= exact + 1 + slack
        assert len(row.distinct.sketch) < 5_000


def test_a_filter_misses_nothing_and_is_wrong_as_often_as_it_says(made):
    minutes, _, _ = made
    row = minutes[0]
    found = merge.begin(bytes(row.bloom.sketch))
    assert all(merge.has(found, user(n)) for n in range(ROWS // MINUTES))
    wrong = sum(merge.has(found, f"nobody-{n}") for n in range(5_000)) / 5_000
    assert 0.005 < row.bloom.error <= 0.011
    assert row.bloom.error / 2 < wrong < row.bloom.error * 2
    assert (found.estimate(None), found.error) == (row.bloom.estimate, pytest.approx(row.bloom.error))
    both = merged([minutes[0], minutes[1]], "bloom")
    assert all(merge.has(both, user(n)) for n in range(0, 2 * ROWS // MINUTES, 7))
    assert both.error > found.error


def test_merged_minutes_are_what_spark_makes_of_them_and_what_the_day_says_itself(made):
    minutes, united, day = made
    for name in ("distinct", "members"):
        found = merged(minutes.values(), name)
        assert found.estimate(None) == pytest.approx(united[name], abs=1)
        assert found.estimate(None) == pytest.approx(day[name].estimate, rel=4 * day[name].error)
        assert found.estimate(None) == pytest.approx(USERS, rel=3 * found.error)
    found = merged(minutes.values(), "percentiles")
    estimate = found.estimate(day.percentiles.estimate.asDict())
    for other in (united.p50, day.percentiles.estimate.p50, 0.5):
        assert estimate["p50"] == pytest.approx(other, abs=4 * found.error)
    assert estimate["p99_9"] == pytest.approx(0.999, abs=3 * found.error)
    counts = {each["item"]: each["count"] for each in merged(minutes.values(), "frequent").estimate([1, 2])}
    own = {each.item: each["count"] for each in day.frequent.estimate}
    for name in ("start", "cart"):
        assert counts[name] == pytest.approx(own[name], abs=2 * day.frequent.error * ROWS)


def test_nothing_is_a_sketch_too(spark):
    rows = spark.createDataFrame([(None, None, None)], "user string, value double, page string")
    row = rows.agg(*sketches()).first()
    assert (row.distinct.estimate, row.members.estimate, row.frequent.estimate) == (0, 0, [])
    assert row.percentiles.estimate.asDict() == {"p50": None, "p99_9": None}
    assert (row.bloom.estimate, row.bloom.error, row.bloom.sketch) == (0, 0, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: hw.sketch.distinct("user", error=0),
            r"distinct: error= is too small; got 0; expected at least",
        ),
        (lambda: hw.sketch.members("user", error=0.001), r"members: error= is too small"),
        (lambda: hw.sketch.percentiles("ms", (50, 99)), r"ranks= is wrong; got \(50, 99\)"),
        (lambda: hw.sketch.frequent("page", 1_000), r"k= is wrong; got 1000; expected 1 to 383"),
        (lambda: hw.sketch.bloom("user", 10**7), r"too large for a record"),
        (lambda: hw.sketch.bloom("user", 0), r"its size is wrong"),
    ],
)
def test_what_cannot_be_had_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


# ---- docs/analytics.md ---------------------------------------------------------------------------------

BEGIN = datetime(2026, 3, 29, 10, tzinfo=UTC)


def documented(monkeypatch) -> types.ModuleType:
    """The application that the examples are."""
    module = types.ModuleType("analytics")
    monkeypatch.setitem(sys.modules, "analytics", module)
    code = "\n".join(re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL))
    exec(compile(code, str(DOCS), "exec"), module.__dict__)  # noqa: S102
    return module


@pytest.mark.timeout(3600)
def test_the_examples_run_and_a_day_is_merged_from_its_minutes(spark, own_broker, tmp_path, monkeypatch):
    module = documented(monkeypatch)
    shop = Shop(own_broker.bootstrap, tmp_path / "app")
    shop._client.ensure(["visits"], 2, compact=False)
    visits = [
        module.Visit(
            f"u{n % 30 + 10 * minute}", site, f"p{n % 4 % 3}", float(n), BEGIN + timedelta(minutes=minute)
        )
        for minute in range(5)
        for site in ("blog", "shop")
        for n in range(60)
    ]
    shop.send_to("visits", [encode(each) for each in visits])
    Runner(module.app, shop.settings).once()

    views = tuple(ViewInfo(view.name, view.key) for view in module.app.graph().views.values())
    hub, reach, folder = Hub(), ViewProgress(shop.bootstrap), tmp_path / "views"
    delivery = Delivery(shop.bootstrap, [view.name for view in views], folder, hub.publish)
    delivery.start()
    try:
        tables = {view.name: ViewTable(folder / f"{view.name}.db") for view in views}
        sizes = {
            "rates": 10,
            "rolling": 28,
            "pages": 6,
            "slowest": 10,
            "days": 2,
            "minutes": 10,
            "sql_minutes": 10,
        }
        wait_until(lambda: {n: t.extent().rows for n, t in tables.items()} == sizes, 60, "all rows")
        look(build(folder, hub, reach, lambda: Info("analytics", "", views)))
    finally:
        delivery.stop()
        hub.close()
        reach.close()


def look(console) -> None:
    async def get(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(console)) as client:
            return await client.get(f"http://localhost/views/{path}")

    def rows(path: str) -> list[dict]:
        answer = asyncio.run(get(path))
        assert answer.status_code == 200, answer.text
        return answer.json()["rows"]

    assert rows("rates?site=shop&limit=1")[0]["visits_per_second"] == 1
    assert rows("rolling?site=shop&window.start=2026-03-29T09:55:00Z")[0]["ms"] == 29.5
    assert [row["n"] for row in rows("pages?site=blog&order=-n")] == [150, 75, 75]
    assert [each["ms"] for each in rows("slowest?limit=1")[0]["slowest"]] == [59, 58, 57]
    day = rows("days?site=blog")[0]
    assert day["window"] == {"start": "2026-03-28T23:00:00.000000Z", "end": "2026-03-29T22:00:00.000000Z"}
    assert (day["n"], day["users"]["estimate"]) == (300, 70)

    every = {"estimate": 70, "rows": 5}
    for view, column in (("minutes", "users"), ("sql_minutes", "users"), ("sql_minutes", "members")):
        found = rows(f"{view}?merge={column}&by=site")
        assert [{name: row[name] for name in every} for row in found] == [every, every]
    first = rows("minutes?limit=1")[0]["users"]
    assert (first["estimate"], first["error"]) == (30, 0.01625)
    both = "merge=members&combine=intersection&window.start.lt=2026-03-29T10:02:00Z"
    assert rows(f"sql_minutes?{both}")[0]["estimate"] == 20
    for view, names in (("minutes", {"p50", "p99"}), ("sql_minutes", {"p50", "p90", "p99"})):
        (found,) = rows(f"{view}?merge=ms&site=shop")
        assert set(found["estimate"]) == names
        assert found["estimate"]["p50"] == pytest.approx(29.5, abs=60 * 3 * found["error"])
        assert rows(f"{view}?merge=pages")[0]["estimate"][0] == {"item": "p0", "count": 300}
    assert [rows(f"minutes?merge=seen&has={name}")[0]["has"] for name in ("u1", "u69", "nobody")] == [
        True,
        True,
        False,
    ]
