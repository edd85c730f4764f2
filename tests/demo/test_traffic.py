"""The shop's traffic: the same every time, within its bounds, and counted right."""

from collections import Counter
from datetime import datetime, timedelta

import msgspec
import pytest

from headwater.declare.schema import columns
from headwater.demo.event import TOPICS
from headwater.demo.traffic import LATENESS_BOUND, START, Traffic
from headwater.errors import UsageError

SECONDS = 90
TYPES = {topic: kind for kind, topic in TOPICS.items()}


def run(**settings):
    traffic = Traffic(**({"seed": 7, "seconds": SECONDS} | settings))
    return traffic, list(traffic.events())


def sound(emissions):
    """The events of each topic in the order of arrival; what does not decode is left out."""
    for emission in emissions:
        try:
            yield emission.topic, msgspec.json.decode(emission.value, type=TYPES[emission.topic])
        except msgspec.MsgspecError:
            continue


def test_two_runs_with_one_seed_give_the_same_records_byte_for_byte():
    assert run()[1] == run()[1]


def test_another_seed_gives_other_records():
    assert run(seed=8)[1] != run()[1]


def test_a_shorter_run_is_the_beginning_of_a_longer_one():
    short, long = run(seconds=20)[1], run(seconds=40)[1]
    assert short == long[: len(short)]


def test_records_come_in_the_order_of_their_arrival_and_none_after_the_end():
    walls = [emission.wall for emission in run()[1]]
    assert walls == sorted(walls)
    assert walls[0] >= 0
    assert walls[-1] <= SECONDS


def test_no_record_is_later_than_the_bound():
    newest = {}
    lateness = timedelta()
    for topic, event in sound(run(seconds=300)[1]):
        newest[topic] = max(event.at, newest.get(topic, event.at))
        lateness = max(lateness, newest[topic] - event.at)
    assert timedelta(minutes=5) < lateness <= LATENESS_BOUND


def test_the_streams_of_the_shop_wait_longer_than_any_record_is_late(shop):
    minutes = {stream.name: int(stream.delay.removesuffix(" minutes")) for stream in shop.streams.values()}
    assert all(timedelta(minutes=delay) > 2 * LATENESS_BOUND for delay in minutes.values())


def test_the_shop_declares_the_events_that_the_traffic_sends(shop):
    sent = {topic: [field.name for field in msgspec.structs.fields(kind)] for topic, kind in TYPES.items()}
    declared = {
        stream.topic: [column.name for column in columns(stream.type)] for stream in shop.streams.values()
    }
    assert sent == declared


def test_the_rate_is_the_one_that_was_asked_for():
    for rate in (200, 800):
        assert len(run(rate=rate, seconds=120)[1]) / 120 == pytest.approx(rate, rel=0.2)


def test_the_tally_equals_a_naive_count_of_the_raw_records():
    traffic, emissions = run(seconds=150)
    figures = traffic.tally.figures()
    events = list(sound(emissions))
    of = {topic: [event for name, event in events if name == topic] for topic in TYPES}
    searched = {search.search_id: search.at for search in of["searches"]}
    clicks = {click.click_id: click for click in of["clicks"]}.values()
    orders = {order.order_id: order for order in of["orders"]}.values()
    hour = timedelta(hours=1)
    matched = [
        c
        for c in clicks
        if timedelta() <= c.at - searched.get(c.search_id, datetime.max.replace(tzinfo=c.at.tzinfo)) <= hour
    ]
    cents = Counter()
    for order in orders:
        cents[order.country] += order.cents
    assert figures.records == Counter(emission.topic for emission in emissions)
    assert figures.broken == Counter(figures.records) - Counter(topic for topic, _ in events)
    assert figures.repeated == {
        "clicks": len(of["clicks"]) - len(clicks),
        "orders": len(of["orders"]) - len(orders),
    }
    assert figures.searches == len(searched) == len(of["searches"])
    assert figures.matched_clicks == len(matched)
    assert figures.orders == len(orders)
    assert figures.cents == cents
    assert figures.page_views == len(of["page_views"])
    assert figures.requests == len(of["requests"])


def test_a_minute_has_everything_that_a_check_should_meet():
    traffic, _ = run(seconds=60)
    figures = traffic.tally.figures()
    assert set(figures.broken) == set(TYPES)
    assert set(figures.repeated) == {"clicks", "orders"}
    assert (
        figures.matched_clicks
        < figures.records["clicks"] - figures.broken["clicks"] - figures.repeated["clicks"]
    )


def test_few_products_get_most_of_the_clicks():
    clicks = Counter(event.product_id for topic, event in sound(run(seconds=120)[1]) if topic == "clicks")
    top = sum(count for _, count in clicks.most_common(50))
    assert top > clicks.total() / 2


def test_shop_time_starts_at_a_fixed_instant_and_runs_faster_than_the_wall_clock():
    times = [event.at for topic, event in sound(run(seconds=60, speed=60)[1]) if topic == "requests"]
    assert START <= times[0] < START + timedelta(minutes=2)
    assert START + timedelta(minutes=58) < times[-1] <= START + timedelta(hours=1)


def test_a_rate_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="rate and a speed above 0"):
        Traffic(rate=0)
