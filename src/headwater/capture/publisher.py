"""Publisher: how a capture's records come into the log, in transactions that shut out every other holder of its name."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headwater.access import Log
from headwater.bulk.chosen import transactions
from headwater.capture.source import Columns, Record
from headwater.errors import Fenced

__all__ = ["Publisher", "transactional_id"]

TRANSACTION_TIMEOUT_MS = 900_000
ABANDON_S = 1.0
HELD_RECORDS = 10_000
HELD_BYTES = 8 << 20
"""As much is held before it leaves as columns: small transactions of the database together."""

Texts = list[bytes | None]


class Publisher:
    """Holds records back until they are worth a column of each topic. One thread calls.

    Raises Fenced when another process has claimed the name, and MachineError for everything else; then `abandon` follows.
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
        """Takes the name, and ends what its last holder has left open."""
        self._drop()
        with self._alone():
            self._transactions.claim()

    def begin(self) -> None:
        """Opens a transaction."""
        with self._alone():
            self._transactions.begin()
        self._open = True

    def send(self, records: Iterable[Record]) -> None:
        """Adds records to it, those of a topic in their order; their topics exist."""
        if isinstance(records, Columns):
            self._add(records)
        else:
            self._sort(records)
        if self._records >= HELD_RECORDS or self._bytes >= HELD_BYTES:
            self._hand_over()

    def _add(self, rows: Columns) -> None:
        keys, values = self._held.setdefault(rows.topic, ([], []))
        keys += rows.keys
        values += rows.values
        self._records += len(rows)
        self._bytes += sum(map(len, filter(None, rows.values)))

    def _sort(self, records: Iterable[Record]) -> None:
        """Each to those of its topic."""
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
        """Returns when all of it that was sent is in the log, for readers of what is not committed."""
        self._hand_over()
        if self._open:
            with self._alone():
                self._transactions.flush()

    def commit(self) -> None:
        """Ends it: all of it is in the log, durably, or nothing ever will be."""
        self._hand_over()
        with self._alone():
            self._transactions.commit()
        self._open = False

    def abandon(self) -> None:
        """Ends it without a record of it, if the log is there to be told; never raises."""
        self._drop()
        self._open = False
        self._transactions.abort(ABANDON_S)

    def close(self) -> None:
        """The same, and the last that is asked of it."""
        self.abandon()
        self._transactions.close()

    def _hand_over(self) -> None:
        with self._alone():
            for topic, (keys, values) in self._held.items():
                self._transactions.send(topic, keys, values)
        self._drop()

    def _drop(self) -> None:
        self._held = {}
        self._records = self._bytes = 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            yield
        except Fenced as error:
            raise Fenced(f"capture {self._name} runs elsewhere", hint="a capture has one process") from error


def transactional_id(name: str) -> str:
    """The name by which the publishers of a capture shut each other out."""
    return f"headwater.capture.{name}"
