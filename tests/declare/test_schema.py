"""Event types to JSON and to Spark schemas, without Spark."""

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from headwater.declare.schema import Event, columns, ddl, encode, key_text
from headwater.errors import UsageError
from headwater.view.tables.query import parse


class Address(Event):
    street: str
    since: date | None = None


class Order(Event):
    order_id: int
    total: float
    paid: bool
    at: datetime
    price: Decimal
    raw: bytes
    address: Address
    tags: list[str]
    note: str | None = None
    country: str = "??"


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
ORDER = Order(7, 1.5, True, NOON, Decimal("12.30"), b"\x00\xff", Address("Elm"), ["a"])


def test_every_supported_type_has_a_spark_type():
    assert ddl(Order) == (
        "`order_id` BIGINT, `total` DOUBLE, `paid` BOOLEAN, `at` TIMESTAMP, `price` DECIMAL(38,9), `raw` BINARY, "
        "`address` STRUCT<`street`: STRING, `since`: DATE>, `tags` ARRAY<STRING>, `note` STRING, `country` STRING"
    )


def test_a_field_is_required_unless_it_is_optional_or_has_a_default():
    required = {column.name for column in columns(Order) if column.required}
    assert required == {"order_id", "total", "paid", "at", "price", "raw", "address", "tags"}
    assert {column.name: column.default for column in columns(Order)}["country"] == '"??"'


def test_a_type_without_a_spark_form_is_refused_by_the_name_of_its_field():
    class Bad(Event):
        wishes: dict[str, int]

    with pytest.raises(
        UsageError, match=r"field Bad\.wishes has a type that Spark does not have; got dict; expected int"
    ):
        columns(Bad)


def test_a_field_that_begins_with_an_underscore_is_refused():
    class Bad(Event):
        _version: int

    with pytest.raises(UsageError, match=r"Bad\._version begins with '_'"):
        columns(Bad)


def test_a_class_that_is_not_an_event_is_refused():
    with pytest.raises(UsageError, match="is not an event type"):
        columns(int)


def test_events_are_encoded_in_the_wire_form():
    assert json.loads(encode(ORDER)) == {
        "order_id": 7,
        "total": 1.5,
        "paid": True,
        "at": "2026-01-05T12:00:00.000000Z",
        "price": "12.30",
        "raw": "AP8=",
        "address": {"street": "Elm", "since": None},
        "tags": ["a"],
        "note": None,
        "country": "??",
    }


def test_an_encoded_event_decodes_to_itself():
    import msgspec

    assert msgspec.json.decode(encode(ORDER), type=Order) == ORDER


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["de"], "de"),
        ([42], "42"),
        ([True], "true"),
        ([None], "[null]"),
        (["[null]"], '["[null]"]'),
        (["[a"], "[a"),
        (['["a"]'], '["[\\"a\\"]"]'),
        ([Decimal("1.50")], "1.50"),
        ([datetime(2026, 1, 5, 10, tzinfo=timezone(timedelta(hours=1)))], "2026-01-05T09:00:00.000000Z"),
        (["de", 42], '["de",42]'),
        (['a"b\\', None, "ü"], '["a\\"b\\\\",null,"ü"]'),
        ([NOON, date(2026, 1, 5)], '["2026-01-05T12:00:00.000000Z","2026-01-05"]'),
    ],
)
def test_key_text_is_one_value_as_text_and_several_as_a_compact_array(values, text):
    assert key_text(values) == text


@pytest.mark.parametrize("year", [1, 44, 999, 1000, 9999])
def test_a_year_has_four_digits_on_the_wire(year):
    moment = datetime(year, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    text = f"{year:04}-12-31T23:59:59.999999Z"
    assert key_text([moment]) == key_text([moment.replace(tzinfo=None)]) == text
    assert parse([("at", f"{year:04}-12-31T23:59:59.999999Z")]).filters[0].value == text
