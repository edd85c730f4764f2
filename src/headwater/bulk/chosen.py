"""Chosen: which of the producers a log gets."""

import threading

from headwater.access import Log, access
from headwater.bulk.connection import speaks
from headwater.bulk.library import LibraryProducer
from headwater.bulk.producer import BulkProducer
from headwater.bulk.transactions import TIMEOUT_MS, WAIT_S, Transactions
from headwater.clock import Clock, SystemClock

__all__ = ["transactions"]


def transactions(
    log: Log,
    name: str,
    *,
    timeout_ms: int = TIMEOUT_MS,
    wait_s: float = WAIT_S,
    clock: Clock | None = None,
    stopping: threading.Event | None = None,
) -> Transactions:
    """With batches of our own, or by the client library for a log with security that only that one knows.

    A log that is away is waited for no longer once ``stopping`` is set; the library has no ear for that.
    """
    clock = clock or SystemClock()
    if not speaks(access(log)):
        return LibraryProducer(log, name, timeout_ms=timeout_ms, wait_s=wait_s, clock=clock)
    return BulkProducer(log, name, timeout_ms=timeout_ms, wait_s=wait_s, clock=clock, stopping=stopping)
