"""The choice of the producer of transactions that suits a log."""

import threading

from headwater.access import Log, access
from headwater.client.bulk.connection import speaks
from headwater.client.bulk.librdkafka import LibraryProducer
from headwater.client.bulk.producer import BulkProducer
from headwater.client.bulk.transactions import TIMEOUT_MS, WAIT_S, Transactions
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
    """Our own batches; or the client library, for a log whose security only that supports.

    Once ``stopping`` is set, our own producer no longer waits for a log that is away; the library ignores it.
    """
    clock = clock or SystemClock()
    if not speaks(access(log)):
        return LibraryProducer(log, name, timeout_ms=timeout_ms, wait_s=wait_s, clock=clock)
    return BulkProducer(log, name, timeout_ms=timeout_ms, wait_s=wait_s, clock=clock, stopping=stopping)
