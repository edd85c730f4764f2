"""BatchWriter: from the records of a batch to a store that has it.

What the store can never take is a dead letter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headwater.change import Change
from headwater.declare.judge import Judge
from headwater.errors import MachineError
from headwater.sink.changes import judged, parse_messages
from headwater.sink.dead_letters import DeadLetters
from headwater.sink.debezium import envelope_reader
from headwater.sink.loop.counters import Counters
from headwater.sink.patience import Patience
from headwater.sink.store import Batch, Poison, SinkFeed, Store, Superseded

__all__ = ["BatchWriter"]

ATTEMPTS = 3
"""How often a store may refuse one record before it becomes a dead letter."""


class BatchWriter:
    """The writer of one sink. It belongs to the loop's thread."""

    def __init__(
        self,
        store: Store,
        feed: SinkFeed,
        *,
        letters: DeadLetters,
        counters: Counters,
        patience: Patience,
        was_suspended: Callable[[], bool],
    ) -> None:
        self._store = store
        self._feed = feed
        self._reader = envelope_reader(feed) if feed.enveloped else None
        if feed.type is not None:
            self._reader = judged(Judge(feed.type), self._reader)
        self._letters = letters
        self._counters = counters
        self._patience = patience
        self._was_suspended = was_suspended

    def write(self, records: Sequence[Any], held: Mapping[int, int], ends: Mapping[int, int]) -> Batch:
        """Writes records, and moves partitions to ``ends``. Returns the batch that took effect.

        ``held`` has the offsets of the partitions that this process holds; records of others are skipped.
        Raises what `Store.apply` raises, except Poison.
        """
        changes, upto, refused = self._parse(records)
        if not upto.keys() <= held.keys():  # the group has taken a partition away since
            records = [message for message in records if message.partition() in held]
            changes, upto, refused = self._parse(records)
        for message, reason in refused:
            if message.offset() >= held[message.partition()]:
                self._bury(message, reason)
        for partition, end in ends.items():
            upto[partition] = max(end, upto.get(partition, 0))
        return self._apply(Batch(changes, upto), records)

    def _parse(self, records: Sequence[Any]) -> tuple[list[Change], dict[int, int], list[tuple[Any, str]]]:
        return parse_messages(records, keyless=self._feed.append, reader=self._reader)

    def _apply(self, batch: Batch, records: Sequence[Any]) -> Batch:
        """Applies a batch without the records that cannot be stored. Returns what took effect."""
        attempts = 0
        while True:
            try:
                with self._patience.answer():
                    self._store.apply(batch)
            except Poison as error:
                attempts += 1
                if attempts >= ATTEMPTS:
                    batch = self._without(batch, error, records)
                    attempts = 0
                if self._was_suspended():
                    raise Superseded("this process was suspended for longer than its session") from error
                self._store.claim(list(batch.upto))
            else:
                return batch

    def _without(self, batch: Batch, error: Poison, records: Sequence[Any]) -> Batch:
        """The batch without the record that the store refuses, which becomes a dead letter."""
        place = (error.partition, error.offset)
        kept = [change for change in batch.changes if (change.partition, change.offset) != place]
        poison = next((m for m in records if (m.partition(), m.offset()) == place), None)
        if poison is None:
            raise MachineError(
                f"sink {self._feed.sink!r}: the store refuses a record that is not in its batch",
                got=f"partition {error.partition}, offset {error.offset}",
            )
        self._bury(poison, str(error))
        return msgspec.structs.replace(batch, changes=kept)

    def _bury(self, message: Any, reason: str) -> None:
        self._letters.put(message, reason)
        self._counters.dead += 1
