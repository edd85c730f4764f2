"""BulkProducer: Transactions with record batches of our own, made of whole columns.

It numbers its batches like every transactional producer, so that one that is sent again is taken once. What librdkafka does for each record is
done for each batch here, which takes a quarter of the time (DESIGN.md).
"""

import random
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

from headwater.access import Log
from headwater.bulk.cluster import Cluster, check
from headwater.bulk.connection import Connection, compose
from headwater.bulk.packing import Packed, column, parcels
from headwater.bulk.transactions import TIMEOUT_MS, WAIT_S, Partition
from headwater.clock import Clock, SystemClock
from headwater.errors import ErrorCode, Fenced, MachineError, UsageError
from headwater.kafka.codec import Message

__all__ = ["BulkProducer"]

ON_THE_WAY_MAX = 4
"""Requests without an answer at one broker; brokers know the last five batches of a producer in a partition again."""
WAITING_MAX = 4
"""Batches that wait to be sent: with more the log would have nothing to do meanwhile."""
REQUEST_BYTES = 2_000_000
SETTLE_S = 1.0
ACKNOWLEDGED_BY_ALL = -1
PRODUCE_MS = 30_000
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Batch(NamedTuple):
    """A batch that is on its way, or will be."""

    partition: Partition
    packed: Packed
    sequence: int


