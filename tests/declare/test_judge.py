"""Whether a record fits its type to the last digit, and which field does not: what sinks and reasons go by."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import headwater as hw
from headwater.declare.field_types import SCALARS
from headwater.declare.judge import Judge, judge_of
from headwater.declare.schema import encode

PAGE = Path(__file__).parents[2] / "docs" / "types.md"


class Line(hw.Event):
    price: hw.Decimal(18, 4)
    note: str | None = None


class Order(hw.Event):
    order_id: int
    total: float
    paid: Decimal
    at: datetime
    tags: list[str] = []  # noqa: RUF012 (msgspec copies it)
    lines: list[Line] = []  # noqa: RUF012
    rate: hw.AnyFloat = 0.0
    names: list[str | None] = []  # noqa: RUF012
    day: date | None = None
    raw: bytes = b""
    big: bool = False


RIGHT = '{"order_id":1,"total":2.5,"paid":"12.30","at":"2026-01-05T09:00:00Z"}'


def fault(**fields: str) -> str:
    """What is wrong with a record with these fields, each as JSON; empty if nothing is."""
    given = {"order_id": "1", "total": "2.5", "paid": '"12.30"', "at": '"2026-01-05T09:00:00Z"'} | fields
    record = "{" + ",".join(f'"{name}":{value}' for name, value in given.items() if value) + "}"
    return str(judge_of(Order).fault(record.encode()) or "")


A_TIME = "a time with a zone, like 2026-01-05T09:00:00Z, in the years 1 to 9999"
WRONG = {
    "an integer over 64 bits": (
        {"order_id": "9223372036854775808"},
        "field 'order_id': got 9223372036854775808; expected a whole number of 64 bits",
    ),
    "a text for a number": ({"order_id": '"1"'}, "field 'order_id': got \"1\"; expected a whole number of"),
    "a fraction for a whole number": ({"order_id": "1.0"}, "field 'order_id': got 1.0; expected"),
    "NaN": ({"total": '"NaN"'}, "field 'total': got \"NaN\"; expected a finite number"),
    "a number past the largest double": ({"total": "1e400"}, "field 'total': got 1e400; expected a finite"),
    "a decimal with too many digits after the point": (
        {"paid": '"1.0000000001"'},
        "field 'paid': got \"1.0000000001\"; expected a decimal with at most 29 digits before the point and 9",
    ),
    "a decimal with too many digits in a list": (
        {"lines": '[{"price":"1.5"},{"price":"1.23456"}]'},
        "field 'lines[1].price': got \"1.23456\"; expected a decimal with at most 14 digits before the point",
    ),
    "a decimal with too many digits before the point": (
        {"lines": '[{"price":123456789012345}]'},
        "field 'lines[0].price': got 123456789012345; expected a decimal",
    ),
    "half a character": ({"tags": r'["\ud83d"]'}, "field 'tags[0]': got \"\\ud83d\"; expected a text without"),
    "a null in a list": ({"tags": '["a",null]'}, "field 'tags[1]': got null; expected a text"),
    "a time without zone": ({"at": '"2026-01-05T09:00:00"'}, f"field 'at': got \"2026-01-05T09:00:00\"; expected {A_TIME}"),
    "a time as a number": ({"at": "1767603600"}, f"field 'at': got 1767603600; expected {A_TIME}"),
    "a time past the year 9999": ({"at": '"9999-12-31T23:30:00-01:00"'}, "in the years 1 to 9999"),
    "a time that does not exist": ({"at": '"2026-02-30T09:00:00Z"'}, "field 'at': got \"2026-02-30T09:00:00Z\""),
    "a date that is a time": ({"day": '"2026-01-05T09:00:00Z"'}, "expected a date like 2026-01-05"),
    "bytes that are not base64": ({"raw": '"a"'}, "field 'raw': got \"a\"; expected bytes in base64"),
    "a text for a boolean": ({"big": '"true"'}, "field 'big': got \"true\"; expected true or false"),
    "a field that is missing": ({"total": ""}, "field 'total': got nothing; expected a finite number"),
    "a null for a required field": ({"total": "null"}, "field 'total': got null; expected a finite number"),
    "an object for a list": ({"tags": "{}"}, "field 'tags': got an object; expected a list"),
    "a list for an object": ({"lines": "[[]]"}, "field 'lines[0]': got a list; expected an object"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_field_that_does_not_fit_is_named_with_its_value_and_what_was_expected(name):
    fields, said = WRONG[name]
    assert said in fault(**fields)


FITS = {
    "a decimal with zeros at its end": {"paid": '"1.50000000000000"'},
    "a decimal as a number": {"paid": "1e3"},
    "the largest whole number": {"order_id": "9223372036854775807"},
    "NaN where it is meant": {"rate": '"NaN"'},
    "a null where it is meant": {"names": '["a",null]'},
    "a null for a field with a default": {"tags": "null", "day": "null"},
    "a zone with hours": {"at": '"2026-01-05 10:00:00.5+01:00"'},
    "a whole character of two halves": {"tags": r'["\ud83d\ude00"]'},
    "a field that is not declared": {"more": '{"a":[1e999]}'},
    "a number where text is declared": {"tags": "[5]"},
}


@pytest.mark.parametrize("name", FITS)
def test_what_its_type_can_hold_fits(name):
    assert fault(**FITS[name]) == ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "the value is null; expected one JSON object"),
        (b"", "the value is empty"),
        (b"[1]", 'the value is "[1]"; expected one JSON object'),
        (b"\xff{}", "the value is not UTF-8 at byte 0"),
        (b"{", "the value is not JSON: "),
        (RIGHT.encode() + b" more", "the value is not JSON: "),
        (b'{"total":NaN}', "the value is not JSON: NaN without quotes"),
        (b'{"tags":' + b"[" * 100_000, "the value is not JSON: "),
        (b'{"tags":' + b"1" * 5_000 + b"}", "field 'tags': got 1111"),
    ],
)
def test_a_value_that_is_not_an_object_says_so(value, said):
    assert str(judge_of(Order).fault(value)).startswith(said)


def test_an_encoded_event_fits_its_type():
    moment = datetime.fromisoformat("2026-01-05T09:00:00+00:00")
    lines = [Line(Decimal("99999999999999.9999"))]
    order = Order(1, 2.5, Decimal("12.30"), moment, ["a"], lines, float("inf"), [None], moment.date(), b"\0")
    assert judge_of(Order).fault(encode(order)) is None


def test_rows_in_an_envelope_may_have_days_as_numbers_and_times_without_zone():
    class Row(hw.Row):
        day: date
        at: datetime

    value = b'{"day":20458,"at":"2026-01-05 09:00:00"}'
    assert judge_of(Row, lenient=True).fault(value) is None
    assert str(judge_of(Row).fault(value)) == "field 'day': got 20458; expected a date like 2026-01-05"


@pytest.mark.parametrize("digits", [(0, 0), (39, 0), (4, 5), (4, -1)])
def test_a_decimal_that_spark_does_not_have_is_refused(digits):
    with pytest.raises(hw.UsageError, match=r"expected hw\.Decimal\(precision, scale\)"):
        hw.Decimal(*digits)


def test_the_judge_of_a_type_is_made_once():
    assert judge_of(Order) is judge_of(Order)
    assert isinstance(judge_of(Order), Judge)


def test_the_page_of_types_has_every_type():
    table = [line.split("|")[2].strip() for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    kinds = {kind.strip("`").partition("(")[0].partition("<")[0] for kind in table}
    assert kinds == {*SCALARS.values(), "ARRAY"}
