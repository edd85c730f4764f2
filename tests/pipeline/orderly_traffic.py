"""Events in order: each has the time at which it is sent, and none is late for a batch over the log."""

import itertools
import threading
from datetime import UTC, datetime
from typing import Self

from support.ordershop import Order, Shop

__all__ = ["Traffic"]

EVERY_S = 0.05


class Traffic(threading.Thread):
    """Sends orders to a topic until its end, a few of all keys at a time."""

    def __init__(self, shop: Shop, topic: str) -> None:
        super().__init__(daemon=True)
        self._shop = shop
        self._topic = topic
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.sent = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self) -> None:
        while not self._ending.wait(EVERY_S):
            self.send("de")

    def send(self, country: str) -> None:
        """Orders of seven customers, all from one country."""
        with self._lock:
            now = datetime.now(UTC)
            part = [Order(next(self._numbers), customer, country, 1, now) for customer in range(7)]
            self._shop.send_to(self._topic, part)
            self.sent += len(part)

    def end(self) -> None:
        self._ending.set()
        self.join(60)
