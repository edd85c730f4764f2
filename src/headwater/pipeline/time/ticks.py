"""Ticks: a record in ``headwater.ticks`` when a time-out is due, so that Spark runs a batch without input."""

from typing import Any

from headwater.access import Log
from headwater.client.client import producer
from headwater.clock import Clock
from headwater.pipeline.time.watermark import tick_partition
from headwater.result import TICKS

__all__ = ["Ticks"]

BETWEEN_S = 1.0
"""The minimum time between two ticks of a view."""
FLUSH_SECONDS_MAX = 10.0


class Ticks:
    """Sends ticks. Belongs to the runner's watch. A lost tick is sent again, since its time-out stays due."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._sent: dict[str, float] = {}
        self._producer: Any = None

    def send(self, view: str, due_ms: int | None, *, wait: bool = False) -> None:
        """Sends a tick to the view if one is due; with ``wait`` it is in the log when this returns."""
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
