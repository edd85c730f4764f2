"""Membership: one process in the consumer group of a sink, from joining it until there is a reason to join anew.

The group spreads partitions over processes. A partition that is assigned is read only once it is claimed in the store, from the offset that the store gives; nothing is
resumed from the group's own offsets, they are committed for ``headwater lag`` and ``ledger`` only.
"""

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from headwater.access import Access
from headwater.client import consumer
from headwater.errors import Away
from headwater.graph import SINK_GROUP
from headwater.sink.count import Counted
from headwater.sink.store import Batch

__all__ = ["BATCH_RECORDS", "QUEUE_KB", "Membership"]

BATCH_RECORDS = 10_000
"""What a batch has at most, but for a store that asks for more."""
QUEUE_KB = 16_384
"""What the client fetches ahead, and so what a batch weighs at most (but for one fetch)."""
IDLE_S = 0.25
"""How long one wait for a record lasts, and so how long the loop's `stop` may take while nothing comes."""
ASK_S = 5.0

logger = logging.getLogger(__name__)


class Membership:
    """The partitions that this process has, and how far the store is in each. The loop's thread owns it, and callbacks of the client run in that thread.

    ``release`` is told which partitions are about to be another's.
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
        self.next: dict[int, int] = {}
        """By claimed partition, the offset behind what the store has."""
        self.fresh: set[int] = set()
        """Assigned, and not yet claimed."""
        self.resting = False
        self._counted: dict[int, Counted] = {}
        self._ends: dict[int, int] = {}
        self._offline = False

    def join(self) -> None:
        settings = {
            "auto.offset.reset": "error",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": self._session_ms,
            "heartbeat.interval.ms": max(self._session_ms // 4, 100),
            "queued.max.messages.kbytes": QUEUE_KB,
            "queued.min.messages": max(10 * BATCH_RECORDS, 2 * self._batch_records),
            "fetch.queue.backoff.ms": 20,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 5_000,
            "reconnect.backoff.max.ms": 1_000,
            "client.id": f"{socket.gethostname()}:{os.getpid()}",
            "error_cb": self._on_client_error,
        }
        self._consumer = consumer(self._log, group=SINK_GROUP + self._sink, **settings)
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def leave(self) -> None:
        self._consumer.close()

    def take(self) -> list[Any]:
        """What has come, as many messages as a batch may have; errors and ends of partitions are among them."""
        first = self._consumer.poll(IDLE_S)
        if first is None:
            return []
        self._offline = False
        # consume() alone would wait for a full batch; this takes what is there.
        return [first, *self._consumer.consume(self._batch_records - 1, 0)]

    def stay(self) -> set[int]:
        """Remains in the group while nothing is read: the partitions that it has by now. What this may still be given is read again."""
        self._consumer.poll(0)
        return self.assigned()

    def assigned(self) -> set[int]:
        return set(self.next) | self.fresh

    def ends(self, partition: int) -> tuple[int, int]:
        """The first offset that the log has of a partition, and the one behind its last; Away when it does not answer."""
        try:
            low, high = self._consumer.get_watermark_offsets(self._place(partition), timeout=ASK_S)
        except (KafkaException, TypeError) as error:
            raise Away(f"log {self._log}", got=str(error)) from error
        return int(low), int(high)

    def claimed(self, partitions: Collection[int], stored: Mapping[int, int]) -> None:
        """Reads partitions from where the store stands; those that it does not know from their start."""
        for partition in partitions:
            offset = stored.get(partition)
            self.next[partition] = offset or 0
            self._counted[partition] = Counted(offset or 0)
            self._consumer.seek(self._place(partition, OFFSET_BEGINNING if offset is None else offset))
            self._ends.pop(partition, None)
        self.fresh -= set(partitions)
        if not self.resting:
            self._consumer.resume([self._place(p) for p in partitions])
        logger.info("sink %s: holds partitions %s of %s", self._sink, sorted(self.next), self._topic)

    def hold(self) -> None:
        """Reads nothing until partitions are claimed again."""
        held = self.assigned()
        if held:
            self._consumer.pause([self._place(p) for p in held])

    def rest(self, *, resting: bool) -> None:
        """Follows `headwater sink pause` and `resume`; the group is not left, so nobody else goes on either."""
        if resting == self.resting:
            return
        self.resting = resting
        (self._consumer.pause if resting else self._consumer.resume)([self._place(p) for p in self.next])
        logger.info("sink %s: %s", self._sink, "paused" if resting else "resumed")

    def ended(self, partition: int, end: int) -> bool:
        """The end of a partition was seen: whether it lies behind what the store has, and only markers or what was compacted in between."""
        if partition not in self.next:
            return False
        self._ends[partition] = end
        return end > self.next[partition]

    def is_complete(self) -> bool:
        """Whether the ends were seen of all partitions, and nothing has come since."""
        return all(self._ends.get(p, -1) >= offset for p, offset in self.next.items())

    def applied(self, batch: Batch) -> None:
        """The store has a batch: counts what was not there before, and goes on behind it.

        What the client had fetched before a partition was claimed may still come once: it stands in front of where the store is.
        """
        fresh = Counter(each.partition for each in batch.changes if each.offset >= self.next[each.partition])
        for partition, count in fresh.items():
            known = self._counted[partition]
            self._counted[partition] = Counted(known.since, known.applied + count)
        self.next |= {partition: max(upto, self.next[partition]) for partition, upto in batch.upto.items()}

    def behind(self) -> int:
        """Records between the store and the end of the log, as far as the client knows."""
        return sum(max(self._known_end(p) - offset, 0) for p, offset in self.next.items())

    def commit(self) -> None:
        """Tells the group how far the store is, for those who measure."""
        places = [
            self._place(p, offset, self._counted[p].text()) for p, offset in self.next.items() if offset > 0
        ]
        try:
            if places:
                self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            logger.debug("sink %s: offsets for lag were not committed: %s", self._sink, error)

    def _place(self, partition: int, *more: Any) -> TopicPartition:
        return TopicPartition(self._topic, partition, *more)

    def _known_end(self, partition: int) -> int:
        try:
            return int(self._consumer.get_watermark_offsets(self._place(partition), cached=True)[1])
        except (KafkaException, TypeError):
            return 0

    def _on_assign(self, reader: Any, places: Sequence[Any]) -> None:
        """Claiming may wait for the store, so it is left to the loop; until then nothing is read."""
        held = [self._place(place.partition, OFFSET_BEGINNING) for place in places]
        reader.incremental_assign(held)
        if held:
            reader.pause(held)
        self.fresh |= {place.partition for place in places}

    def _on_revoke(self, reader: Any, places: Sequence[Any]) -> None:
        self._release([place.partition for place in places])
        reader.incremental_unassign(places)
        for place in places:
            self.fresh.discard(place.partition)
            self.next.pop(place.partition, None)
            self._ends.pop(place.partition, None)

    def _on_client_error(self, error: Any) -> None:
        if not self._offline:
            logger.warning("sink %s: the log at %s does not answer (%s)", self._sink, self._log, error.str())
        self._offline = True
