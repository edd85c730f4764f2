"""Sketches merged over HTTP: a day from its minutes."""

import base64

import datasketches
import pytest

from support.servers import wait_until


def users(names) -> dict:
    sketch = datasketches.hll_sketch(12, datasketches.HLL_8)
    for name in names:
        sketch.update(name)
    text = base64.b64encode(sketch.serialize_updatable()).decode()
    return {"estimate": round(sketch.get_estimate()), "error": 0.01625, "sketch": text}


def row(minute: int, country: str, names, **more) -> dict:
    start = f"2026-01-05T09:{minute:02}:00.000000Z"
    return {"window": {"start": start, "end": start}, "country": country, "users": users(names), **more}


@pytest.fixture
def filled(console, log, revenue):
    """Five minutes of two countries: 30 users in each minute, 10 of them new."""
    rows = {}
    for minute in range(5):
        for country in ("DE", "FR"):
            names = [f"{country}{n}" for n in range(minute * 10, minute * 10 + 30)]
            rows[f"{country}{minute}"] = row(
                minute, country, names, plain=users(names)["sketch"], page="start"
            )
    log.put(revenue, rows)
    wait_until(lambda: len(console.rows(revenue)) == 10, 20, "ten rows")
    return console


def test_all_rows_that_fit_are_one_answer(filled, revenue):
    status, body = filled.get(f"/views/{revenue}?merge=users")
    assert status == 200
    assert body["rows"] == [{"estimate": 140, "error": 0.01625, "rows": 10}]
    assert (body["view"], body["key"], body["more"]) == (revenue, [], False)
    assert body["position"].partition("~")[2].startswith(f"{revenue}:")
    part = filled.rows(revenue, "?merge=users&country=DE&window.start.lt=2026-01-05T09:02:00Z")
    assert part == [{"estimate": 40, "error": 0.01625, "rows": 2}]
    assert filled.rows(revenue, "?merge=users&country=GB") == []


def test_one_answer_for_each_value(filled, revenue):
    answer = {"estimate": 70, "error": 0.01625, "rows": 5}
    expected = [{"country": "DE", **answer}, {"country": "FR", **answer}]
    assert filled.rows(revenue, "?merge=users&by=country") == expected
    assert filled.rows(revenue, "?merge=plain&by=country") == expected
    assert filled.rows(revenue, "?merge=users.sketch&by=country") == expected
    both = filled.rows(revenue, "?merge=users&by=country,window.start&country=FR")
    assert [(each["window.start"][14:16], each["estimate"]) for each in both] == [
        (f"{minute:02}", 30) for minute in range(5)
    ]


def test_a_row_without_a_sketch_is_counted_and_adds_nothing(filled, log, revenue):
    log.put(revenue, {"GB0": row(0, "GB", []) | {"users": None}})
    wait_until(lambda: len(filled.rows(revenue)) == 11, 20, "one more row")
    assert filled.rows(revenue, "?merge=users&by=country")[2] == {
        "country": "GB",
        "estimate": None,
        "error": None,
        "rows": 1,
    }
    assert filled.rows(revenue, "?merge=users")[0]["estimate"] == 140


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("merge=page", "merge=page: the value is not a sketch"),
        ("merge=window", "merge=window: the value is not a sketch; got"),
        ("merge=user", "unknown column 'user'; columns are: window, country, users, plain, page"),
        ("merge=users&by=countr", "unknown column 'countr'; did you mean 'country'?"),
        ("merge=users&by=window", "column 'window' has parts"),
        ("merge=users&order=country", "order does not go with merge"),
        ("merge=users&combine=minus", "combine is wrong; got 'minus'; expected union or intersection"),
        ("merge=users&combine=intersection", "merge=users: distinct sketches have no intersection"),
        ("merge=users&has=DE1", "merge=users: distinct sketches cannot look up values"),
    ],
)
def test_what_cannot_be_merged_is_one_clear_line(filled, revenue, query, message):
    status, body = filled.get(f"/views/{revenue}?{query}")
    assert status == 400
    assert message in body["error"]
    assert "\n" not in body["error"]


def test_sketches_of_different_kinds_are_refused(filled, log, revenue):
    other = datasketches.update_theta_sketch(12)
    other.update("x")
    text = base64.b64encode(other.compact().serialize()).decode()
    log.put(revenue, {"DE9": row(9, "DE", []) | {"users": {"sketch": text}}})
    wait_until(lambda: len(filled.rows(revenue)) == 11, 20, "one more row")
    status, body = filled.get(f"/views/{revenue}?merge=users")
    assert status == 400
    assert body["error"] == (
        "merge=users: sketches of different kinds cannot be merged; got distinct and members"
    )


def test_a_column_called_by_is_filtered_as_ever_without_a_merge(console, log, revenue):
    log.put(revenue, {"a": {"by": 1, "merge": 2}, "b": {"by": 2, "merge": 2}})
    wait_until(lambda: len(console.rows(revenue)) == 2, 20, "two rows")
    assert console.rows(revenue, "?by=2&merge.eq=2") == [{"by": 2, "merge": 2}]
