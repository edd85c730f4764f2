"""Outputs: what handlers have written and dead letters, brought into the log with the acknowledgements.

    TransactionalOutputs   the embedded log: records and acknowledgements of several messages are one
                           transaction, so both are there or neither, and each once
    PlainOutputs           Apache Kafka, which has no acknowledgements in transactions: records first, then
                           acknowledgements; after a crash between the two a message is handled again

Both work in a thread of their own. While one commit is on its way, further messages gather for the next.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from headwater.access import Log
from headwater.client.bulk.producer import BulkProducer
from headwater.client.client import producer
from headwater.client.share.consumer import ShareConsumer
from headwater.client.share.link import RefusedError
from headwater.client.share.session import Ack, AckKind, Place, TransactionIdentity
from headwater.errors import HeadwaterError, UsageError, one_line
from headwater.worker.outcome import Bury, Succeeded
from headwater.worker.topics import Topics
from headwater.worker.work import Written
from headwater.worker.work_list import Task

__all__ = ["Finale", "Outputs", "PlainOutputs", "Result", "TransactionalOutputs"]

BATCH_MAX = 500
"""Messages of one transaction."""
TRANSACTION_MS = 10_000
"""A transaction that is open for longer is aborted by the log: its messages are delivered again."""
WAIT_S = 8.0
"""How long the log may be away during a commit; less than its transaction lasts."""
FLUSH_S = 30.0
CLOSE_S = 10.0
PAUSE_S = 0.5
"""After a commit that has failed."""
HOPELESS = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG"}
"""Errors that the log would answer again."""

logger = logging.getLogger(__name__)


class Finale(NamedTuple):
    """A message that ends, and the records that go with its acknowledgement."""

    task: Task
    records: Sequence[Written]
    verdict: Succeeded | Bury


class Result(NamedTuple):
    """What became of it."""

    finale: Finale
    error: str = ""
    """Why it has not taken effect; empty if it has."""
    is_hopeless: bool = False
    """Whether the log would refuse its records again."""
    is_acknowledged: bool = False
    """Whether the acknowledgement is in the log too."""
    is_released: bool = False
    """Whether the message is no longer held: its transaction has released it, or its lock was lost."""


Done = Callable[[list[Result]], None]
"""Called in the thread of the outputs."""


class Outputs(Protocol):
    """Takes finales from the worker's thread, and tells ``done`` what became of them."""

    def put(self, finale: Finale) -> None: ...

    def close(self) -> None:
        """Returns when everything is in the log, or after a bounded time."""


