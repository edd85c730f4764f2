"""Publisher: publishes a capture's records in transactions that fence every other process with its name."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headwater.access import Log
from headwater.capture.source import Columns, Record
from headwater.client.bulk.choose import transactions
from headwater.errors import FencedError

__all__ = ["Publisher", "transactional_id"]

TRANSACTION_TIMEOUT_MS = 900_000
ABANDON_S = 1.0
HELD_RECORDS = 10_000
HELD_BYTES = 8 << 20
"""How much is held back, so that small transactions of the database are sent together, as columns."""

Texts = list[bytes | None]


class Publisher:
    """Collects records into columns of each topic. One thread calls.

    Raises FencedError if another process has claimed the name, and MachineError for all other failures; the
    caller then calls `abandon`.
    """

    def __init__(self, log: Log, name: str, stopping: threading.Event | None = None) -> None:
        self._name = name
        self._transactions = transactions(
            log, transactional_id(name), timeout_ms=TRANSACTION_TIMEOUT_MS, stopping=stopping
        )
        self._held: dict[str, tuple[Texts, Texts]] = {}
        self._records = self._bytes = 0
        self._open = False

    def claim(self) -> None:
        """Claims the name: aborts an open transaction of its last holder, and fences that process."""
        self._drop()
        with self._fenced():
            self._transactions.claim()

    def begin(self) -> None:
        """Begins a transaction."""
        with self._fenced():
            self._transactions.begin()
        self._open = True

    def send(self, records: Iterable[Record]) -> None:
        """Adds records to the transaction, in the order of each topic; the topics exist."""
        if isinstance(records, Columns):
            self._add(records)
        else:
            self._sort(records)
        if self._records >= HELD_RECORDS or self._bytes >= HELD_BYTES:
            self._send()

    def _add(self, rows: Columns) -> None:
        keys, values = self._held.setdefault(rows.topic, ([], []))
        keys += rows.keys
        values += rows.values
        self._records += len(rows)
        self._bytes += sum(map(len, filter(None, rows.values)))

    def _sort(self, records: Iterable[Record]) -> None:
        """Adds each record to the columns of its topic."""
        last, count, size = "", 0, 0
        for topic, key, value, _ in records:
            if topic != last:
                last = topic
                keys, values = self._held.setdefault(topic, ([], []))
                add_key, add_value = keys.append, values.append
            add_key(key)
            add_value(value)
            count += 1
            if value is not None:
                size += len(value)
        self._records += count
        self._bytes += size

    def flush(self) -> None:
        """Returns when all sent records are in the log, where readers of uncommitted records see them."""
        self._send()
        if self._open:
            with self._fenced():
                self._transactions.flush()

    def commit(self) -> None:
        """Commits the transaction: its records are durable in the log, all or none."""
        self._send()
        with self._fenced():
            self._transactions.commit()
        self._open = False

    def abandon(self) -> None:
        """Aborts the transaction, if the log answers; never raises."""
        self._drop()
        self._open = False
        self._transactions.abort(ABANDON_S)

    def close(self) -> None:
        """Aborts the transaction, and closes the connections."""
        self.abandon()
        self._transactions.close()

    def _send(self) -> None:
        with self._fenced():
            for topic, (keys, values) in self._held.items():
                self._transactions.send(topic, keys, values)
        self._drop()

    def _drop(self) -> None:
        self._held = {}
        self._records = self._bytes = 0

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        try:
            yield
        except FencedError as error:
            raise FencedError(
                f"capture {self._name} runs elsewhere", hint="a capture has one process"
            ) from error


def transactional_id(name: str) -> str:
    """The id with which the publishers of a capture fence each other."""
    return f"headwater.capture.{name}"
