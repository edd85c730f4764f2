"""The events of the shop, as the devices and the web server record them."""

from datetime import datetime

import headwater as hw

__all__ = ["TOPICS", "Click", "Order", "PageView", "Request", "Search", "ShopEvent"]


class Search(hw.Event):
    """A shopper has searched for something."""

    search_id: int
    session_id: int
    query: str
    country: str
    at: datetime


class Click(hw.Event):
    """A shopper has clicked on a result; ``search_id`` 0 is a click in the newsletter."""

    click_id: int
    search_id: int
    session_id: int
    product_id: int
    at: datetime


class Order(hw.Event):
    """A shopper has bought something. Money is in whole cents, so that sums are exact."""

    order_id: int
    session_id: int
    product_id: int
    country: str
    cents: int
    at: datetime


class PageView(hw.Event):
    """A page was shown on the screen of a shopper."""

    view_id: int
    session_id: int
    page: str
    at: datetime


class Request(hw.Event):
    """The web server has answered a request; its clock is right, and its records are never late."""

    request_id: int
    path: str
    status: int
    ms: int
    at: datetime


ShopEvent = Search | Click | Order | PageView | Request

TOPICS: dict[type[ShopEvent], str] = {
    Search: "searches",
    Click: "clicks",
    Order: "orders",
    PageView: "page_views",
    Request: "requests",
}
