"""The shop's traffic in a real log: all of it, once, in order, with a tally that counts what is there."""

import threading
from collections import Counter, defaultdict

import msgspec

from headwater.client.client import Client
from headwater.demo.feed import feed
from headwater.demo.tally import Figures
from headwater.demo.traffic import Traffic


class Hurried:
    """A clock on which everything is overdue, so that nothing is waited for."""

    def __init__(self):
        self._now = 0.0

    def monotonic(self):
        self._now += 1_000
        return self._now

    def now_ms(self):
        return 0


def test_the_log_holds_every_record_once_in_order_and_the_tally_counts_them(own_broker, tmp_path):
    tally = tmp_path / "tally.json"
    settings = {"seed": 3, "seconds": 20}
    feed(
        Traffic(**settings),
        own_broker.bootstrap,
        partitions=2,
        tally=tally,
        stop=threading.Event(),
        clock=Hurried(),
    )
    sent, found = defaultdict(list), defaultdict(list)
    for emission in Traffic(**settings).events():
        sent[emission.topic, emission.key].append(emission.value)
    for record in Client(own_broker.bootstrap).read({topic for topic, _ in sent}):
        found[record.topic(), record.key()].append(record.value())
    assert found == sent
    figures = msgspec.json.decode(tally.read_bytes(), type=Figures)
    assert figures.records == Counter(topic for (topic, _), values in sent.items() for _ in values)


def test_traffic_that_is_stopped_counts_what_it_has_sent(own_broker, tmp_path):
    tally = tmp_path / "tally.json"
    stop = threading.Event()
    timer = threading.Timer(1.5, stop.set)
    timer.start()
    feed(Traffic(seed=3), own_broker.bootstrap, partitions=2, tally=tally, stop=stop)
    figures = msgspec.json.decode(tally.read_bytes(), type=Figures)
    found = Counter(record.topic() for record in Client(own_broker.bootstrap).read(figures.records))
    assert figures.records == found
    assert found.total() > 100