class _Gathering:
    """The thread of outputs: takes all finales that have gathered, and commits them together."""

    def __init__(self, group: str, done: Done) -> None:
        self._done = done
        self._closing = threading.Event()
        self._finales: queue.SimpleQueue[Finale | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"outputs {group}", daemon=True)
        self._thread.start()

    def put(self, finale: Finale) -> None:
        self._finales.put(finale)

    def close(self) -> None:
        self._closing.set()
        self._finales.put(None)
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while (finale := self._finales.get()) is not None:
            batch: list[Finale] = [finale]
            over = False
            while len(batch) < BATCH_MAX and not self._finales.empty() and not over:
                further = self._finales.get()
                over = further is None
                if further is not None:
                    batch.append(further)
            lost = [finale for finale in batch if finale.task.is_lost]
            results = [Result(finale, "its lock was lost", is_released=True) for finale in lost]
            held = [finale for finale in batch if not finale.task.is_lost]
            if held:
                results += self._commit(held)
            self._done(results)
            if any(result.error and not result.is_hopeless for result in results) and not over:
                self._closing.wait(PAUSE_S)
            if over:
                break
        self._end()

    def _commit(self, batch: list[Finale]) -> list[Result]:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class TransactionalOutputs(_Gathering):
    """Each message with its records and its acknowledgement, exactly once in effect."""

    def __init__(self, log: Log, consumer: ShareConsumer, topics: Topics, done: Done) -> None:
        name = f"{consumer.group}-{consumer.member}"
        self._consumer = consumer
        self._topics = topics
        self._producer = BulkProducer(log, name, timeout_ms=TRANSACTION_MS, wait_s=WAIT_S)
        self._is_claimed = False
        super().__init__(consumer.group, done)

    def _commit(self, batch: list[Finale], *, singly: bool = False) -> list[Result]:
        """``singly``: no two records are in one batch of the log, which might be too large for it."""
        try:
            self._write(batch, singly=singly)
        except UsageError as error:
            self._abort()
            return self._without_bad(batch, error, singly=singly)
        except (HeadwaterError, OSError) as error:
            self._abort()
            return [Result(finale, one_line(error)) for finale in batch]
        try:
            self._acknowledge(batch)
            self._producer.commit()
        except RefusedError as error:
            self._abort()
            return self._without_refused(batch, error)
        except (HeadwaterError, OSError) as error:
            self._abort()
            why = one_line(error) or type(error).__name__
            return [Result(finale, why, is_released=True) for finale in batch]
        return [Result(finale, is_acknowledged=True) for finale in batch]

    def _without_bad(self, batch: list[Finale], error: UsageError, *, singly: bool) -> list[Result]:
        """The log never takes one of the records, or not all of them together."""
        if len(batch) > 1:
            return self._commit_halves(batch)
        if len(batch[0].records) > 1 and not singly:
            return self._commit(batch, singly=True)
        return [Result(finale, one_line(error), is_hopeless=True) for finale in batch]

    def _commit_halves(self, batch: list[Finale]) -> list[Result]:
        """Until the bad one is alone."""
        middle = len(batch) // 2
        return [*self._commit(batch[:middle]), *self._commit(batch[middle:])]

    def _without_refused(self, batch: list[Finale], error: RefusedError) -> list[Result]:
        """A partition is refused as a whole if one of its messages is no longer held: which one?

        The others of it are not part of the transaction that was aborted, and still held.
        """
        places = {refused.place for refused in error.refused}
        if len(batch) == 1:
            return [Result(batch[0], one_line(error), is_released=True)]
        refused = [finale for finale in batch if finale.task.place in places]
        for finale in refused:
            finale.task.is_committing = False
        others = [finale for finale in batch if finale.task.place not in places]
        results = [Result(finale, one_line(error), is_released=True) for finale in others]
        return results + (self._commit_halves(refused) if len(refused) > 1 else self._commit(refused))

    def _write(self, batch: list[Finale], *, singly: bool) -> None:
        """Begins the transaction, and has all records in the log."""
        by_topic: dict[str, list[Written]] = {}
        for finale in batch:
            for written in finale.records:
                by_topic.setdefault(written.topic, []).append(written)
        self._topics.ensure([written_records[0] for written_records in by_topic.values()])
        if not self._is_claimed:
            self._producer.claim()
            self._is_claimed = True
        self._producer.begin()
        for topic, written_records in by_topic.items():
            records = [written.record for written in written_records]
            for part in [[record] for record in records] if singly else [records]:
                self._producer.send_records(topic, part)
        self._producer.flush()

    def _acknowledge(self, batch: list[Finale]) -> None:
        """Says in the transaction that the messages are done. The log knows when this returns."""
        identity = TransactionIdentity(*self._producer.add_group(self._consumer.group))
        acks: dict[Place, list[Ack]] = {}
        for finale in batch:
            finale.task.is_committing = True
            # A dead letter is accepted too: it has been dealt with, and the letter says how.
            acks.setdefault(finale.task.place, []).append(Ack(finale.task.record.offset, AckKind.ACCEPT))
        self._consumer.in_transaction(acks, identity).result(WAIT_S)

    def _abort(self) -> None:
        self._is_claimed = False
        with suppress(OSError, HeadwaterError):
            self._producer.abort(0.0)

    def _end(self) -> None:
        self._producer.close()


class PlainOutputs(_Gathering):
    """Records that are in the log before the worker accepts their messages."""

    def __init__(self, log: Log, group: str, topics: Topics, done: Done) -> None:
        self._log = log
        self._topics = topics
        self._producer: Any = None
        super().__init__(group, done)

    def _commit(self, batch: list[Finale], *, singly: bool = False) -> list[Result]:
        errors: dict[int, Result] = {}
        try:
            self._topics.ensure([written for finale in batch for written in finale.records])
            if self._producer is None:
                settings: dict[str, Any] = {"message.timeout.ms": int(FLUSH_S * 1000), "linger.ms": 0}
                self._producer = producer(self._log, **settings)
        except HeadwaterError as error:
            return [Result(finale, one_line(error)) for finale in batch]
        for number, finale in enumerate(batch):
            for written in finale.records:
                self._send(number, finale, written, errors)
                if singly:
                    self._producer.flush(FLUSH_S)
        unanswered = self._producer.flush(FLUSH_S + CLOSE_S)
        if unanswered:
            return [Result(finale, "the log does not answer") for finale in batch]
        results = [errors.get(number, Result(finale)) for number, finale in enumerate(batch)]
        if singly or len(batch) == len(batch[0].records) == 1:
            return results
        # Others may have been refused with the one that the log does not take.
        return [result for each in results for result in (self._again(each) if each.is_hopeless else [each])]

    def _again(self, result: Result) -> list[Result]:
        return self._commit([result.finale], singly=True)

    def _send(self, number: int, finale: Finale, written: Written, errors: dict[int, Result]) -> None:
        def note(error: Any, _: Any) -> None:
            if error is not None:
                errors[number] = Result(finale, error.str(), is_hopeless=error.name() in HOPELESS)

        record = written.record
        while True:
            try:
                self._producer.produce(
                    written.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    timestamp=max(record.timestamp, 0),  # 0: the time when it is sent
                    on_delivery=note,
                )
            except BufferError:
                self._producer.poll(0.1)
            except Exception as error:  # noqa: BLE001  librdkafka's, for a record that it does not take
                errors[number] = Result(finale, one_line(error), is_hopeless=True)
                return
            else:
                self._producer.poll(0)
                return

    def _end(self) -> None:
        if self._producer is not None:
            self._producer.flush(FLUSH_S)
