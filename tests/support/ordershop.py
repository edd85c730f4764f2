"""A small shop for pipeline tests: orders into the log, views out of it, each test under a prefix of its own."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

import headwater as hw
from headwater.client.client import producer
from headwater.clock import Clock, SystemClock
from headwater.config import Settings
from headwater.declare.schema import encode, key_text
from headwater.follow.results import results
from headwater.pipeline.engine.lag_offsets import group
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.topics import Topics
from headwater.result import TICKS
from support.servers import wait_until

numbers = itertools.count(1)


class Order(hw.Event):
    order_id: int
    customer_id: int
    country: str
    cents: int
    at: datetime


class Shop:
    """A log with topics under a prefix of its own, and settings for pipelines on it."""

    def __init__(self, bootstrap: str, folder: Path, **more: str) -> None:
        self.prefix = f"t{next(numbers)}"
        given = {"log": f"kafka://{bootstrap}", "view_tables": f"sqlite:{folder / 'views'}"} | more
        self.settings = Settings(trigger_ms=50, spark="local[12,4]", **given)
        self.bootstrap = bootstrap
        self.log = self.settings.access
        self._client = Topics(self.log)
        self._producer = producer(self.log)

    def name(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix else name

    def app(self) -> hw.App:
        """An app with the stream ``orders``, whose topic has the test's prefix."""
        app = hw.App("shop")
        app.stream("orders", Order, key="customer_id", time="at", topic=self.name("orders"))
        return app

    def make(self, *topics: str) -> None:
        self._client.ensure([self.name(topic) for topic in topics], 2, compact=False)

    def send(self, events: Iterable[hw.Event | bytes | None], topic: str = "orders") -> None:
        self.send_to(self.name(topic), events)

    def send_to(
        self, topic: str, events: Iterable[hw.Event | bytes | None], key_field: str = "customer_id"
    ) -> None:
        out = self._producer
        for event in events:
            typed = isinstance(event, hw.Event)
            key = key_text([getattr(event, key_field)]) if typed else "1"
            out.produce(topic, encode(event) if typed else event, key)
        assert out.flush(30) == 0

    def send_at(self, at_ms: int, events: Iterable[hw.Event], topic: str) -> None:
        """Sends events in records that say when they came."""
        for event in events:
            key = key_text([event.customer_id])
            self._producer.produce(self.name(topic), encode(event), key, timestamp=at_ms)
        assert self._producer.flush(30) == 0

    def send_tick(self, partition: int) -> None:
        """A tick, which wakes a view; the topic is that of all views."""
        self._producer.produce(TICKS, b"", "another view", partition=partition)
        assert self._producer.flush(30) == 0

    def send_records(self, records: Iterable[tuple[str, str, hw.Event | None, datetime]]) -> None:
        """Sends records by topic and key, which say when they came; without an event they delete."""
        for topic, key, event, at in records:
            value = encode(event) if event is not None else None
            self._producer.produce(self.name(topic), value, key, timestamp=int(at.timestamp() * 1000))
        assert self._producer.flush(30) == 0

    def records(self, topic: str) -> list[tuple[str, dict, dict]]:
        """All records of a topic, as key, value and headers."""
        return [
            (record.key().decode(), json.loads(record.value() or b"null"), dict(record.headers() or []))
            for record in self._client.read([topic])
        ]

    def lose_commit(self, view: str) -> None:
        """Takes away that Spark has closed the last batch of a view, as a crash after the transaction does."""
        commits = list((self.settings.data / "checkpoints" / view).glob("*/commits/[0-9]*"))
        if commits:
            last = max(commits, key=lambda file: int(file.name))
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def committed(self, view: str, stream: str = "orders") -> dict[str, dict[int, int]]:
        """What lag tools see of a view."""
        places = self._client.end_offsets([self.name(stream)])
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in self._client.committed(group(view), places).items():
            found.setdefault(topic, {})[partition] = offset
        return found

    def table(self, view: str) -> dict[str, dict]:
        """A view's topic as a reader sees it: the newest row of each key; in real time the one with the greatest version."""
        rows: dict[str, dict] = {}
        for key, value, _ in self.records(view):
            if value is None:
                rows.pop(key, None)
            elif value.get("_version", 1) > rows.get(key, {}).get("_version", 0) or "_version" not in value:
                rows[key] = value
        return {key: {n: v for n, v in row.items() if not n.startswith("_")} for key, row in rows.items()}

    @contextlib.contextmanager
    def running(self, app: hw.App, clock: Clock | None = None) -> Iterator[Runner]:
        """The app runs meanwhile."""
        runner = Runner(app, self.settings, clock)
        runner.start()
        try:
            yield runner
        finally:
            runner.stop()

    @contextlib.contextmanager
    def one_batch(self, runner: Runner) -> Iterator[None]:
        """Each view of a running app takes what is sent inside in one batch, then the ticks that are due.

        As if the app had been started once for it, but a start of a query costs more than several batches.
        """
        with runner.held():
            yield
        wait_until(lambda: runner.wait(0) or (runner.caught_up() and not self._due(runner)), 120, "the batch")

    def _due(self, runner: Runner) -> bool:
        """Whether a view has a time-out that is due: a shard without new records waits for a tick."""
        publishers = [view.publisher for view in runner.views.values()]
        due = [publisher.due_ms for publisher in publishers if publisher is not None]
        return any(at is not None and at <= SystemClock().now_ms() for at in due)

    def taken(self, view: str, topic: str, records: int, seconds: float = 120) -> None:
        """Waits until a view has taken so many records of a topic, and what became of them is published."""

        def reached() -> int:
            found = results(self._client, view)
            return sum(found[-1].inputs.get(topic, {}).values()) if found else 0

        wait_until(lambda: reached() >= records, seconds, f"{records} records in {view}")

    def run(self, app: hw.App, meanwhile: Callable[[Runner], None] = lambda _: None) -> None:
        """Starts the app, does something, waits until all is published, stops."""
        runner = Runner(app, self.settings)
        runner.start()
        try:
            meanwhile(runner)
            wait_until(lambda: runner.wait(0) or runner.caught_up(), 120, "catching up")
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
