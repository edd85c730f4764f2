"""Expected: the rows that each view must have, from the traffic alone; the rules of ``shop.py`` a second time, in plain Python.

A view's rows are a mapping from its key to its numbers. Windows are named by their start, as the log writes it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from headwater.demo.event import TOPICS, Click, Order, PageView, Request, Search, ShopEvent
from headwater.demo.traffic import Emission
from traffic import Step

WINDOW_S = 900
MATCH_WITHIN = timedelta(hours=1)
LARGE_CENTS = 5_000
Key = tuple[Any, ...]
Rows = dict[Key, tuple[int, ...]]
TYPES: dict[str, type[ShopEvent]] = {topic: event for event, topic in TOPICS.items()}


class Expected:
    """Takes the steps of a day one after the other; knows at any moment what the views must say."""

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.customers: dict[int, tuple[str, int]] = {}
        self.large_orders: list[Key] = []
        self._orders: dict[int, Order] = {}
        self._searches: dict[int, datetime] = {}
        self._clicks: dict[int, Click] = {}
        self._pages: dict[int, PageView] = {}
        self._answers: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0])

    def add_all(self, steps: Iterable[Step]) -> "Expected":
        for step in steps:
            if isinstance(step, Emission):
                self.add(step)
        return self

    def add(self, record: Emission) -> None:
        self.records[record.topic] += 1
        if record.topic == "customers":
            self._add_customer(record)
            return
        try:
            event = msgspec.json.decode(record.value, type=TYPES[record.topic])
        except msgspec.MsgspecError:
            self.broken[record.topic] += 1
        else:
            self._add_event(event)

    def rows(self, late: Iterable[str] = ()) -> dict[str, Rows]:
        """Of every view over streams and of ``members``; ``late`` are the values that ``pages`` has left out."""
        return {
            "revenue": self._revenue(),
            "click_through": self._click_through(),
            "pages": self._page_windows(late),
            "answers": {key: tuple(sums) for key, sums in self._answers.items()},
            "large_orders": dict(_numbered(self.large_orders)),
            "members": summed((country, (1, points)) for country, points in self.customers.values()),
        }

    def _add_customer(self, record: Emission) -> None:
        if record.value is None:
            self.customers.pop(int(record.key), None)
            return
        row = msgspec.json.decode(record.value)
        self.customers[row["id"]] = row["country"], row["points"]

    def _add_event(self, event: ShopEvent) -> None:
        match event:
            case Search():
                self._searches[event.search_id] = event.at
            case Click():
                self._clicks[event.click_id] = event
            case PageView():
                self._pages[event.view_id] = event
            case Request():
                sums = self._answers[event.path, event.status]
                sums[0] += 1
                sums[1] += event.ms
            case Order():
                self._orders[event.order_id] = event
                if event.cents >= LARGE_CENTS:
                    self.large_orders.append((event.order_id, event.country, event.cents))

    def _revenue(self) -> Rows:
        orders = self._orders.values()
        return summed(((window(order.at), order.country), (1, order.cents)) for order in orders)

    def _click_through(self) -> Rows:
        steps = [((window(at),), (1, 0)) for at in self._searches.values()]
        for click in self._clicks.values():
            at = self._searches.get(click.search_id)
            if at is not None and at <= click.at <= at + MATCH_WITHIN:
                steps.append(((window(at),), (0, 1)))
        return summed(steps)

    def _page_windows(self, late: Iterable[str]) -> Rows:
        counted = dict(self._pages)
        for value in late:
            del counted[msgspec.json.decode(value, type=PageView).view_id]
        pages = counted.values()
        return summed(((window(view.at),), (1, view.page == "/product")) for view in pages)


def summed(rows: Iterable[tuple[Any, tuple[int, ...]]]) -> Rows:
    """Numbers of the same key, added column by column; a key that is not a tuple becomes one."""
    sums: Rows = {}
    for name, numbers in rows:
        key = name if isinstance(name, tuple) else (name,)
        had = sums.get(key, (0,) * len(numbers))
        sums[key] = tuple(a + b for a, b in zip(had, numbers, strict=True))
    return sums


def window(at: datetime) -> str:
    """The start of the window that a time is in."""
    seconds = int(at.timestamp()) // WINDOW_S * WINDOW_S
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")


def _numbered(rows: Iterable[Key]) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """Equal rows of a view that appends, with how often each is there."""
    return ((row, (count,)) for row, count in Counter(rows).items())
