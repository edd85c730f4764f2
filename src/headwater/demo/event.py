"""What happens in the shop, as the devices and the web server write it down.

The application file declares the same events for Spark; a test holds the two together.
"""

from datetime import datetime

import msgspec

__all__ = ["TOPICS", "Click", "Event", "Order", "PageView", "Request", "Search"]


class Search(msgspec.Struct, frozen=True):
    """Somebody looked for something."""

    search_id: int
    session_id: int
    query: str
    country: str
    at: datetime


class Click(msgspec.Struct, frozen=True):
    """Somebody chose a result; ``search_id`` 0 comes from the newsletter and belongs to no search."""

    click_id: int
    search_id: int
    session_id: int
    product_id: int
    at: datetime


class Order(msgspec.Struct, frozen=True):
    """Somebody bought something. Money is whole cents, so that sums are exact."""

    order_id: int
    session_id: int
    product_id: int
    country: str
    cents: int
    at: datetime


class PageView(msgspec.Struct, frozen=True):
    """A page was shown on somebody's screen."""

    view_id: int
    session_id: int
    page: str
    at: datetime


class Request(msgspec.Struct, frozen=True):
    """The web server answered: its clock is right and its log is never late."""

    request_id: int
    path: str
    status: int
    ms: int
    at: datetime


Event = Search | Click | Order | PageView | Request

TOPICS: dict[type[Event], str] = {
    Search: "searches",
    Click: "clicks",
    Order: "orders",
    PageView: "page_views",
    Request: "requests",
}
