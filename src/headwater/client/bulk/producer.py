"""BulkProducer: transactions with record batches of our own, made of whole columns.

It numbers its batches like every transactional producer, so that a batch that is sent again is stored once.
What librdkafka does for each record is done here for each batch, in a quarter of the time (DESIGN.md).
"""

import random
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

from headwater.access import Log
from headwater.client.bulk.cluster import Cluster, check
from headwater.client.bulk.connection import BrokerConnection, compose
from headwater.client.bulk.packing import PackedBatch, column, pack_partitions, pack_records
from headwater.client.bulk.transactions import TIMEOUT_MS, WAIT_S, Partition
from headwater.clock import Clock, SystemClock
from headwater.errors import ErrorCode, FencedError, MachineError, UsageError
from headwater.protocol.kafka.codec import Message
from headwater.record import Record

__all__ = ["BulkProducer"]

IN_FLIGHT_MAX = 4
"""Requests without an answer at one broker.

Brokers recognize the last five batches of a producer in a partition.
"""
WAITING_MAX = 4
"""Batches that wait to be sent; with more of them the log would be idle in between."""
REQUEST_BYTES = 2_000_000
SETTLE_S = 1.0
ACKNOWLEDGED_BY_ALL = -1
PRODUCE_MS = 30_000
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Batch(NamedTuple):
    """A batch that is in flight or will be sent."""

    partition: Partition
    packed: PackedBatch
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
        self._added: set[Partition] = set()
        """The partitions of the open transaction that its coordinator knows."""
        self._groups: set[str] = set()
        """The groups of the open transaction that its coordinator knows."""
        self._waiting: deque[_Batch] = deque()
        self._sent: dict[BrokerConnection, deque[list[_Batch]]] = {}
        self._losses = 0
        self._ends: dict[Partition, int] = {}

    def claim(self) -> None:
        self._reset()
        self._cluster.forget()
        request = compose(
            "InitProducerId", transactional_id=self._name, transaction_timeout_ms=self._timeout_ms
        )
        answer = self._coordinated("InitProducerId", request)
        self._id, self._epoch = answer.producer_id, answer.producer_epoch
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
        for number, packed_batches in pack_partitions(keys, values, count, self._random.randrange(count)):
            self._enqueue((topic, number), packed_batches)
        self._send(limit, all_of_them=False)

    def send_records(self, topic: str, records: Sequence[Record], partition: int | None = None) -> None:
        """Takes over records with headers, one by one; those without a timestamp get the time.

        Their keys choose the partitions, unless one is given.
        """
        limit, at_ms = self._limit(), self._clock.now_ms()
        count = self._partitions(topic, limit) if partition is None else 1
        for number, packed_batches in pack_records(records, count, self._random.randrange(count), at_ms):
            self._enqueue((topic, number if partition is None else partition), packed_batches)
        self._send(limit, all_of_them=False)

    def add_group(self, group: str) -> tuple[str, int, int]:
        """Adds a group to the transaction, before anything is acknowledged with it.

        Returns what acknowledgements name it by: the producer's name, id and epoch.
        """
        if group not in self._groups:
            request = compose(
                "AddOffsetsToTxn",
                transactional_id=self._name,
                producer_id=self._id,
                producer_epoch=self._epoch,
                group_id=group,
            )
            self._coordinated("AddOffsetsToTxn", request)
            self._groups.add(group)
        return self._name, self._id, self._epoch

    def flush(self) -> dict[Partition, int]:
        self._send(self._limit(), all_of_them=True)
        return dict(self._ends)

    def commit(self) -> None:
        self.flush()
        self._end(committed=True, limit=self._limit())

    def abort(self, wait_s: float | None = None) -> None:
        for connection in self._sent:
            with suppress(OSError):
                connection.settle(SETTLE_S)  # a batch must not arrive after the end of its transaction
        self._cluster.forget()
        try:
            self._end(committed=False, limit=self._limit(wait_s))
        except (FencedError, MachineError):
            return
        finally:
            self._id = -1  # the log may lack some of the batches that were numbered
            self._cluster.forget()

    def close(self) -> None:
        self._cluster.close()

    def _enqueue(self, partition: Partition, batches: Iterable[PackedBatch]) -> None:
        for packed in batches:
            sequence = self._next.get(partition, 0)
            self._next[partition] = (sequence + packed.records) & 0x7FFFFFFF
            self._waiting.append(_Batch(partition, packed, sequence))

    # ---- the transaction -------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._added.clear()
        self._groups.clear()
        self._waiting.clear()
        self._sent.clear()
        self._ends = {}

    def _limit(self, wait_s: float | None = None) -> float:
        return self._clock.monotonic() + (self._wait_s if wait_s is None else wait_s)

    def _end(self, *, committed: bool, limit: float) -> None:
        if not self._added and not self._groups:
            return  # the coordinator has not heard of the transaction
        request = compose(
            "EndTxn",
            transactional_id=self._name,
            producer_id=self._id,
            producer_epoch=self._epoch,
            committed=committed,
        )
        self._coordinated("EndTxn", request, limit)
        self._added.clear()
        self._groups.clear()

    def _add(self, partitions: Iterable[Partition]) -> None:
        """Adds partitions to the transaction, before anything is written to them."""
        wanted = {*partitions, *self._expected()}
        new = sorted(wanted - self._added)
        if not new:
            return
        path = "v3_and_below_topics"
        topics = [
            compose("AddPartitionsToTxn", path, name=topic, partitions=[number for _, number in group])
            for topic, group in groupby(new, key=lambda partition: partition[0])
        ]
        request = compose(
            "AddPartitionsToTxn",
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=topics,
        )
        self._coordinated("AddPartitionsToTxn", request)
        self._added |= set(new)

    def _expected(self) -> list[Partition]:
        """Partitions that will take part for sure: those of the expected topics that have only one."""
        limit = self._limit()
        return [(topic, 0) for topic in self._surely if self._partitions(topic, limit) == 1]

    def _partitions(self, topic: str, limit: float) -> int:
        what = f"the partitions of topic {topic!r} are not known"
        return len(self._cluster.again(lambda: self._cluster.leaders(topic), what, limit))

    def _coordinated(self, api: str, request: Message, limit: float | None = None) -> Message:
        """The answer of the coordinator of our transactions; a request is repeated as often as necessary."""

        def attempt() -> Message:
            answer = self._cluster.coordinator(self._name).ask(api, request)
            for code in _codes(answer):
                check(code, f"transactions of {self._name}")
            return answer

        return self._cluster.again(attempt, f"the log does not answer {self._name}", limit or self._limit())

    # ---- batches ---------------------------------------------------------------------------------------

    def _send(self, limit: float, *, all_of_them: bool) -> None:
        """Sends waiting batches and reads answers: either all, or as many as are needed to make room."""
        if all_of_them or len(self._waiting) >= WAITING_MAX:
            self._add(batch.partition for batch in self._waiting)
            self._cluster.again(
                lambda: self._turn(all_of_them=all_of_them), "the log does not take records", limit
            )

    def _turn(self, *, all_of_them: bool) -> None:
        if self._losses != self._cluster.losses:
            # Batches without an answer are sent again, in the same order and with the same numbers.
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
        """Sends one request: a batch of each partition that has the same leader as the first one."""
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
        while len(requests) >= IN_FLIGHT_MAX:
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
        for (topic, number), packed, sequence in chosen:
            records = packed.batch(self._id, self._epoch, sequence, at_ms)
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

    def _answer(self, connection: BrokerConnection) -> None:
        """Reads the answer to the oldest request of a broker."""
        answer = connection.receive()
        batches = {batch.partition: batch for batch in self._sent[connection][0]}
        for topic in answer.responses:
            for part in topic.partition_responses:
                partition = topic.name, part.index
                if part.error_code in TOO_LARGE:
                    raise _too_large(partition, batches[partition].packed)
                check(part.error_code, f"{topic.name}[{part.index}]")
                self._ends[partition] = part.base_offset + batches[partition].packed.records
        self._sent[connection].popleft()


def _codes(answer: Message) -> list[int]:
    """The error codes of a coordinator's answer."""
    if hasattr(answer, "error_code"):
        return [answer.error_code]
    topics = answer.results_by_topic_v3_and_below
    return [result.partition_error_code for topic in topics for result in topic.results_by_partition]


def _too_large(partition: Partition, sent: PackedBatch) -> UsageError:
    return UsageError(
        f"topic {partition[0]!r} does not take a record as large as this one",
        got=f"{len(sent.body):,} bytes in {sent.records} records",
        expected="no more than its max.message.bytes",
        hint="raise it with Kafka's own tool: kafka-configs.sh --bootstrap-server HOST:PORT --alter "
        f"--entity-type topics --entity-name {partition[0]} --add-config max.message.bytes=BYTES",
    )
