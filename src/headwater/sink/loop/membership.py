"""Membership: one process in the consumer group of a sink, from joining the group until it has to join again.

The group distributes partitions over processes. An assigned partition is read only after it was claimed in
the store, from the store's offset. Nothing continues from the group's own offsets: they are committed for
``headwater lag`` and ``ledger`` only.
"""

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from headwater.access import Access
from headwater.declare.spec import SINK_GROUP
from headwater.errors import UnavailableError
from headwater.sink.log_consumer import LogConsumer, Messages
from headwater.sink.loop.counters import Counted
from headwater.sink.store import Batch

__all__ = ["BATCH_RECORDS", "Membership"]

BATCH_RECORDS = 10_000
"""The largest batch, unless a store asks for larger ones."""
IDLE_S = 0.25
"""How long one wait for a record lasts, and so how long the loop's `stop` may take on a quiet topic."""
ASK_S = 5.0

logger = logging.getLogger(__name__)


class Membership:
    """The partitions of this process, and the store's offset in each.

    The loop's thread owns it, and the client's callbacks run in that thread. ``release`` is called with the
    partitions that are about to go to another process.
    """

    def __init__(
        self,
        log: Access,
        sink: str,
        topic: str,
        session_ms: int,
        release: Callable[[list[int]], None],
        *,
        batch_records: int = 0,
    ) -> None:
        self._log = log
        self._sink = sink
        self._topic = topic
        self._session_ms = session_ms
        self._release = release
        self._batch_records = batch_records or BATCH_RECORDS
        self.offsets: dict[int, int] = {}
        """For each claimed partition, the offset after what the store has."""
        self.unclaimed: set[int] = set()
        """The partitions that are assigned but not claimed yet."""
        self.resting = False
        self._counts: dict[int, Counted] = {}
        self._ends: dict[int, int] = {}

    def join(self) -> None:
        settings = {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": self._session_ms,
            "heartbeat.interval.ms": max(self._session_ms // 4, 100),
            "queued.min.messages": max(10 * BATCH_RECORDS, 2 * self._batch_records),
            "fetch.queue.backoff.ms": 20,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 5_000,
            "client.id": f"{socket.gethostname()}:{os.getpid()}",
        }
        self._reader = LogConsumer(self._log, f"sink {self._sink}", SINK_GROUP + self._sink, **settings)
        self._consumer = self._reader.client
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def leave(self) -> None:
        self._reader.close()

    def take(self) -> Messages | None:
        """The messages that are there, as many as a batch may have; None if there are none."""
        return self._reader.take(IDLE_S, self._batch_records)

    def stay(self) -> set[int]:
        """Stays in the group while nothing is read. Returns the partitions that it now has.

        Records that this call may receive are read again after the next claim.
        """
        self._consumer.poll(0)
        return self.assigned()

    def assigned(self) -> set[int]:
        return set(self.offsets) | self.unclaimed

    def ends(self, partition: int) -> tuple[int, int]:
        """The first offset of a partition, and the offset after its last record.

        UnavailableError if the log does not answer.
        """
        try:
            low, high = self._consumer.get_watermark_offsets(self._place(partition), timeout=ASK_S)
        except (KafkaException, TypeError) as error:
            raise UnavailableError(f"log {self._log}", got=str(error)) from error
        return int(low), int(high)

    def claimed(self, partitions: Collection[int], stored: Mapping[int, int]) -> None:
        """Reads claimed partitions from the store's offsets; those without an offset from their start."""
        for partition in partitions:
            offset = stored.get(partition)
            self.offsets[partition] = offset or 0
            self._counts[partition] = Counted(offset or 0)
            self._consumer.seek(self._place(partition, OFFSET_BEGINNING if offset is None else offset))
            self._ends.pop(partition, None)
        self.unclaimed -= set(partitions)
        if not self.resting:
            self._consumer.resume([self._place(p) for p in partitions])
        logger.info("sink %s: holds partitions %s of %s", self._sink, sorted(self.offsets), self._topic)

    def hold(self) -> None:
        """Reads nothing until partitions are claimed again."""
        held = self.assigned()
        if held:
            self._consumer.pause([self._place(p) for p in held])

    def rest(self, *, resting: bool) -> None:
        """Follows `headwater sink pause` and `resume`.

        It stays in the group, so that no other process continues in its place.
        """
        if resting == self.resting:
            return
        self.resting = resting
        (self._consumer.pause if resting else self._consumer.resume)([self._place(p) for p in self.offsets])
        logger.info("sink %s: %s", self._sink, "paused" if resting else "resumed")

    def ended(self, partition: int, end: int) -> bool:
        """A partition was read to its end. True if the end is past the store's offset.

        Between them are then only markers, or records that compaction has removed.
        """
        if partition not in self.offsets:
            return False
        self._ends[partition] = end
        return end > self.offsets[partition]

    def is_complete(self) -> bool:
        """Whether all partitions were read to their end, and nothing has come since."""
        return all(self._ends.get(p, -1) >= offset for p, offset in self.offsets.items())

    def applied(self, batch: Batch) -> None:
        """The store has a batch: counts its new changes and moves the offsets.

        Records that the client had fetched before a claim may still come once: they are before the store's
        offset.
        """
        new = Counter(c.partition for c in batch.changes if c.offset >= self.offsets[c.partition])
        for partition, count in new.items():
            before = self._counts[partition]
            self._counts[partition] = Counted(before.since, before.applied + count)
        moved = {partition: max(upto, self.offsets[partition]) for partition, upto in batch.upto.items()}
        self.offsets |= moved

    def lag(self) -> int:
        """Records between the store and the end of the log, as far as the client knows."""
        return sum(max(self._last_end(p) - offset, 0) for p, offset in self.offsets.items())

    def commit(self) -> None:
        """Commits the store's offsets to the group, for tools that measure lag."""
        places = [
            self._place(p, offset, self._counts[p].text()) for p, offset in self.offsets.items() if offset > 0
        ]
        try:
            if places:
                self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            logger.debug("sink %s: offsets for lag were not committed: %s", self._sink, error)

    def _place(self, partition: int, *more: Any) -> TopicPartition:
        return TopicPartition(self._topic, partition, *more)

    def _last_end(self, partition: int) -> int:
        try:
            return int(self._consumer.get_watermark_offsets(self._place(partition), cached=True)[1])
        except (KafkaException, TypeError):
            return 0

    def _on_assign(self, reader: Any, places: Sequence[Any]) -> None:
        """Assigns partitions paused: the loop claims them, which may wait for the store."""
        assigned = [self._place(place.partition, OFFSET_BEGINNING) for place in places]
        reader.incremental_assign(assigned)
        if assigned:
            reader.pause(assigned)
        self.unclaimed |= {place.partition for place in places}

    def _on_revoke(self, reader: Any, places: Sequence[Any]) -> None:
        self._release([place.partition for place in places])
        reader.incremental_unassign(places)
        for place in places:
            self.unclaimed.discard(place.partition)
            self.offsets.pop(place.partition, None)
            self._ends.pop(place.partition, None)
