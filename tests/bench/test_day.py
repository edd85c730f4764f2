"""The checker of `make soak` is checked: a fault that is put into its figures is found. No server and no Spark."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture(scope="module", autouse=True)
def _day_on_path():
    """The modules of the day are a program's own, imported by their short names."""
    folders = [str(BENCH / "day"), str(BENCH)]
    sys.path[:0] = folders
    yield
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def records():
    from plan import Plan
    from traffic import steps

    return list(steps(Plan(minutes=2, rate=50)))


def expected(records):
    from expected import Expected

    return Expected().add_all(records)


def planted(records, topic, change):
    """The records with one of a topic, a sound one in the middle, given to ``change``."""
    places = [at for at, each in enumerate(records) if getattr(each, "topic", "") == topic and each.value]
    at = places[len(places) // 2]
    return [*records[:at], *change(records[at]), *records[at + 1 :]]


VIEWS = {
    "orders": "revenue",
    "searches": "click_through",
    "page_views": "pages",
    "requests": "answers",
}


def test_the_same_plan_gives_the_same_day(records):
    from plan import Plan
    from traffic import steps

    assert records == list(steps(Plan(minutes=2, rate=50)))


def test_the_expected_sums_are_those_of_the_demos_own_tally(records):
    from headwater.demo.traffic import Traffic
    from plan import Plan

    plan = Plan(minutes=2, rate=50)
    demo = Traffic(seed=plan.seed, seconds=plan.seconds, rate=plan.rate, speed=plan.speed)
    assert sum(1 for _ in demo.events()) > 1_000
    figures, counted = demo.tally.figures(), expected(records)
    rows = counted.rows()
    assert {name: count for name, count in counted.records.items() if name != "customers"} == figures.records
    assert dict(counted.broken) == figures.broken
    assert sum(orders for orders, _ in rows["revenue"].values()) == figures.orders
    assert sum(cents for _, cents in rows["revenue"].values()) == sum(figures.cents.values())
    assert sum(searches for searches, _ in rows["click_through"].values()) == figures.searches
    assert sum(clicks for _, clicks in rows["click_through"].values()) == figures.matched_clicks
    assert sum(views for views, _ in rows["pages"].values()) == figures.page_views


@pytest.mark.parametrize(("topic", "view"), VIEWS.items())
def test_a_record_that_is_lost_is_found(records, topic, view):
    from compare import rows_differ

    sound, lost = expected(records).rows(), expected(planted(records, topic, lambda _: [])).rows()
    assert rows_differ(view, sound[view], sound[view]) == []
    assert len(rows_differ(view, lost[view], sound[view])) == 1


def test_an_answer_that_is_counted_twice_is_found(records):
    from compare import rows_differ

    sound, doubled = (
        expected(each).rows()["answers"]
        for each in (records, planted(records, "requests", lambda one: [one] * 2))
    )
    assert len(rows_differ("answers", doubled, sound)) == 1


def test_a_row_that_an_appending_view_has_twice_is_found(records):
    from compare import rows_differ

    sound = expected(records).rows()["large_orders"]
    first = next(iter(sound))
    assert rows_differ("large_orders", sound | {first: (2,)}, sound) == [
        f"large_orders: the row {first} is (2,), and should be (1,)"
    ]


def test_late_records_are_taken_from_what_a_view_must_have(records):
    page = next(each.value.decode() for each in records if getattr(each, "topic", "") == "page_views")
    counted = expected(records)
    views, fewer = (sum(row[0] for row in counted.rows(late)["pages"].values()) for late in ([], [page]))
    assert views - fewer == 1


def test_a_customer_who_is_deleted_leaves(records):
    from headwater.demo.traffic import Emission

    counted = expected(records)
    number = next(iter(counted.customers))
    members = counted.rows()["members"]
    counted.add(Emission(0.0, "customers", str(number).encode(), None))
    assert (
        sum(row[0] for row in members.values()) - sum(row[0] for row in counted.rows()["members"].values())
        == 1
    )


def test_a_total_that_differs_is_named():
    from compare import totals_differ

    assert totals_differ("read back", {"orders": 9, "clicks": 5}, {"orders": 10, "clicks": 5}) == [
        "read back, orders: 9 found, 10 sent"
    ]


ACCOUNT = {
    "topic": "orders",
    "consumer": "revenue",
    "produced": 10,
    "processed": 10,
    "waiting": 0,
    "dead": 0,
    "expired": 0,
    "lost": 0,
    "beyond": 0,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"processed": 9},
        {"lost": 1},
        {"beyond": 1},
        {"processed": 9, "waiting": 1},
        {"processed": 9, "expired": 1},
    ],
)
def test_an_account_with_a_gap_is_named(wrong):
    from compare import accounts_differ

    terms = ("processed", "waiting", "dead", "expired")
    assert accounts_differ([ACCOUNT], terms) == []
    assert len(accounts_differ([ACCOUNT | wrong], terms)) == 1


