"""The demo's check finds every kind of difference; a check that cannot fail proves nothing."""

from headwater.demo.check import differences, invalid_differences, sum_differences
from headwater.demo.tally import Figures

KEY = ("window", "country")


def row(country, revenue, orders=1):
    return {
        "window": {"start": "09:00", "end": "09:05"},
        "country": country,
        "revenue": revenue,
        "orders": orders,
    }


def test_equal_rows_in_another_order_do_not_differ():
    assert (
        differences("revenue", KEY, [row("DE", 1.5), row("FR", 2.0)], [row("FR", 2.0), row("DE", 1.5)]) == []
    )


def test_doubles_may_differ_in_their_last_bits():
    assert differences("revenue", KEY, [row("DE", 0.1 + 0.2)], [row("DE", 0.3)]) == []


def test_a_wrong_a_missing_and_a_doubled_row_are_named():
    shown = [row("DE", 1.5), row("DE", 1.5), row("FR", 2.0)]
    batch = [row("DE", 1.5), row("FR", 2.01), row("IT", 3.0)]
    problems = differences("revenue", KEY, shown, batch)
    assert problems[0] == "revenue: the row 09:00 DE is there 2 times"
    assert problems[1].startswith("revenue: the row 09:00 FR is {")
    assert problems[2] == "revenue: the row 09:00 IT of the batch run is missing"


def test_a_row_that_the_batch_run_does_not_have_is_named():
    assert differences("revenue", KEY, [row("DE", 1)], []) == [
        "revenue: the row 09:00 DE is not in the batch run"
    ]


def test_sums_are_compared_with_the_generator():
    figures = Figures(
        records={"orders": 4},
        broken={"orders": 1},
        repeated={"orders": 1},
        searches=3,
        matched_clicks=2,
        orders=2,
        cents={"DE": 150, "FR": 201},
        page_views=5,
        requests=6,
    )
    rows = {
        "click_through": [{"searches": 3, "clicks": 2}],
        "revenue": [row("DE", 1.5), row("FR", 2.0)],
        "page_views_per_minute": [{"views": 5}],
        "requests_per_second": [{"requests": 2}, {"requests": 3}],
    }
    assert sum_differences(rows, figures) == {
        "click_through": [],
        "revenue": ["cents of FR: 200 shown, 201 sent"],
        "page_views_per_minute": [],
        "requests_per_second": ["requests: 5 shown, 6 sent"],
    }
    assert invalid_differences({"orders": 1}, figures) == []
    assert invalid_differences({"orders": 2}, figures) == ["invalid orders: 2 shown, 1 sent"]
