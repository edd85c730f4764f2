"""A small shop for pipeline tests: orders into the log, views out of it, each test under a prefix of its own."""

import itertools
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import headwater as hw
from headwater.client import producer
from headwater.config import Settings
from headwater.pipeline.groups import group
from headwater.pipeline.runner import Runner
from headwater.pipeline.topics import Topics
from headwater.schema import encode, key_text
from servers import wait_until

numbers = itertools.count(1)


class Order(hw.Event):
    order_id: int
    customer_id: int
    country: str
    cents: int
    at: datetime


class Shop:
    """A log with topics under a prefix of its own, and settings for pipelines on it."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.prefix = f"t{next(numbers)}"
        host, _, port = bootstrap.partition(":")
        self.settings = Settings(
            log=f"embedded:{folder}", host=host, broker_port=int(port), trigger_ms=50, spark="local[12,4]"
        )
        self.bootstrap = bootstrap

    def name(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix else name

    def app(self) -> hw.App:
        """An app with the stream ``orders``, whose topic has the test's prefix."""
        app = hw.App("shop")
        app.stream("orders", Order, key="customer_id", time="at", topic=self.name("orders"))
        return app

    def make(self, *topics: str) -> None:
        Topics(self.bootstrap).ensure([self.name(topic) for topic in topics], 2, compact=False)

    def send(self, events: Iterable[hw.Event | bytes | None], topic: str = "orders") -> None:
        self.send_to(self.name(topic), events)

    def send_to(self, topic: str, events: Iterable[hw.Event | bytes | None]) -> None:
        out = producer(self.bootstrap)
        for event in events:
            typed = isinstance(event, hw.Event)
            key = key_text([event.customer_id]) if typed else "1"
            out.produce(topic, encode(event) if typed else event, key)
        assert out.flush(30) == 0

    def records(self, topic: str) -> list[tuple[str, dict, dict]]:
        """All records of a topic, as key, value and headers."""
        ends = Topics(self.bootstrap).ends([topic]).get(topic, {})
        left = {partition: end for partition, end in ends.items() if end}
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "test", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        found = []
        while left:
            message = consumer.poll(10)
            assert message is not None, f"{topic} sent nothing"
            assert message.error() is None
            found.append((message.key().decode(), json.loads(message.value()), dict(message.headers() or [])))
            if message.offset() + 1 >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
        consumer.close()
        return found

    def committed(self, view: str) -> dict[str, dict[int, int]]:
        """What lag tools see of a view."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": group(view), "enable.auto.commit": False}
        consumer = Consumer(settings)
        ends = Topics(self.bootstrap).ends([self.name("orders")])
        places = [
            TopicPartition(topic, partition) for topic, partitions in ends.items() for partition in partitions
        ]
        found: dict[str, dict[int, int]] = {}
        for place in consumer.committed(places, timeout=10):
            if place.offset >= 0:
                found.setdefault(place.topic, {})[place.partition] = place.offset
        consumer.close()
        return found

    def table(self, view: str) -> dict[str, dict]:
        """A view's topic as a reader sees it: the newest row of each key; in real time the one with the greatest version."""
        rows: dict[str, dict] = {}
        for key, value, _ in self.records(view):
            if value.get("_version", 1) > rows.get(key, {}).get("_version", 0) or "_version" not in value:
                rows[key] = value
        return {key: {n: v for n, v in row.items() if not n.startswith("_")} for key, row in rows.items()}

    def run(self, app: hw.App, meanwhile: Callable[[Runner], None] = lambda _: None) -> None:
        """Starts the app, does something, waits until all is published, stops."""
        runner = Runner(app, self.settings)
        runner.start()
        try:
            meanwhile(runner)
            wait_until(lambda: runner.wait(0.02) or runner.caught_up(), 120, "catching up")
        finally:
            runner.stop()


def orders(count: int, start: int = 0) -> list[Order]:
    """Orders, two seconds apart, with keys and countries that repeat."""
    begin = datetime.fromisoformat("2026-01-05T09:00:00").timestamp()
    return [
        Order(n, n % 7, ("de", "fr", "us")[n % 3], n % 100, datetime.fromtimestamp(begin + 2 * n))  # noqa: DTZ006
        for n in range(start, start + count)
    ]


def hurry(frame):
    """What a helper of an application might do, and may not."""
    return frame.withWatermark("at", "1 second")
