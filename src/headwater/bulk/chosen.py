"""Chosen: which of the producers a log gets."""

from headwater.access import Log, access
from headwater.bulk.connection import speaks
from headwater.bulk.library import LibraryProducer
from headwater.bulk.producer import BulkProducer
from headwater.bulk.transactions import TIMEOUT_MS, WAIT_S, Transactions
from headwater.clock import Clock, SystemClock

__all__ = ["transactions"]


def transactions(
    log: Log, name: str, *, timeout_ms: int = TIMEOUT_MS, wait_s: float = WAIT_S, clock: Clock | None = None
) -> Transactions:
    """With batches of our own, or by the client library for a log with security that only that one knows."""
    made = BulkProducer if speaks(access(log)) else LibraryProducer
    return made(log, name, timeout_ms=timeout_ms, wait_s=wait_s, clock=clock or SystemClock())
