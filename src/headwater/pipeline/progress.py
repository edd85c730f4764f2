"""Progress: what each batch of a view has made, in ``<view>.progress``, in one transaction with the view's records.

A batch has happened when its result is there, and then everything of it is: its records, its state files, its positions. There
is nothing in between to be repaired. One producer writes for a run of a view; a second one for the same run fences the first.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException

from headwater.client import FENCED, producer
from headwater.clock import Clock
from headwater.errors import Fenced, HeadwaterError, MachineError, UsageError
from headwater.pipeline import late
from headwater.pipeline.late import LateRecord
from headwater.pipeline.points import passes
from headwater.pipeline.topics import Positions, Topics
from headwater.result import Result, current, results, shadow_topic, topic

__all__ = ["Progress"]

RESULTS_KEPT = 64
"""The topic is compacted, and results take turns in so many keys."""
CHUNK_RECORDS = 10_000
INIT_SECONDS_MAX = 60.0
COMMIT_SECONDS_MAX = 120.0
SETTINGS = {
    "transaction.timeout.ms": 60_000,
    "message.timeout.ms": 60_000,
    "queue.buffering.max.messages": 1_000_000,
    "compression.type": "lz4",
}


class Progress:
    """The results of one run of a view, and the only way to add one. Belongs to the query's thread."""

    def __init__(self, topics: Topics, view: str, run: str, clock: Clock, *, shadow: bool = False) -> None:
        self.run = run
        self.shadow = shadow
        """Whether it catches up beside the run that readers see, on a topic of its own."""
        self._view = view
        self._topic = shadow_topic(view, run) if shadow else view
        self._clock = clock
        self._client = topics
        self._pause = threading.Event()
        self._producer: Any = None
        self._ends: dict[int, int] = {}
        self.results: dict[int, Result] = {}
        self.partitions = 0

    @property
    def last(self) -> Result | None:
        return self.results[max(self.results)] if self.results else None

    def open(self, reached: int) -> None:
        """Takes over the run and reads its results; ``reached`` is the checkpoint's last complete batch, or -1.

        Raises UsageError, saying what disagrees, when log and checkpoint cannot be of one history.
        """
        newest = self.take_over()
        self._check(self.last if self.shadow else newest, reached)

    def take_over(self) -> Result | None:
        """Ends whoever else publishes for the run; the newest result that readers see, of whatever run."""
        settings: dict[str, Any] = SETTINGS | {"transactional.id": f"headwater/{self._view}/{self.run}"}
        self._producer = producer(self._client.log, **settings)
        self._call(lambda: self._producer.init_transactions(INIT_SECONDS_MAX))
        self.partitions = self._client.partitions().get(self._topic, 0)
        self._ends = self._client.open_ends(self._topic, self.partitions)
        found = results(self._client, self._view)
        self.results = {result.batch: result for result in found if result.run == self.run}
        return current(found)

    def _check(self, newest: Result | None, reached: int) -> None:
        what = f"view {self._view!r} cannot go on"
        hint = f"make it anew from the log: headwater view reset {self._view}"
        if newest is not None and newest.run != self.run:
            raise UsageError(
                f"{what}: its topic was written by another run",
                got=f"run {newest.run} up to batch {newest.batch}, and a checkpoint of run {self.run}",
                expected="the checkpoint that made it (was it deleted, or does another application use the name?)",
                hint=hint,
            )
        batch = newest.batch if newest else -1
        if batch not in {reached, reached + 1}:
            says = f"the checkpoint ends with batch {reached}, {topic(self._view)} with {batch}"
            older = "the checkpoint is from an earlier time" if batch > reached else "results are missing"
            raise UsageError(f"{what}: {older}", got=says, hint=hint)
        if newest is not None and newest.partitions != self.partitions:
            raise UsageError(
                f"{what}: keys would move to other partitions of its topic",
                got=f"{self.partitions} partitions",
                expected=str(newest.partitions),
                hint=hint,
            )

    def repeated(self, batch: int, inputs: Positions) -> bool:
        """Whether a batch has its result already; UsageError if that was made from other records."""
        known = self.results.get(batch)
        if known is None:
            return False
        if known.inputs != inputs:
            raise UsageError(
                f"view {self._view!r} cannot go on: batch {batch} was made from other records",
                got=f"input up to {inputs}",
                expected=str(known.inputs),
                hint=f"the checkpoint is not the one that made it; headwater view reset {self._view}",
            )
        return True

    def publish(
        self,
        result: Result,
        records: Iterable[tuple[bytes, bytes | None]],
        too_late: Iterable[LateRecord] = (),
    ) -> Result:
        """Makes a batch happen: its records and its result, all or nothing. Raises Fenced or MachineError."""
        with self._transaction():
            passes("transaction begun")
            changed = self._produce(records)
            for record in too_late:
                self._produce_late(record)
            if changed:
                self._flush()
            passes("all is produced")
            outputs = self._reached() if changed else {}
            known = self.last.outputs if self.last else {}
            result = msgspec.structs.replace(result, changed=changed, outputs=known | outputs)
            self._produce_result(result)
        self._ends |= {partition: end + 1 for partition, end in outputs.items()}  # the marker
        self.results[result.batch] = result
        self.results.pop(result.batch - RESULTS_KEPT, None)
        return result

    def revise(self, revised: Iterable[Result]) -> None:
        """Puts results in the place of those of the same batches, all or none; what these have published stays."""
        with self._transaction():
            for result in revised:
                self._produce_result(result)

    def close(self) -> None:
        """Ends the producer; the results stay readable."""
        self._producer = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is produced inside happens, or nothing. Raises Fenced or MachineError."""
        self._call(self._producer.begin_transaction)
        try:
            yield
            passes("before commit")
            self._commit()
        except KafkaException as error:
            self._abort()
            raise self._failed(error.args[0]) from error
        except BaseException:
            self._abort()
            raise
        passes("after commit")

    def _produce(self, records: Iterable[tuple[bytes, bytes | None]]) -> int:
        found, changed = iter(records), 0
        while part := [{"key": key, "value": value} for key, value in islice(found, CHUNK_RECORDS)]:
            if changed == 0 and len(part) > 1:
                half = len(part) // 2
                self._produce_part(part[:half])
                passes("half is produced")
                self._produce_part(part[half:])
            else:
                self._produce_part(part)
            changed += len(part)
        return changed

    def _produce_result(self, result: Result) -> None:
        key = f"{result.run}#{result.batch % RESULTS_KEPT}"
        self._producer.produce(topic(self._view), msgspec.json.encode(result), key)

    def _produce_late(self, record: LateRecord) -> None:
        while True:
            try:
                self._producer.produce(late.topic(self._topic), msgspec.json.encode(record), record.key)
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def _produce_part(self, part: list[dict[str, Any]]) -> None:
        while part:
            self._producer.produce_batch(self._topic, part)
            part = [message for message in part if "_error" in message]
            if part and part[0]["_error"].code() != KafkaError._QUEUE_FULL:  # noqa: SLF001  the client's public name for it
                raise self._failed(part[0]["_error"])
            for message in part:
                del message["_error"]
            self._producer.poll(0.05 if part else 0)

    def _flush(self) -> None:
        if self._producer.flush(COMMIT_SECONDS_MAX):
            raise MachineError(f"view {self._view!r}: the log does not take its records")

    def _reached(self) -> dict[int, int]:
        """Up to where the records of the open transaction reach, in the partitions that have any."""
        ends = self._client.open_ends(self._topic, self.partitions)
        return {partition: end for partition, end in ends.items() if end > self._ends[partition]}

    def _commit(self) -> None:
        limit = self._clock.monotonic() + COMMIT_SECONDS_MAX
        while True:
            try:
                self._producer.commit_transaction(limit - self._clock.monotonic())
            except KafkaException as error:
                reason = error.args[0]
                if not reason.retriable() or self._clock.monotonic() >= limit:
                    raise self._failed(reason) from error
                self._pause.wait(0.1)
            else:
                return

    def _abort(self) -> None:
        """Gives up the transaction, if the log can be told; the next driver's start does it otherwise."""
        try:
            self._producer.abort_transaction(5)
        except KafkaException:
            return

    def _call(self, call: Any) -> None:
        try:
            call()
        except KafkaException as error:
            raise self._failed(error.args[0]) from error

    def _failed(self, reason: KafkaError) -> HeadwaterError:
        if reason.name() in FENCED:
            return Fenced(f"view {self._view!r} is run by another driver now", hint="this one ends")
        return MachineError(f"view {self._view!r} cannot publish", got=reason.str())
