"""What counts as a difference between a view and its batch; a check that cannot fail proves nothing."""

import pytest

from headwater.operate.compare_rows import unequal
from headwater.operate.views.check import CheckReport
from headwater.operate.views.row_diff import Difference, diff


@pytest.mark.parametrize(
    ("one", "other", "columns"),
    [
        ({"a": 0.1 + 0.2, "b": 1}, {"a": 0.3, "b": 1}, []),
        ({"a": {"x": [0.1 + 0.2]}}, {"a": {"x": [0.3]}}, []),
        ({"a": 1.0, "b": "x"}, {"a": 1.00000001, "b": "x"}, ["a"]),
        ({"a": 1}, {"a": 1.0}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": "0.30"}, {"a": "0.3"}, ["a"]),
        ({"a": None}, {}, ["a"]),
        ({}, {"b": 1}, ["b"]),
        ({"a": [1, 2]}, {"a": [2, 1]}, ["a"]),
        ({"a": {"start": "9", "end": "10"}}, {"a": {"start": "9", "end": "11"}}, ["a"]),
    ],
)
def test_doubles_may_differ_in_their_last_digits_and_nothing_else_at_all(one, other, columns):
    assert unequal(one, other) == columns


def test_the_difference_at_the_smallest_key_is_named():
    shown = {"b": [{"n": 1}], "c": [{"n": 2}], "d": [{"n": 3}]}
    answer = {"b": [{"n": 1}], "d": [{"n": 4}], "e": [{"n": 5}]}
    assert diff(shown, answer, append=False) == (3, Difference("c", {"n": 2}, None))
    assert diff(shown, shown, append=False) == (0, None)
    assert Difference("d", {"n": 3, "m": 1}, {"n": 4, "m": 1}).columns == ["n"]


def test_rows_that_were_appended_are_as_many_as_in_the_batch():
    one, two, near = {"n": 1.0}, {"n": 2.0}, {"n": 1.0 + 1e-12}
    assert diff({"k": [one, two, one]}, {"k": [near, one, two]}, append=True) == (0, None)
    assert diff({"k": [one, two]}, {"k": [one, one, two]}, append=True) == (1, Difference("k", None, one))
    assert diff({"k": [two, two]}, {"k": [one, two]}, append=True) == (1, Difference("k", two, one))


def test_of_several_rows_with_a_key_a_view_has_one():
    several = {"k": [{"n": 1}, {"n": 2}]}
    assert diff({"k": [{"n": 2}]}, several, append=False) == (0, None)
    assert diff({"k": [{"n": 3}]}, several, append=False) == (1, Difference("k", {"n": 3}, {"n": 1}))
    assert diff({}, several, append=False) == (1, Difference("k", None, {"n": 1}))


def test_what_was_found_is_said_in_a_line_or_with_both_rows():
    found = CheckReport(view="revenue", rows=3280, records=12345, complete_to="2026-01-05T09:00:00.000000Z")
    assert str(found) == (
        "revenue: 3,280 rows equal a batch over 12,345 records, complete up to 2026-01-05T09:00:00.000000Z"
    )
    first = Difference("DE", {"n": 1, "m": 0}, {"n": 2, "m": 0})
    wrong = CheckReport(view="v", rows=9, records=10, differing=2, first=first, notes=("a note",))
    assert str(wrong).splitlines() == [
        "v: 2 of 9 rows differ from a batch over 10 records",
        "the first is DE, in n",
        '  view   {"n":1,"m":0}',
        '  batch  {"n":2,"m":0}',
        "a note",
    ]
