"""A load of orders: a stream into three views, of SQL and of the first operators."""

import random
from typing import Any

import msgspec

from headwater.pipeline.topics import Topics
from pipeline.promises import complaints
from pipeline.published import Look, published
from support.ordershop import Order, Shop, orders

__all__ = ["OrderLoad"]


class OrderLoad:
    """Orders, a few at a time."""

    app = """
    import headwater as hw
    from support.ordershop import Order

    app = hw.App("shop")
    app.stream("orders", Order, key="customer_id", time="at")
    app.sql("by_order", "SELECT order_id, country, cents FROM orders", key="order_id")


    @app.view(key="country")
    def by_country(orders):
        found = hw.latest(orders, "order_id", time="at").groupBy("country")
        return found.agg({"cents": "sum", "*": "count"}).toDF("country", "cents", "n")


    @app.view(key="customer_id")
    def counted(orders):
        return hw.count(orders, "customer_id", column="n")
    """
    views = ("by_country", "by_order", "counted")

    def __init__(self, shop: Shop) -> None:
        self.sent = 0
        self._shop = shop

    def make(self) -> None:
        Topics(self._shop.bootstrap).ensure(["orders"], 2, compact=False)

    def send(self, chance: random.Random) -> None:
        self.send_many(chance.randint(1, 40))

    def send_many(self, count: int) -> None:
        self._shop.send_to("orders", orders(count, start=self.sent))
        self.sent += count

    def caught_up(self) -> bool:
        return self.read() == self.sent

    def read(self) -> int:
        """How many orders all views have published."""
        return min(sum(self._shop.committed(view).get("orders", {}).values()) for view in self.views)

    def faults(self) -> dict[str, list[str]]:
        sent = orders(self.sent)
        found = {
            view: complaints(
                published(self._shop, view, answer(view, sent), LOOKS[view], inner_answer(view, sent))
            )
            for view in self.views
        }
        return {view: said for view, said in found.items() if said}


LOOKS: dict[str, dict[str, Look]] = {
    "by_order": {},
    "by_country": {
        "latest1": lambda state: {
            key.decode(): msgspec.msgpack.decode(value)[1:5] for key, value in state.items()
        }
    },
    "counted": {
        "count1": lambda state: {key.decode(): int.from_bytes(value) for key, value in state.items()}
    },
}


def answer(view: str, sent: list[Order]) -> dict[str, dict[str, Any]]:
    """The batch answer, in plain Python."""
    table: dict[str, dict[str, Any]] = {}
    for order in sent:
        if view == "by_order":
            row = {"order_id": order.order_id, "country": order.country, "cents": order.cents}
            table[str(order.order_id)] = row
        elif view == "by_country":
            row = table.setdefault(order.country, {"country": order.country, "cents": 0, "n": 0})
            row["cents"] += order.cents
            row["n"] += 1
        else:
            row = table.setdefault(str(order.customer_id), {"customer_id": order.customer_id, "n": 0})
            row["n"] += 1
    return table


def inner_answer(view: str, sent: list[Order]) -> dict[str, dict[str, Any]]:
    """What the state of the operators inside a view must be, by operator and key."""
    if view == "counted":
        return {"count1": {key: row["n"] for key, row in answer(view, sent).items()}}
    rows = {str(each.order_id): [each.order_id, each.customer_id, each.country, each.cents] for each in sent}
    return {"latest1": rows} if view == "by_country" else {}
