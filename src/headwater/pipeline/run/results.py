"""Results: what each batch has made, in ``<view>.progress``, in one transaction with the view's records.

A batch has happened if its result is there, and then all of it is: its records, its state files, its
positions. There is no state between that would need repair. One producer writes for a run of a view; a second
one for the same run fences the first. The first result of a view is written under a name that all of its runs
share: of several drivers that start at once, each with its own run, only the last one remains.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec
import pyarrow as pa

from headwater.client.bulk.choose import transactions
from headwater.clock import Clock
from headwater.errors import FencedError, MachineError, StorageError, UsageError
from headwater.follow.results import newest, of_run
from headwater.pipeline.engine.engine import Failure
from headwater.pipeline.kill_points import passes
from headwater.pipeline.left_out import failed_records, late_records
from headwater.pipeline.left_out.failed_records import FailedRecord
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.left_out.side_records import encode
from headwater.pipeline.run.start import History, Start, start_of
from headwater.pipeline.topics import Positions, Topics
from headwater.result import RESULTS_KEPT, Result, shadow_topic, topic

__all__ = ["Columns", "RunResults", "columns"]

Columns = tuple[pa.Array, pa.Array]
"""The keys and the values of some records; a null value is a tombstone."""

FIRST = "first"
"""Takes the place of the run in the name under which the first result of a view is written."""
CHUNK_RECORDS = 10_000
ABORT_S = 5.0


def columns(records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[Columns]:
    """Records as columns."""
    rest = iter(records)
    while part := list(islice(rest, CHUNK_RECORDS)):
        keys, values = zip(*part, strict=True)
        yield pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())


class RunResults:
    """The results of one run of a view, and the only way to add one. Belongs to the query's thread."""

    def __init__(self, topics: Topics, view: str, run: str, clock: Clock, *, shadow: bool = False) -> None:
        self.run = run
        self.shadow = shadow
        """Whether the run is still catching up: it publishes to its own topic and has no readers."""
        self._view = view
        self._topic = shadow_topic(view, run) if shadow else view
        self._client = topics
        self._clock = clock
        self._own = transactions(topics.log, f"headwater/{view}/{run}", clock=clock)
        self._producer = self._own
        """The one that writes: the run's own, or until a view has its first result, that of the view."""
        self.by_batch: dict[int, Result] = {}
        self.partitions = 0

    @property
    def last(self) -> Result | None:
        return self.by_batch[max(self.by_batch)] if self.by_batch else None

    def open(self, closed: Callable[[], int]) -> Start:
        """Takes over the run, reads its results, and decides how it starts.

        ``closed`` gives the last batch that the checkpoint has closed, or -1. It is called once no other
        driver can add results. Raises UsageError, naming the contradiction, if log and checkpoint cannot be
        of one history, and FencedError if a driver that was started later has added results.
        """
        seen = self.take_over()
        shown = self.last if self.shadow else seen
        try:
            return start_of(
                History(self._view, self.run, closed(), shown, self.by_batch.keys(), self.partitions)
            )
        except UsageError as error:
            self._check_owner(seen, error)
            raise

    def _check_owner(self, seen: Result | None, error: UsageError) -> None:
        """Raises FencedError if there are other results now than when no other driver could add any.

        Then a successor adds them, and the checkpoint is ahead because of it.
        """
        results = {result.batch: result for result in of_run(self._client, self._view, self.run)}
        if newest(self._client, self._view) != seen or (self.shadow and results != self.by_batch):
            raise FencedError(
                f"view {self._view!r} is run by another driver now", hint="this one ends"
            ) from error

    def take_over(self) -> Result | None:
        """Fences every other driver of the run.

        Returns the newest result that readers see, of whichever run.
        """
        with self._publishing():
            self._own.claim()
        self.partitions = self._client.partitions().get(self._topic, 0)
        seen = newest(self._client, self._view)
        if seen is None and not self.shadow:
            seen = self._claim_first()
        mine = self.shadow or (seen is not None and seen.run == self.run)
        results = of_run(self._client, self._view, self.run) if mine else ()
        self.by_batch = {result.batch: result for result in results}
        return seen

    def _claim_first(self) -> Result | None:
        """Fences every other driver that is about to publish the view's first result.

        Returns the newest result, if there is one by now.
        """
        self._end_first()
        self._producer = transactions(self._client.log, f"headwater/{self._view}/{FIRST}", clock=self._clock)
        with self._publishing():
            self._producer.claim()
        seen = newest(self._client, self._view)
        if seen is not None:
            self._end_first()
        return seen

    def _end_first(self) -> None:
        if self._producer is not self._own:
            self._producer.close()
            self._producer = self._own

    def repeated(self, batch: int, inputs: Positions) -> bool:
        """Whether a batch has its result already. Raises UsageError if that result is of other records."""
        result = self.by_batch.get(batch)
        if result is None:
            return False
        if result.inputs != inputs:
            raise UsageError(
                f"view {self._view!r} cannot continue: batch {batch} was made from other records",
                got=f"input up to {inputs}",
                expected=str(result.inputs),
                hint=f"the checkpoint is not the one that made it; headwater view reset {self._view}",
            )
        return True

    def publish(
        self,
        result: Result,
        records: Iterable[Columns],
        too_late: Iterable[LateRecord] = (),
        failures: Iterable[tuple[bytes, bytes | None]] = (),
    ) -> Result:
        """Makes a batch happen: its records and its result, all or none.

        Raises FencedError or MachineError.
        """
        with self._transaction():
            passes("transaction begun")
            try:
                changed = self._produce(records)
            except StorageError:  # FencedError, if a successor has removed the batch's files as strays
                self._produce_result(result)
                self._producer.flush()
                raise
            for name, side_records in (
                (late_records.topic(self._topic), map(encode, too_late)),
                (failed_records.topic(self._topic), failures),
            ):
                for keys, values in columns(side_records):
                    self._producer.send(name, keys, values)
            reached = self._producer.flush()
            passes("all is produced")
            outputs = {partition: end for (name, partition), end in reached.items() if name == self._topic}
            before = self.last.outputs if self.last else {}
            result = msgspec.structs.replace(result, changed=changed, outputs=before | outputs)
            self._produce_result(result)
        self._end_first()
        self.by_batch[result.batch] = result
        self.by_batch.pop(result.batch - RESULTS_KEPT, None)
        return result

    def read_failed(self, failures: list[Failure], definition: str) -> list[FailedRecord]:
        """The records on which the query of a batch fails, with their values.

        ``definition``: the digest of the query.
        """
        if failures:
            self._client.ensure([failed_records.topic(self._topic)], self.partitions, compact=True)
        return list(failed_records.records(self._client, failures, self.run, definition))

    def published_failures(self) -> Iterator[Failure]:
        """The records on which the query of this run has failed, since it began."""
        for record in failed_records.published(self._client, self._topic):
            if record.run == self.run:
                yield record.failure

    def revise(self, revised: Iterable[Result]) -> None:
        """Replaces the results of some batches, all or none; what they have published stays."""
        listed = list(revised)
        with self._transaction():
            for result in listed:
                self._produce_result(result)
        self.by_batch |= {result.batch: result for result in listed if result.batch in self.by_batch}

    def close(self) -> None:
        """Ends the producers; the results stay readable."""
        self._end_first()
        self._own.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is produced inside happens, or nothing. Raises FencedError or MachineError."""
        with self._publishing():
            self._producer.begin(topic(self._view))
            try:
                yield
                passes("before commit")
                self._producer.commit()
            except BaseException:
                self._producer.abort(ABORT_S)
                raise
        passes("after commit")

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Errors of the log, as errors of the view."""
        try:
            yield
        except FencedError as error:
            raise FencedError(
                f"view {self._view!r} is run by another driver now", hint="this one ends"
            ) from error
        except MachineError as error:
            raise MachineError(f"view {self._view!r} cannot publish", got=str(error)) from error

    def _produce(self, records: Iterable[Columns]) -> int:
        changed = 0
        for keys, values in records:
            if not changed and len(keys) > 1:
                half = len(keys) // 2
                self._producer.send(self._topic, keys[:half], values[:half])
                passes("half is produced", before=self._producer.flush)
                self._producer.send(self._topic, keys[half:], values[half:])
            else:
                self._producer.send(self._topic, keys, values)
            changed += len(keys)
        return changed

    def _produce_result(self, result: Result) -> None:
        key = f"{result.run}#{result.batch % RESULTS_KEPT}"
        self._producer.send(topic(self._view), [key.encode()], [msgspec.json.encode(result)])
