"""Progress: what each batch of a view has made, in ``<view>.progress``, in one transaction with the view's records.

A batch has happened when its result is there, and then everything of it is: its records, its state files, its positions. There
is nothing in between to be repaired. One producer writes for a run of a view; a second one for the same run fences the first. The first result of a view, which no
run has made anything of yet, is written under a name that all its runs share: of several drivers that start at once, each with a run of its own, the last one is left.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec
import pyarrow as pa

from headwater.bulk.chosen import transactions
from headwater.clock import Clock
from headwater.errors import Fenced, MachineError, StorageError, UsageError
from headwater.pipeline import failed, late
from headwater.pipeline.failed import FailedRecord, Failure
from headwater.pipeline.late import LateRecord
from headwater.pipeline.points import passes
from headwater.pipeline.topics import Positions, Topics
from headwater.result import RESULTS_KEPT, Result, newest, of_run, shadow_topic, topic

__all__ = ["Columns", "Progress", "columns"]

Columns = tuple[pa.Array, pa.Array]
"""The keys and the values of some records; a null deletes."""

FIRST = "first"
"""Stands for the run in the name under which the first result of a view is written."""
CHUNK_RECORDS = 10_000
ABORT_S = 5.0


def columns(records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[Columns]:
    """Records as columns."""
    found = iter(records)
    while part := list(islice(found, CHUNK_RECORDS)):
        keys, values = zip(*part, strict=True)
        yield pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())


class Progress:
    """The results of one run of a view, and the only way to add one. Belongs to the query's thread."""

    def __init__(self, topics: Topics, view: str, run: str, clock: Clock, *, shadow: bool = False) -> None:
        self.run = run
        self.shadow = shadow
        """Whether it catches up beside the run that readers see, on a topic of its own."""
        self._view = view
        self._topic = shadow_topic(view, run) if shadow else view
        self._client = topics
        self._clock = clock
        self._own = transactions(topics.log, f"headwater/{view}/{run}", clock=clock)
        self._producer = self._own
        """The one that writes: the run's own, or until a view has its first result, the one of the view."""
        self.results: dict[int, Result] = {}
        self.partitions = 0

    @property
    def last(self) -> Result | None:
        return self.results[max(self.results)] if self.results else None

    def open(self, reached: Callable[[], int]) -> None:
        """Takes over the run and reads its results; ``reached`` says the checkpoint's last complete batch, or -1. It is asked once nobody else can add results.

        Raises UsageError, saying what disagrees, when log and checkpoint cannot be of one history, and Fenced when a driver that was started later has made results since.
        """
        seen = self.take_over()
        try:
            self._check(self.last if self.shadow else seen, reached())
        except UsageError as error:
            self._check_owner(seen, error)
            raise

    def _check_owner(self, seen: Result | None, error: UsageError) -> None:
        """Nobody else could add results when they were read. Are there others now, a successor makes them, and the checkpoint is of its time."""
        found = {result.batch: result for result in of_run(self._client, self._view, self.run)}
        if newest(self._client, self._view) != seen or (self.shadow and found != self.results):
            raise Fenced(f"view {self._view!r} is run by another driver now", hint="this one ends") from error

    def take_over(self) -> Result | None:
        """Ends whoever else publishes for the run; the newest result that readers see, of whatever run."""
        with self._publishing():
            self._own.claim()
        self.partitions = self._client.partitions().get(self._topic, 0)
        seen = newest(self._client, self._view)
        if seen is None and not self.shadow:
            seen = self._claim_first()
        mine = self.shadow or (seen is not None and seen.run == self.run)
        found = of_run(self._client, self._view, self.run) if mine else ()
        self.results = {result.batch: result for result in found}
        return seen

    def _claim_first(self) -> Result | None:
        """Ends whoever else is about to make the first result of the view; the newest one, if there is one by now."""
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
        if batch > max(reached, 0) and batch - 1 not in self.results:
            raise UsageError(
                f"{what}: results are missing",
                got=f"batch {batch}, which Spark has not closed, without the one before it",
                expected=f"batch {batch - 1} in {topic(self._view)} too: it says from which state {batch} is run once more",
                hint=hint,
            )
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
        records: Iterable[Columns],
        too_late: Iterable[LateRecord] = (),
        failures: Iterable[tuple[bytes, bytes | None]] = (),
    ) -> Result:
        """Makes a batch happen: its records and its result, all or nothing. Raises Fenced or MachineError."""
        with self._transaction():
            passes("transaction begun")
            try:
                changed = self._produce(records)
            except StorageError:  # Fenced, if a successor has removed the batch's files as strays
                self._produce_result(result)
                self._producer.flush()
                raise
            left_out = ((record.key.encode(), msgspec.json.encode(record)) for record in too_late)
            for name, records_of in (
                (late.topic(self._topic), left_out),
                (failed.topic(self._topic), failures),
            ):
                for keys, values in columns(records_of):
                    self._producer.send(name, keys, values)
            reached = self._producer.flush()
            passes("all is produced")
            outputs = {partition: end for (name, partition), end in reached.items() if name == self._topic}
            known = self.last.outputs if self.last else {}
            result = msgspec.structs.replace(result, changed=changed, outputs=known | outputs)
            self._produce_result(result)
        self._end_first()
        self.results[result.batch] = result
        self.results.pop(result.batch - RESULTS_KEPT, None)
        return result

    def with_values(self, failures: list[Failure]) -> list[FailedRecord]:
        """Records that the query of a batch cannot take, ready to be published with it."""
        if failures:
            self._client.ensure([failed.topic(self._topic)], self.partitions, compact=True)
        return list(failed.records(self._client, failures, self.run))

    def revise(self, revised: Iterable[Result]) -> None:
        """Puts results in the place of those of the same batches, all or none; what these have published stays."""
        with self._transaction():
            for result in revised:
                self._produce_result(result)

    def close(self) -> None:
        """Ends the producers; the results stay readable."""
        self._end_first()
        self._own.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is produced inside happens, or nothing. Raises Fenced or MachineError."""
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
        """What the log says, in the words of a view."""
        try:
            yield
        except Fenced as error:
            raise Fenced(f"view {self._view!r} is run by another driver now", hint="this one ends") from error
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
