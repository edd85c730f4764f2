"""The generator's own count of what the views must show: plain Python, without Spark or a log.

The rules of the views are written here a second time, as simply as possible, so that no mistake in the
application or in the platform can hide in shared code.
"""

from collections import Counter
from datetime import datetime, timedelta

import msgspec

from headwater.demo.event import TOPICS, Click, Order, PageView, Request, Search, ShopEvent

__all__ = ["Figures", "Tally"]

MATCH_WITHIN = timedelta(hours=1)
REMEMBER = timedelta(hours=2)
"""Searches, clicks and ids older than this can no longer have a match: the tally forgets them."""
FORGET_EVERY = 10_000


class Figures(msgspec.Struct, frozen=True):
    """The records that were sent, and the sums that the views must show.

    Written to a file when the traffic ends.
    """

    records: dict[str, int]
    """Records of each topic, including broken and repeated ones."""
    broken: dict[str, int]
    repeated: dict[str, int]
    searches: int
    matched_clicks: int
    orders: int
    cents: dict[str, int]
    """Revenue of each country in cents, every order once."""
    page_views: int
    requests: int


class Tally:
    """Counts records as they are emitted.

    Its memory is bounded: it forgets after two hours of the shop's time.
    """

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.cents: Counter[str] = Counter()
        self.matched_clicks = 0
        self._counts: Counter[type[ShopEvent]] = Counter()
        self._searched: dict[int, datetime] = {}
        self._clicked: dict[int, datetime] = {}
        self._early: dict[int, list[datetime]] = {}
        self._ordered: dict[int, datetime] = {}
        self._newest: datetime | None = None

    def figures(self) -> Figures:
        """The count so far."""
        return Figures(
            records=dict(self.records),
            broken=dict(self.broken),
            repeated=dict(self.repeated),
            searches=self._counts[Search],
            matched_clicks=self.matched_clicks,
            orders=self._counts[Order],
            cents=dict(self.cents),
            page_views=self._counts[PageView],
            requests=self._counts[Request],
        )

    def add_broken(self, topic: str) -> None:
        """Counts an invalid record."""
        self.records[topic] += 1
        self.broken[topic] += 1

    def add(self, event: ShopEvent) -> None:
        """Counts a valid record; one that was sent before counts only as repeated."""
        topic = TOPICS[type(event)]
        self.records[topic] += 1
        if self._is_repeated(event):
            self.repeated[topic] += 1
            return
        self._counts[type(event)] += 1
        match event:
            case Search():
                self._add_search(event)
            case Click():
                self._add_click(event)
            case Order():
                self._ordered[event.order_id] = event.at
                self.cents[event.country] += event.cents
        self._newest = max(event.at, self._newest or event.at)
        if self._counts.total() % FORGET_EVERY == 0:
            self._forget(self._newest - REMEMBER)

    def _is_repeated(self, event: ShopEvent) -> bool:
        match event:
            case Click():
                return event.click_id in self._clicked
            case Order():
                return event.order_id in self._ordered
            case _:
                return False

    def _add_search(self, search: Search) -> None:
        """Counts a search, and the clicks on its results that arrived before it."""
        self._searched[search.search_id] = search.at
        self.matched_clicks += sum(_matches(search.at, at) for at in self._early.pop(search.search_id, []))

    def _add_click(self, click: Click) -> None:
        self._clicked[click.click_id] = click.at
        searched = self._searched.get(click.search_id)
        if searched is None:
            self._early.setdefault(click.search_id, []).append(click.at)
        else:
            self.matched_clicks += _matches(searched, click.at)

    def _forget(self, before: datetime) -> None:
        self._searched = {key: at for key, at in self._searched.items() if at >= before}
        self._clicked = {key: at for key, at in self._clicked.items() if at >= before}
        self._early = {key: clicks for key, clicks in self._early.items() if clicks[-1] >= before}
        self._ordered = {key: at for key, at in self._ordered.items() if at >= before}


def _matches(searched: datetime, clicked: datetime) -> bool:
    return searched <= clicked <= searched + MATCH_WITHIN
