"""Latencies are worked out from the last event that counts in a window and the last change of that window."""

from datetime import UTC, datetime

import msgspec

from headwater.demo.event import TOPICS, Click, Order, Request, Search
from headwater.demo.latency import delays, percentile


class Record:
    def __init__(self, event, sent, value=None):
        self._topic, self._sent = TOPICS[type(event)], sent
        self._value = value or msgspec.json.encode(event)

    def topic(self):
        return self._topic

    def value(self):
        return self._value

    def timestamp(self):
        return 1, self._sent


def at(minute, second=0):
    return datetime(2026, 1, 5, 9, minute, second, tzinfo=UTC)


def test_the_last_event_of_a_window_is_measured_against_its_last_change():
    records = [
        Record(Request(1, "/", 200, 5, at(1, 7)), 1_000),
        Record(Request(2, "/", 200, 5, at(1, 7)), 1_500),
    ]
    assert delays(records, {"requests_per_second": {at(1, 7): 1_540}})["requests_per_second"] == [40]


def test_an_order_that_came_twice_counts_when_it_first_came():
    order = Order(1, 1, 1, "DE", 100, at(3))
    records = [Record(order, 1_000), Record(order, 5_000)]
    assert delays(records, {"revenue": {at(0): 1_100}})["revenue"] == [100]


def test_a_click_counts_in_the_window_of_its_search_and_only_if_it_matches():
    records = [
        Record(Search(1, 1, "tent", "DE", at(4)), 1_000),
        Record(Click(2, 1, 1, 9, at(6)), 2_000),
        Record(Click(3, 77, 1, 9, at(6)), 9_000),
    ]
    assert delays(records, {"click_through": {at(0): 2_300}})["click_through"] == [300]


def test_broken_records_and_windows_that_never_changed_are_left_out():
    request = Request(1, "/", 200, 5, at(1))
    assert delays([Record(request, 1_000, b"{"), Record(request, 2_000)], {})["requests_per_second"] == []


def test_percentiles_of_nothing_are_nothing():
    assert percentile([], 0.5) is None
    assert percentile([1, 2, 3], 0.5) == 2
    assert percentile([1, 2, 3], 0.99) == 3