def series(per_minute):
    """Memory of 100 MB that grows, over an hour, with a sample every five seconds."""
    from samples import Series

    return Series("broker", "memory", [(at, 100 + per_minute * at / 60) for at in range(0, 3_600, 5)])


def test_a_leak_is_not_flat():
    from samples import judge

    assert judge(series(0), 3_600).flat
    assert judge(series(0.1), 3_600).flat
    assert not judge(series(2), 3_600).flat


def test_starts_that_get_slower_are_not_flat():
    from installation import Start
    from samples import judge_starts

    def starts(last):
        return [
            Start("pipeline", at, 99.0, cpu)
            for at, cpu in ((100, 90), (1_500, 30), (2_000, 32), (3_000, last))
        ]

    assert [each.flat for each in judge_starts(starts(33), 3_600)] == [True]
    assert [each.flat for each in judge_starts(starts(45), 3_600)] == [False]


def test_a_traceback_in_a_log_is_named(tmp_path):
    from checks import tracebacks

    (tmp_path / "sinks-1.log").write_text("fine\n")
    assert tracebacks(tmp_path) == []
    text = 'fine\nTraceback (most recent call last):\n  File "x.py", line 1\nKeyError: 5\n'
    (tmp_path / "sinks-2.log").write_text(text)
    assert tracebacks(tmp_path) == ["sinks-2.log, line 2: KeyError: 5"]


def test_files_are_counted_with_their_kind_of_topic():
    from samples import folder_of

    folder = "orders.late-0.9f0a8220000000000000000000000000"
    kinds = {"orders.late": "streams kept in full"}
    assert folder_of(Path(f"data/topics/{folder}/00.log"), kinds) == "streams kept in full"
    assert folder_of(Path("data/checkpoints/revenue/offsets/1"), kinds) == "checkpoints and state"
    assert folder_of(Path("stores/lake/large_orders/part-0-0-5.parquet"), kinds) == "stores outside: lake"


def test_every_topic_is_counted_with_its_kind():
    from scaled import kind

    assert kind("orders", "delete") == "streams kept in full"
    assert kind("requests", "delete") == "passing streams"
    assert kind("warehouse.stock", "delete") == "tables and views"
    assert kind("aside", "delete") == "topics on the side"
    assert {kind(name, "compact") for name in ("__consumer_offsets", "revenue.progress")} == {
        "Headwater's own topics"
    }


def test_every_topic_of_the_day_rolls_and_no_table_is_cut_by_retention():
    from plan import Plan
    from scaled import PASSING, settings

    plan = Plan(minutes=60)
    assert all("retention.ms" in settings(plan, topic, "delete") for topic in PASSING)
    assert settings(plan, "orders", "delete") == {"segment.ms": "60000"}
    assert settings(plan, "revenue", "compact")["min.cleanable.dirty.ratio"] == "0.1"
    assert "retention.ms" not in settings(plan, "revenue", "compact")
