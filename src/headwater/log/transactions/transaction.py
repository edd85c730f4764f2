"""Transactions: the producer that owns a transactional id, and what its open transaction includes.

           begin (a partition or a group is added)           markers written
    EMPTY ───────────────────────► ONGOING ─► PREPARE_COMMIT ─────────────────► COMPLETE_COMMIT ─► ONGOING …
                                      │
                                      └─────► PREPARE_ABORT ──────────────────► COMPLETE_ABORT ──► ONGOING …

A decision (PREPARE_…) is stored before the first marker is written, so that after a crash every partition
gets the same marker. No I/O and no clock: ``coordinator.py`` stores what is decided and writes the markers.
"""

import enum
from collections.abc import Callable
from copy import copy

import msgspec

from headwater.errors import ErrorCode, RequestError

__all__ = ["Transaction", "TransactionState"]

EPOCH_MAX = 32_766
"""The last epoch that a producer gets.

The epoch after it fences that producer: its marker still carries the same id.
"""


class TransactionState(enum.Enum):
    """Kafka's names, as DescribeTransactions shows them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_COMPLETE = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


class Transaction(msgspec.Struct):
    """The state of one transactional id. Raises RequestError where Kafka answers with an error."""

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    started_ms: int = -1
    partitions: set[tuple[str, int]] = msgspec.field(default_factory=set)
    groups: set[str] = msgspec.field(default_factory=set)
    former_epoch: int = -1
    """The epoch that its producer itself asked to replace, by which a repeated request is recognized."""
    updated_ms: int = -1
    """When it was last stored."""

    @property
    def commits(self) -> bool:
        return self.state in {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}

    @property
    def deadline_ms(self) -> int | None:
        """When the open transaction is aborted unless its producer ends it."""
        return self.started_ms + self.timeout_ms if self.state is TransactionState.ONGOING else None

    def check(self, producer_id: int, epoch: int) -> None:
        """Raises RequestError unless the request comes from the producer that owns the id now."""
        if producer_id != self.producer_id:
            raise RequestError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{self.id} belongs to producer {self.producer_id}"
            )
        if epoch != self.epoch:
            raise RequestError(
                ErrorCode.PRODUCER_FENCED, f"epoch {epoch} of {self.id} was superseded by {self.epoch}"
            )
        if self.state in PREPARED:
            raise RequestError(
                ErrorCode.CONCURRENT_TRANSACTIONS, f"{self.id} is still ending its last transaction"
            )

    def has(self, partitions: set[tuple[str, int]], groups: set[str]) -> bool:
        """Whether the open transaction includes all of these."""
        return (
            self.state is TransactionState.ONGOING and partitions <= self.partitions and groups <= self.groups
        )

    def add(self, partitions: set[tuple[str, int]], groups: set[str], now_ms: int) -> None:
        """Adds partitions and groups; begins a transaction if none is open."""
        if self.state is not TransactionState.ONGOING:
            self.state, self.started_ms = TransactionState.ONGOING, now_ms
            self.partitions, self.groups = set(), set()
        self.partitions = self.partitions | partitions
        self.groups = self.groups | groups

    def decides(self, *, commit: bool) -> bool:
        """Whether a decision is needed; False if the same decision was carried out before."""
        if self.state is TransactionState.ONGOING:
            return True
        done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if self.state is done:
            return False
        raise RequestError(
            ErrorCode.INVALID_TXN_STATE, f"{self.id} has no open transaction: {self.state.value}"
        )

    def prepare(self, *, commit: bool) -> None:
        """Decides to commit or abort the open transaction."""
        self.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT

    def complete(self) -> None:
        """After all markers are written: ends the transaction."""
        self.state = _COMPLETE[self.state]
        self.partitions, self.groups = set(), set()
        self.started_ms = -1

    def fence(self) -> None:
        """Shuts the producer out of its open transaction, which is then aborted under the same producer id.

        A producer that was only too slow may ask for its next epoch and continue (KIP-588); it gets that of
        the abort.
        """
        self.former_epoch = self.epoch
        self.epoch += 1

    def next_epoch(self, new_producer_id: Callable[[], int], *, asked_by_owner: bool = False) -> None:
        """Fences the current epoch: its producer, or a new incarnation of it, continues with the next one."""
        self.former_epoch = self.epoch if asked_by_owner else -1
        self.epoch += 1
        self.state = TransactionState.EMPTY
        if self.epoch > EPOCH_MAX:
            self.producer_id, self.epoch, self.former_epoch = new_producer_id(), 0, -1

    def copy(self) -> "Transaction":
        return copy(self)

    def restore(self, former: "Transaction") -> None:
        """Resets it to a copy. Its sets are replaced and never changed, so a shallow copy is enough."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(former, name))
