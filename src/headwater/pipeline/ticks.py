"""Ticks: a record in ``headwater.ticks`` when a time-out of a view falls due, so that Spark runs a batch although there is no input."""

from typing import Any

from headwater.access import Log
from headwater.client import producer
from headwater.clock import Clock
from headwater.pipeline.time import TICKS, tick_partition

__all__ = ["Ticks"]

BETWEEN_S = 1.0
"""Ticks of one view are at least so far apart."""
FLUSH_SECONDS_MAX = 10.0


class Ticks:
    """Sends ticks. Belongs to the runner's watching thread; a tick that is lost is sent again, since its time-out stays due."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._sent: dict[str, float] = {}
        self._producer: Any = None

    def send(self, view: str, due_ms: int | None, *, wait: bool = False) -> None:
        """Sends the view a tick if it is time for one; with ``wait`` it is in the log then."""
        if due_ms is None or due_ms > self._clock.now_ms():
            return
        now = self._clock.monotonic()
        if now < self._sent.get(view, now - BETWEEN_S) + BETWEEN_S:
            return
        self._sent[view] = now
        if self._producer is None:
            self._producer = producer(self._log)
        self._producer.produce(TICKS, b"", view, tick_partition(view))
        if wait:
            self._producer.flush(FLUSH_SECONDS_MAX)
        else:
            self._producer.poll(0)

    def close(self) -> None:
        self._producer = None
