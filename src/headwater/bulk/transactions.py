"""Transactions: columns of records into a log, all or nothing, under a name that has one holder.

claim    the log gives us an epoch under our name, shuts out who had it before and ends what that one has left open
begin, send…, commit | abort
"""

from typing import Any, Protocol

__all__ = ["TIMEOUT_MS", "WAIT_S", "Partition", "Transactions"]

Partition = tuple[str, int]
TIMEOUT_MS = 60_000
"""What is open for longer is given up by the log."""
WAIT_S = 60.0
"""How long a log that is away is waited for."""


class Transactions(Protocol):
    """A transactional producer. Belongs to one thread.

    Raises Fenced when a successor is at work, MachineError when the log is away for too long, UsageError for a record that it never
    takes. After any of these `abort`, `claim` and `close` are left.
    """

    def claim(self) -> None:
        """Takes the name over: whoever had it before is shut out, and what it left open is given up."""

    def begin(self, *surely: str) -> None:
        """``surely``: topics that will take part, whatever else does, so that the log is asked once."""

    def send(self, topic: str, keys: Any, values: Any) -> None:
        """Hands records over: columns of bytes and nulls, or what becomes one. They are in the log after ``flush`` or ``commit``."""

    def flush(self) -> dict[Partition, int]:
        """Returns when all is in the log, with the offset behind the last record of each partition that this transaction has reached."""

    def commit(self) -> None:
        """Everything since ``begin`` happens."""

    def abort(self, wait_s: float | None = None) -> None:
        """Nothing since ``begin`` happens, and the name must be claimed anew. What the log cannot be told now is given up by whoever claims it."""

    def close(self) -> None:
        """Ends the connections; a transaction that is open stays so until the name is claimed."""