class BulkProducer:
    """See `Transactions`."""

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        wait_s: float = WAIT_S,
        clock: Clock | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self._name = name
        self._timeout_ms = timeout_ms
        self._wait_s = wait_s
        self._clock = clock or SystemClock()
        self._cluster = Cluster(log, self._clock, stopping)
        self._random = random.Random()  # noqa: S311  which partition takes records without a key
        self._id, self._epoch = -1, -1
        self._next: dict[Partition, int] = {}
        self._surely: tuple[str, ...] = ()
        self._part_of: set[Partition] = set()
        """The partitions that the open transaction has told its coordinator."""
        self._waiting: deque[_Batch] = deque()
        self._sent: dict[Connection, deque[list[_Batch]]] = {}
        self._losses = 0
        self._ends: dict[Partition, int] = {}

    def claim(self) -> None:
        self._reset()
        self._cluster.forget()
        asked = compose(
            "InitProducerId", transactional_id=self._name, transaction_timeout_ms=self._timeout_ms
        )
        found = self._coordinated("InitProducerId", asked)
        self._id, self._epoch = found.producer_id, found.producer_epoch
        self._next.clear()

    def begin(self, *surely: str) -> None:
        if self._id < 0:
            raise MachineError(f"{self._name} has not claimed its name")
        self._reset()
        self._surely = surely

    def send(self, topic: str, keys: Any, values: Any) -> None:
        keys, values = column(keys), column(values)
        if not len(keys):
            return
        limit = self._limit()
        count = self._partitions(topic, limit)
        for number, made in parcels(keys, values, count, self._random.randrange(count)):
            partition = topic, number
            for each in made:
                sequence = self._next.get(partition, 0)
                self._next[partition] = (sequence + each.records) & 0x7FFFFFFF
                self._waiting.append(_Batch(partition, each, sequence))
        self._send(limit, all_of_them=False)

    def flush(self) -> dict[Partition, int]:
        self._send(self._limit(), all_of_them=True)
        return dict(self._ends)

    def commit(self) -> None:
        self.flush()
        self._end(committed=True, limit=self._limit())

    def abort(self, wait_s: float | None = None) -> None:
        for connection in self._sent:
            with suppress(OSError):
                connection.settle(SETTLE_S)  # what the log has not read yet must not come after the end
        self._cluster.forget()
        try:
            self._end(committed=False, limit=self._limit(wait_s))
        except (Fenced, MachineError):
            return
        finally:
            self._id = -1  # the log may lack some of the batches that were numbered
            self._cluster.forget()

    def close(self) -> None:
        self._cluster.close()

    # ---- the transaction -------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._part_of.clear()
        self._waiting.clear()
        self._sent.clear()
        self._ends = {}

    def _limit(self, wait_s: float | None = None) -> float:
        return self._clock.monotonic() + (self._wait_s if wait_s is None else wait_s)

    def _end(self, *, committed: bool, limit: float) -> None:
        if not self._part_of:
            return  # the coordinator knows of no transaction
        asked = compose(
            "EndTxn",
            transactional_id=self._name,
            producer_id=self._id,
            producer_epoch=self._epoch,
            committed=committed,
        )
        self._coordinated("EndTxn", asked, limit)
        self._part_of.clear()

    def _add(self, partitions: Iterable[Partition]) -> None:
        """Tells the coordinator which partitions take part, before anything is written there."""
        wanted = {*partitions, *self._expected()}
        new = sorted(wanted - self._part_of)
        if not new:
            return
        path = "v3_and_below_topics"
        topics = [
            compose("AddPartitionsToTxn", path, name=topic, partitions=[number for _, number in some])
            for topic, some in groupby(new, key=lambda each: each[0])
        ]
        asked = compose(
            "AddPartitionsToTxn",
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=topics,
        )
        self._coordinated("AddPartitionsToTxn", asked)
        self._part_of |= set(new)

    def _expected(self) -> list[Partition]:
        """The partitions that are sure to take part: those of topics that have one."""
        limit = self._limit()
        return [(topic, 0) for topic in self._surely if self._partitions(topic, limit) == 1]

    def _partitions(self, topic: str, limit: float) -> int:
        what = f"the partitions of topic {topic!r} are not known"
        return len(self._cluster.again(lambda: self._cluster.leaders(topic), what, limit))

    def _coordinated(self, api: str, asked: Message, limit: float | None = None) -> Message:
        """What the coordinator of our transactions answers, however often it must be asked."""

        def attempt() -> Message:
            found = self._cluster.coordinator(self._name).ask(api, asked)
            for code in _codes(found):
                check(code, f"transactions of {self._name}")
            return found

        return self._cluster.again(attempt, f"the log does not answer {self._name}", limit or self._limit())

    # ---- batches ---------------------------------------------------------------------------------------

    def _send(self, limit: float, *, all_of_them: bool) -> None:
        """Sends what waits, and takes answers in; all of them, or those without which nothing more may be sent."""
        if all_of_them or len(self._waiting) >= WAITING_MAX:
            self._add(each.partition for each in self._waiting)
            self._cluster.again(
                lambda: self._turn(all_of_them=all_of_them), "the log does not take records", limit
            )

    def _turn(self, *, all_of_them: bool) -> None:
        if self._losses != self._cluster.losses:
            # What has no answer is sent again, in the same order and under the same numbers.
            unsure = [batch for requests in self._sent.values() for request in requests for batch in request]
            self._waiting.extendleft(reversed(unsure))
            self._sent.clear()
            self._losses = self._cluster.losses
        while self._waiting:
            self._request()
        if all_of_them:
            for connection, requests in self._sent.items():
                while requests:
                    self._answer(connection)

    def _request(self) -> None:
        """One request: a batch of each partition that the first one's broker leads."""
        node = self._node(self._waiting[0])
        chosen: dict[Partition, _Batch] = {}
        left: deque[_Batch] = deque()
        size = 0
        for batch in self._waiting:
            if batch.partition in chosen or size >= REQUEST_BYTES or self._node(batch) != node:
                left.append(batch)
            else:
                chosen[batch.partition] = batch
                size += len(batch.packed.body)
        connection = self._cluster.node(node)
        requests = self._sent.setdefault(connection, deque())
        while len(requests) >= ON_THE_WAY_MAX:
            self._answer(connection)
        requests.append(list(chosen.values()))
        self._waiting = left
        connection.send("Produce", self._composed(chosen.values()))

    def _node(self, batch: _Batch) -> int:
        topic, number = batch.partition
        return self._cluster.leaders(topic)[number]

    def _composed(self, chosen: Iterable[_Batch]) -> Message:
        at_ms = self._clock.now_ms()
        topics: dict[str, list[Message]] = {}
        for (topic, number), each, sequence in chosen:
            records = each.batch(self._id, self._epoch, sequence, at_ms)
            part = compose("Produce", "topic_data.partition_data", index=number, records=records)
            topics.setdefault(topic, []).append(part)
        data = [
            compose("Produce", "topic_data", name=name, partition_data=parts)
            for name, parts in topics.items()
        ]
        return compose(
            "Produce",
            transactional_id=self._name,
            acks=ACKNOWLEDGED_BY_ALL,
            timeout_ms=PRODUCE_MS,
            topic_data=data,
        )

    def _answer(self, connection: Connection) -> None:
        """Takes in the answer to the oldest request of a broker."""
        found = connection.receive()
        batches = {batch.partition: batch for batch in self._sent[connection][0]}
        for topic in found.responses:
            for each in topic.partition_responses:
                partition = topic.name, each.index
                if each.error_code in TOO_LARGE:
                    raise _too_large(partition, batches[partition].packed)
                check(each.error_code, f"{topic.name}[{each.index}]")
                self._ends[partition] = each.base_offset + batches[partition].packed.records
        self._sent[connection].popleft()


def _codes(found: Message) -> list[int]:
    """The error codes of an answer of a coordinator."""
    if hasattr(found, "error_code"):
        return [found.error_code]
    topics = found.results_by_topic_v3_and_below
    return [each.partition_error_code for topic in topics for each in topic.results_by_partition]


def _too_large(partition: Partition, sent: Packed) -> UsageError:
    return UsageError(
        f"topic {partition[0]!r} does not take a record as large as this one",
        got=f"{len(sent.body):,} bytes in {sent.records} records",
        expected="no more than its max.message.bytes",
        hint=f"headwater topic config {partition[0]} max.message.bytes=…",
    )
