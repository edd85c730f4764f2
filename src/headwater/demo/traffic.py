"""The traffic of the web shop: seeded sessions that search, click, view pages and order.

The shop's clock starts at a fixed time and runs ``speed`` times faster than the wall clock, so that one
minute fills an hour of windows. Everything is drawn from one seed: two runs give the same records in the same
order, byte for byte, and a shorter run is the beginning of a longer one.

As in a real shop, few products get most of the clicks, countries differ in size, a newsletter brings a burst
every quarter of an hour, phones send minutes late or have a wrong clock, a repeated request arrives twice,
and a few records are broken.
"""

import heapq
import itertools
import math
import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from headwater.demo.event import Click, Order, PageView, Request, Search, ShopEvent
from headwater.demo.tally import Tally
from headwater.errors import UsageError

__all__ = ["LATENESS_BOUND", "START", "Emission", "Traffic"]

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)

NETWORK_MAX = timedelta(seconds=2)
LATENESS_MAX = timedelta(minutes=6)
CLOCK_ERROR_MAX = timedelta(minutes=3)
LATENESS_BOUND = LATENESS_MAX + NETWORK_MAX + 2 * CLOCK_ERROR_MAX
"""No record is older than the newest event time of its topic by more than this: the streams' delay must be
longer."""

LATE_SHARE = 0.02
WRONG_CLOCK_SHARE = 0.03
REPEATED_SHARE = 0.02
BROKEN_SHARE = 0.002
FORGOTTEN_TAB_SHARE = 0.01
NEWSLETTER_SHARE = 0.02

EVENTS_PER_SESSION = 13.4
NEWSLETTER_EVERY_S = 900
NEWSLETTER_LASTS_S = 150
PEAK = 3.0

PRODUCTS = 1_000
WORDS = (
    "shoes",
    "lamp",
    "tent",
    "kettle",
    "jacket",
    "bicycle",
    "desk",
    "radio",
    "rug",
    "mug",
    "scarf",
    "clock",
)
COUNTRIES = {"DE": 30, "FR": 18, "GB": 16, "IT": 11, "ES": 9, "PL": 7, "NL": 5, "AT": 3, "IE": 1}


class Emission(NamedTuple):
    """A record for the log, due ``wall`` seconds after the start."""

    wall: float
    topic: str
    key: bytes
    value: bytes


class Shopper(NamedTuple):
    """The shopper of a session, and the error of the device's clock."""

    session_id: int
    country: str
    clock_error: timedelta


class _Arrival(NamedTuple):
    """A record that waits for its time of arrival; ``event`` is None if the value is broken."""

    arrival: datetime
    serial: int
    topic: str
    key: bytes
    value: bytes
    event: ShopEvent | None


