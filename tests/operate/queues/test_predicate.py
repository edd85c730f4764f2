"""Predicates over the JSON of messages."""

import pytest

from headwater.errors import UsageError
from headwater.operate.queues.predicate import Predicate, chooser
from headwater.record import Record

MESSAGE = (
    b'{"country": "DE", "total": 100, "paid": true, "address": {"city": "Bonn"}, "note": null, "id": "7"}'
)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("country = DE", True),
        ('country = "DE"', True),
        ("country=FR", False),
        ("country != FR", True),
        ("total >= 100", True),
        ("total > 100", False),
        ("total = 100.0", True),
        ("address.city = Bonn", True),
        ("address.street = Weg", False),
        ("address.street != Weg", False),
        ("paid = true", True),
        ("paid = 1", False),
        ("note = null", True),
        ("id = 7", False),
        ('id = "7"', True),
        ("address < 3", False),
    ],
)
def test_a_field_is_compared_as_json(text, matches):
    assert Predicate.parse(text).matches(MESSAGE) is matches


@pytest.mark.parametrize("message", [None, b"", b"\xff", b"[1]", b"text"])
def test_what_is_no_json_object_matches_nothing(message):
    assert not Predicate.parse("country != FR").matches(message)


@pytest.mark.parametrize("text", ["", "country", "country =", "= DE", "a b = c"])
def test_a_predicate_that_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError, match="--where is wrong"):
        Predicate.parse(text)


def test_key_and_predicate_are_both_needed():
    fits = chooser("ada", "country = DE")

    assert fits(Record(b"ada", MESSAGE))
    assert not fits(Record(b"bob", MESSAGE))
    assert not fits(Record(b"ada", b"{}"))
    assert chooser(None, None) is None
