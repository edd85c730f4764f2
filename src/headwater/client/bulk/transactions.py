"""Transactions: columns of records into a log, all or nothing, under a name that one process holds at a time.

claim                           the log gives us an epoch of our name, fences its former holder, and aborts
                                what that has left open
begin, send…, commit | abort    one transaction
"""

from typing import Any, Protocol

__all__ = ["TIMEOUT_MS", "WAIT_S", "Partition", "Transactions"]

Partition = tuple[str, int]
TIMEOUT_MS = 60_000
"""A transaction that is open for longer is aborted by the log."""
WAIT_S = 60.0
"""How long to wait for a log that is away."""


class Transactions(Protocol):
    """A transactional producer.

    Belongs to one thread. Raises FencedError if another process has claimed the name, MachineError if the log
    is away for too long, UsageError for a record that the log never takes. After any of these only `abort`,
    `claim` and `close` may be called.
    """

    def claim(self) -> None:
        """Takes the name over: its former holder is fenced, and its open transaction is aborted."""

    def begin(self, *surely: str) -> None:
        """``surely``: topics that will take part in any case, so that the log is asked only once."""

    def send(self, topic: str, keys: Any, values: Any) -> None:
        """Takes over records as columns of bytes and nulls.

        They are in the log after ``flush`` or ``commit``.
        """

    def flush(self) -> dict[Partition, int]:
        """Waits until everything is in the log.

        Returns the offset after the last record of each partition to which the transaction has written.
        """

    def commit(self) -> None:
        """Makes all records since ``begin`` visible."""

    def abort(self, wait_s: float | None = None) -> None:
        """Discards the records since ``begin``.

        The name must be claimed again, which also ends a transaction whose abort did not reach the log.
        """

    def close(self) -> None:
        """Ends the connections; an open transaction stays open until the name is claimed again."""