class Traffic:
    """The traffic of a run, and the tally of the records that were emitted.

    ``events`` may be read once. The tally counts exactly the records emitted so far, so it is right whenever
    the reader stops. Every record is checked to be no older than the newest event time of its topic by more
    than ``LATENESS_BOUND``.
    """

    def __init__(
        self, *, seed: int = 1, seconds: float | None = None, rate: float = 400, speed: float = 60
    ) -> None:
        if rate <= 0 or speed <= 0:
            raise UsageError("the traffic needs a rate and a speed above 0", got=f"{rate=}, {speed=}")
        self.tally = Tally()
        self._random = random.Random(seed)  # noqa: S311  repeatable on purpose
        self._end = START + timedelta(seconds=seconds * speed) if seconds is not None else None
        self._speed = speed
        self._sessions_per_s = rate / (EVENTS_PER_SESSION * speed)
        self._ids = itertools.count(1)
        self._serial = itertools.count()
        self._waiting: list[_Arrival] = []
        self._newest: dict[str, datetime] = {}
        self._products = _zipf(PRODUCTS)
        self._words = _zipf(len(WORDS))

    def events(self) -> Iterator[Emission]:
        """The records in the order of their arrival, until the end of the run."""
        for start in self._session_starts():
            while self._waiting and self._waiting[0].arrival <= start:
                yield self._emit(heapq.heappop(self._waiting))
            if self._end is not None and start >= self._end:
                return
            self._plan_session(start)

    def _session_starts(self) -> Iterator[datetime]:
        """The starts of sessions, and then the end of the run, so that all records before it are emitted."""
        now = START
        while self._end is None or now < self._end:
            now += timedelta(seconds=self._random.expovariate(self._sessions_per_s * PEAK))
            if self._random.random() * PEAK < _rhythm(now) and (self._end is None or now < self._end):
                yield now
        yield self._end

    def _emit(self, record: _Arrival) -> Emission:
        if record.event is None:
            self.tally.add_broken(record.topic)
        else:
            self._check_lateness(record.topic, record.event.at)
            self.tally.add(record.event)
        wall = (record.arrival - START).total_seconds() / self._speed
        return Emission(wall, record.topic, record.key, record.value)

    def _check_lateness(self, topic: str, at: datetime) -> None:
        newest = self._newest[topic] = max(at, self._newest.get(topic, at))
        if newest - at > LATENESS_BOUND:
            raise AssertionError(f"{topic}: a record is {newest - at} late, more than {LATENESS_BOUND}")

    def _plan_session(self, start: datetime) -> None:
        draw = self._random
        has_wrong_clock = draw.random() < WRONG_CLOCK_SHARE
        shopper = Shopper(
            session_id=next(self._ids),
            country=draw.choices(tuple(COUNTRIES), tuple(COUNTRIES.values()))[0],
            clock_error=CLOCK_ERROR_MAX * draw.uniform(-1, 1) if has_wrong_clock else timedelta(),
        )
        now = start
        if draw.random() < NEWSLETTER_SHARE:
            now = self._plan_click(shopper, now, search_id=0)
        for _ in range(1 + int(draw.expovariate(1.2))):
            now = self._plan_search(shopper, now + _seconds(draw.uniform(5, 40)))
        if draw.random() < 0.25:
            self._plan_order(shopper, now + _seconds(draw.uniform(20, 120)))

    def _plan_search(self, shopper: Shopper, now: datetime) -> datetime:
        """A search, the clicks on its results, and sometimes one more click much later."""
        draw = self._random
        query = WORDS[bisect(self._words, draw.random())]
        search = Search(
            next(self._ids), shopper.session_id, query, shopper.country, now + shopper.clock_error
        )
        self._plan("searches", shopper, now, search)
        self._plan_page(shopper, now, "/search")
        clicked = now
        if draw.random() < 0.65:
            for _ in range(1 + int(draw.expovariate(1.5))):
                clicked = self._plan_click(shopper, clicked + _seconds(draw.uniform(2, 45)), search.search_id)
        if draw.random() < FORGOTTEN_TAB_SHARE:
            self._plan_click(shopper, now + _seconds(draw.uniform(3_660, 5_400)), search.search_id)
        return clicked

    def _plan_click(self, shopper: Shopper, now: datetime, search_id: int) -> datetime:
        """A click on a product, its page, and the pages viewed from there."""
        product_id = 1 + bisect(self._products, self._random.random())
        click = Click(next(self._ids), search_id, shopper.session_id, product_id, now + shopper.clock_error)
        self._plan("clicks", shopper, now, click)
        for _ in range(1 + int(self._random.expovariate(0.7))):
            now += _seconds(self._random.uniform(1, 30))
            self._plan_page(shopper, now, "/product")
        return now

    def _plan_order(self, shopper: Shopper, now: datetime) -> None:
        draw = self._random
        product_id = 1 + bisect(self._products, draw.random())
        cents = 99 + 100 * int(draw.lognormvariate(3.2, 0.8))
        order = Order(
            next(self._ids), shopper.session_id, product_id, shopper.country, cents, now + shopper.clock_error
        )
        self._plan("orders", shopper, now, order)
        self._plan_page(shopper, now, "/thanks")

    def _plan_page(self, shopper: Shopper, now: datetime, page: str) -> None:
        """A page on the screen, and the web server's answer to the request for it."""
        view = PageView(next(self._ids), shopper.session_id, page, now + shopper.clock_error)
        self._plan("page_views", shopper, now, view)
        status = self._random.choices((200, 304, 404, 500), (90, 7, 2, 1))[0]
        request = Request(next(self._ids), page, status, int(self._random.lognormvariate(3.5, 0.6)), now)
        self._enqueue("requests", now, str(request.request_id).encode(), request)

    def _plan(self, topic: str, shopper: Shopper, now: datetime, event: ShopEvent) -> None:
        """An event from the shopper's device, possibly late, possibly twice."""
        draw = self._random
        sent = now + _seconds(draw.uniform(0, NETWORK_MAX.total_seconds()))
        if draw.random() < LATE_SHARE:
            sent = now + LATENESS_MAX * draw.uniform(0.15, 0.9)
        key = str(shopper.session_id).encode()
        self._enqueue(topic, sent, key, event)
        if topic in ("orders", "clicks") and draw.random() < REPEATED_SHARE:
            self._enqueue(topic, min(sent + _seconds(draw.uniform(1, 60)), now + LATENESS_MAX), key, event)

    def _enqueue(self, topic: str, arrival: datetime, key: bytes, event: ShopEvent) -> None:
        value = msgspec.json.encode(event)
        valid: ShopEvent | None = event
        if self._random.random() < BROKEN_SHARE:
            value, valid = _broken(event, self._random.randrange(3)), None
        heapq.heappush(self._waiting, _Arrival(arrival, next(self._serial), topic, key, value, valid))


def _broken(event: ShopEvent, how: int) -> bytes:
    """The event as an invalid record: cut off, with a wrong type, or incomplete."""
    fields = msgspec.to_builtins(event)
    first = next(iter(fields))
    match how:
        case 0:
            value = msgspec.json.encode(event)
            return value[: len(value) // 2]
        case 1:
            return msgspec.json.encode(fields | {first: "unknown"})
        case _:
            del fields[first]
            return msgspec.json.encode(fields)


def _rhythm(now: datetime) -> float:
    """The activity of the shop, ``PEAK`` at most: quiet at night, with a burst after each newsletter."""
    day = 1 + 0.35 * math.sin(math.tau * (now.hour * 3600 + now.minute * 60 - 8 * 3600) / 86_400)
    burst = (now - START).total_seconds() % NEWSLETTER_EVERY_S < NEWSLETTER_LASTS_S
    return min(PEAK, day * (2.0 if burst else 0.8))


def _zipf(count: int) -> Sequence[float]:
    """Cumulative shares of ``count`` ranks, where rank n is drawn 1/n times as often as the first."""
    weights = [1 / rank for rank in range(1, count + 1)]
    total = sum(weights)
    shares = list(itertools.accumulate(weight / total for weight in weights))
    shares[-1] = 1.0
    return shares


def _seconds(count: float) -> timedelta:
    return timedelta(seconds=count)
