"""Events of an auction house after Nexmark: of fifty, one is a new person, three are new auctions and forty-six are bids.

The same seed gives the same events. Each has a millisecond of its own, so that "the latest" is never a matter of luck. Half of the bids go to
an auction, and three of four come from a bidder, that is hot at the time. They are in a topic for each kind, or in one, as Nexmark has them.
"""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from headwater.client.client import Client, producer

TOPICS = ("persons", "auctions", "bids")
ALL = "events"
"""The topic with events of all kinds."""
FIELDS = {"persons": (0, b"person"), "auctions": (1, b"auction"), "bids": (2, b"bid")}
"""The number of each kind, and the field of an event that has it."""
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
FIRST_ID = 1000
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
CATEGORIES = 5
PART = 20_000

Record = tuple[str, int, bytes]
"""Topic, key and value."""


def events(count: int, seed: int = 7) -> Iterator[Record]:
    """So many events in the order of their time."""
    chance = random.Random(seed)
    text = "".join(chance.choices(LETTERS, k=10_000))
    persons, auctions = FIRST_ID, FIRST_ID
    for number in range(count):
        at = (BEGIN + timedelta(milliseconds=number)).isoformat(timespec="milliseconds")[:-6] + "Z"
        place = number % 50
        if place == 0:
            yield "persons", persons, _person(chance, persons, at, text)
            persons += 1
        elif place <= 3:
            seller = _recent(chance, persons, 4, 100)
            yield "auctions", auctions, _auction(chance, (auctions, seller), number, at, text)
            auctions += 1
        else:
            auction = _recent(chance, auctions, 2, 100)
            yield "bids", auction, _bid(chance, auction, _recent(chance, persons, 4, 100), at, text)


def together(record: Record) -> Record:
    """An event as it is in the topic of all kinds: a number, its time, and a field for its kind."""
    topic, key, value = record
    number, field = FIELDS[topic]
    head, _, rest = value.partition(b'"happened":"')
    at, _, tail = rest.partition(b'",')
    return ALL, key, b'{"kind":%d,"happened":"%b","%b":%b%b}' % (number, at, field, head, tail)


def fill(
    bootstrap: str,
    count: int,
    partitions: int,
    *,
    seed: int = 7,
    progress: Callable[[int], None] = lambda _: None,
    one_topic: bool = False,
) -> dict[str, int]:
    """Writes the events into their topics, or into one; gives back how many each has got."""
    topics = (ALL,) if one_topic else TOPICS
    Client(bootstrap).ensure_topics(topics, partitions)
    out = producer(bootstrap, **{"queue.buffering.max.messages": 1_000_000})
    parts: dict[str, list[dict[str, bytes]]] = {topic: [] for topic in topics}
    found = dict.fromkeys(topics, 0)
    made = events(count, seed)
    for number, (topic, key, value) in enumerate(map(together, made) if one_topic else made):
        parts[topic].append({"key": b"%d" % key, "value": value})
        found[topic] += 1
        if len(parts[topic]) == PART:
            out.produce_batch(topic, parts[topic])
            out.poll(0)
            parts[topic] = []
            progress(number)
    for topic, part in parts.items():
        out.produce_batch(topic, part)
    if out.flush(120):
        raise RuntimeError("records were not acknowledged")
    return found


def _recent(chance: random.Random, upto: int, ratio: int, step: int) -> int:
    """Mostly the hot one, otherwise one of the last thousand."""
    newest = upto - 1
    if newest <= FIRST_ID:
        return FIRST_ID
    if chance.random() * ratio >= 1:
        return max(FIRST_ID, newest // step * step)
    return chance.randint(max(FIRST_ID, newest - 1000), newest)


def _extra(chance: random.Random, text: str, least: int, most: int) -> str:
    start = chance.randrange(len(text) - most)
    return text[start : start + chance.randint(least, most)]


def _person(chance: random.Random, number: int, at: str, text: str) -> bytes:
    name = f"{_extra(chance, text, 4, 8).title()} {_extra(chance, text, 5, 9).title()}"
    card = " ".join(f"{chance.randrange(10_000):04}" for _ in range(4))
    return (
        f'{{"id":{number},"name":"{name}","emailAddress":"{_extra(chance, text, 7, 7)}@{_extra(chance, text, 5, 5)}.com",'
        f'"creditCard":"{card}","city":"{chance.choice(CITIES)}","state":"{chance.choice(STATES)}","happened":"{at}",'
        f'"extra":"{_extra(chance, text, 40, 80)}"}}'
    ).encode()


def _auction(chance: random.Random, ids: tuple[int, int], event: int, at: str, text: str) -> bytes:
    number, seller = ids
    first = _price(chance)
    expires = (BEGIN + timedelta(milliseconds=event + chance.randint(2_000, 20_000))).isoformat(
        timespec="milliseconds"
    )[:-6] + "Z"
    return (
        f'{{"id":{number},"itemName":"{_extra(chance, text, 8, 20)}","description":"{_extra(chance, text, 40, 100)}",'
        f'"initialBid":{first},"reserve":{first + _price(chance)},"happened":"{at}","expires":"{expires}","seller":{seller},'
        f'"category":{10 + chance.randrange(CATEGORIES)},"extra":"{_extra(chance, text, 40, 80)}"}}'
    ).encode()


def _bid(chance: random.Random, auction: int, bidder: int, at: str, text: str) -> bytes:
    path = "/".join(_extra(chance, text, 5, 5) for _ in range(3))
    if chance.random() < 0.5:
        channel, query = chance.choice(CHANNELS), "item.htm?query=1"
    else:
        number = chance.randrange(10_000)
        channel, query = f"channel-{number}", f"item.htm?query=1&channel_id={number}"
    return (
        f'{{"auction":{auction},"bidder":{bidder},"price":{_price(chance)},"channel":"{channel}",'
        f'"url":"https://www.auctions.example/{path}/{query}","happened":"{at}","extra":"{_extra(chance, text, 20, 60)}"}}'
    ).encode()


def _price(chance: random.Random) -> int:
    return round(10 ** (chance.random() * 6) * 100)
