"""LibraryProducer: the same transactions by librdkafka, record by record, with all its kinds of security."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headwater.access import Log
from headwater.client.bulk.packing import column
from headwater.client.bulk.transactions import Partition
from headwater.client.client import FENCED, Client, producer
from headwater.clock import Clock
from headwater.errors import FencedError, MachineError, UsageError

__all__ = ["LibraryProducer"]

SETTINGS: dict[str, Any] = {
    "compression.type": "lz4",
    "queue.buffering.max.messages": 1_000_000,
    "message.max.bytes": 100_000_000,  # the topic's own limit decides
}
CHUNK_RECORDS = 10_000
UNSENT_BYTES_MAX = 32 << 20
RECORD_BYTES = 64
"""Added to the bytes of key and value of each record, so that at most half a million are in the queue."""


class LibraryProducer:
    """See `Transactions`."""

    def __init__(self, log: Log, name: str, *, timeout_ms: int, wait_s: float, clock: Clock) -> None:
        self._log = log
        self._name = name
        self._timeout_ms = timeout_ms
        self._wait_s = wait_s
        self._clock = clock
        self._client = Client(log)
        self._producer: Any = None
        self._unsent = 0
        self._ends: dict[str, dict[int, int]] = {}
        """The end of each topic that takes part, before the transaction."""

    def claim(self) -> None:
        own: dict[str, Any] = {
            "transactional.id": self._name,
            "transaction.timeout.ms": self._timeout_ms,
            "message.timeout.ms": min(self._timeout_ms, int(self._wait_s * 1000)),
        }
        self._unsent = 0
        with self._border():
            self._producer = producer(self._log, **SETTINGS, **own)
            self._producer.init_transactions(self._wait_s)

    def begin(self, *surely: str) -> None:  # noqa: ARG002  the library asks when it must
        if self._producer is None:
            raise MachineError(f"{self._name} has not claimed its name")
        self._ends = {}
        with self._border():
            self._producer.begin_transaction()

    def send(self, topic: str, keys: Any, values: Any) -> None:
        keys, values = column(keys), column(values)
        if topic not in self._ends:
            self._ends[topic] = self._open_ends(topic)
        for start in range(0, len(keys), CHUNK_RECORDS):
            end = start + CHUNK_RECORDS
            pairs = zip(keys[start:end].to_pylist(), values[start:end].to_pylist(), strict=True)
            with self._border():
                self._produce(topic, [{"key": key, "value": value} for key, value in pairs])

    def flush(self) -> dict[Partition, int]:
        self._flush()
        return {
            (topic, partition): end
            for topic, before in self._ends.items()
            for partition, end in self._open_ends(topic).items()
            if end > before.get(partition, 0)
        }

    def commit(self) -> None:
        limit = self._clock.monotonic() + self._wait_s
        with self._border():
            while True:
                try:
                    self._producer.commit_transaction(self._wait_s)
                except KafkaException as error:
                    if not error.args[0].retriable() or self._clock.monotonic() >= limit:
                        raise
                else:
                    return

    def abort(self, wait_s: float | None = None) -> None:
        abandoned, self._producer = self._producer, None
        if abandoned is not None:
            with suppress(KafkaException):
                abandoned.purge()
                abandoned.abort_transaction(self._wait_s if wait_s is None else wait_s)

    def close(self) -> None:
        self._producer = None
        self._client.close()

    def _open_ends(self, topic: str) -> dict[int, int]:
        return self._client.open_ends(topic, self._client.partitions().get(topic, 0))

    def _produce(self, topic: str, part: list[dict[str, Any]]) -> None:
        """Never fills the queue: a full one might refuse a record and take the next, in the wrong order."""
        self._unsent += sum(
            len(message["key"] or b"") + len(message["value"] or b"") + RECORD_BYTES for message in part
        )
        if self._producer.produce_batch(topic, part) != len(part):
            raise KafkaException(next(message["_error"] for message in part if "_error" in message))
        if self._unsent >= UNSENT_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        with self._border():
            left = self._producer.flush(self._wait_s)
        if left:
            raise MachineError("the log does not take records", got=f"{left} are still in flight")
        self._unsent = 0

    @contextmanager
    def _border(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            reason = error.args[0]
            if reason.name() in FENCED:
                raise FencedError(
                    f"{self._name}: another process has taken over", got=reason.name()
                ) from error
            if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise UsageError(
                    "the log does not take a record as large as this one", got=reason.str()
                ) from error
            raise MachineError("the log does not take records", got=reason.str()) from error
