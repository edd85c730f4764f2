"""The latency from the log to the page, computed from the log's own timestamps.

The last event that counts in a window is followed by a change of that window on the page: the time between
the two is the latency. Pure functions over records; they read nothing.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from headwater.decoders import from_json
from headwater.demo.event import TOPICS, Click, Order, PageView, Request, Search, ShopEvent

__all__ = ["WINDOWS", "delays", "percentile"]

WINDOWS = {
    "click_through": timedelta(minutes=5),
    "revenue": timedelta(minutes=5),
    "page_views_per_minute": timedelta(minutes=1),
    "requests_per_second": timedelta(seconds=1),
}
TYPES = {topic: kind for kind, topic in TOPICS.items()}

Seen = Mapping[str, Mapping[datetime, int]]
"""By view and start of window: the time of the window's last change on the page, in milliseconds of wall
time."""


def delays(records: Iterable[Any], seen: Seen) -> dict[str, list[int]]:
    """For each view, the sorted milliseconds from a window's last event to its last change on the page."""
    last_events = _LastEvents()
    for record in records:
        try:
            event = from_json(record.value(), TYPES[record.topic()])
        except msgspec.MsgspecError:
            continue
        last_events.add(event, record.timestamp()[1])
    return {
        view: sorted(
            seen[view][window] - sent
            for window, sent in windows.items()
            if seen.get(view, {}).get(window, 0) >= sent
        )
        for view, windows in last_events.windows().items()
    }


class _LastEvents:
    """The time at which the last event of each window of each view was written to the log."""

    def __init__(self) -> None:
        self._last: dict[str, dict[datetime, int]] = {view: {} for view in WINDOWS}
        self._searches: dict[int, tuple[datetime, int]] = {}
        self._clicks: dict[int, tuple[Click, int]] = {}
        self._orders: set[int] = set()

    def add(self, event: ShopEvent, sent: int) -> None:
        match event:
            case Search():
                self._note("click_through", event.at, sent)
                self._searches[event.search_id] = (event.at, sent)
            case Click():
                self._clicks.setdefault(event.click_id, (event, sent))
            case Order():
                if event.order_id not in self._orders:
                    self._orders.add(event.order_id)
                    self._note("revenue", event.at, sent)
            case PageView():
                self._note("page_views_per_minute", event.at, sent)
            case Request():
                self._note("requests_per_second", event.at, sent)

    def windows(self) -> dict[str, dict[datetime, int]]:
        """The times by window. A click counts in the window of its search, once both have been written."""
        for click, sent in self._clicks.values():
            at, searched = self._searches.get(click.search_id, (None, 0))
            if at is not None and at <= click.at <= at + timedelta(hours=1):
                self._note("click_through", at, max(sent, searched))
        return self._last

    def _note(self, view: str, at: datetime, sent: int) -> None:
        length = WINDOWS[view]
        window = at - (at - datetime.fromtimestamp(0, at.tzinfo)) % length
        last = self._last[view]
        last[window] = max(sent, last.get(window, sent))


def percentile(values: list[int], share: float) -> int | None:
    """The value at a share of the sorted values: 0.5 is the median."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else None
