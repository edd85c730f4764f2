"""Publish: the last step of every micro-batch view. Its rows become change records by key, each batch exactly once.

    tasks    own the keys of a shard, compare each row with the one published last, and write what differs as the
             shard's next state file: so the file holds just the records that the batch publishes
    driver   publishes these files and the batch's result in one transaction (``progress.py``)

Tasks publish nothing, so a task may fail, be repeated or run twice: only files that the result names count. A batch that has
its result already is run and thrown away, since Spark's own state must move on.
"""

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from headwater.access import Log, access
from headwater.clock import Clock
from headwater.errors import MachineError, UsageError
from headwater.graph import View
from headwater.pipeline import source, wire
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.groups import Groups
from headwater.pipeline.invalid import InvalidRecords
from headwater.pipeline.operator import OBSERVED, PLAN, Plan, written
from headwater.pipeline.points import passes
from headwater.pipeline.progress import Progress
from headwater.pipeline.state import Place, Shard, contents
from headwater.pipeline.topics import Topics
from headwater.result import Chain, Chains, Result, files_of

__all__ = ["Publisher", "Stopping", "sink_options"]

START_SECONDS_MAX = 60.0
STATE = "publish"
"""The name of this step's state among those of the view's operators."""
VERSIONS_KEPT = 8
"""State files of so many results are kept, so that a batch can be repeated."""
REVISION = b',"_revision":'
OUTCOME = "shard int, chain binary"

logger = logging.getLogger(__name__)


class Stopping(Exception):  # noqa: N818 (not an error: it ends a query between two batches)
    """Raised instead of taking another batch once the runner is stopping."""


def sink_options(log: Log, view: View) -> dict[str, str]:
    """Options of Spark's Kafka sink for a view's topic: how real-time views publish."""
    return {**access(log).spark(), "topic": view.name}


class Publisher:
    """Publishes the batches of one view, in order; called by its query's thread.

    After each batch its records and its result are in the log, the invalid records it met are published and its positions committed.
    """

    def __init__(
        self,
        view: View,
        checkpoint: Checkpoint,
        topics: Topics,
        groups: Groups,
        invalid: InvalidRecords,
        *,
        operators: Sequence[str],
        shards: int,
        copies: Path,
        clock: Clock,
    ) -> None:
        self.stopping = threading.Event()
        self.failure: Exception | None = None
        self._view = view
        self._checkpoint = checkpoint
        self._groups = groups
        self._invalid = invalid
        self._run = checkpoint.run()
        self._clock = clock
        self._progress = Progress(topics, view.name, self._run, clock)
        self._places = {
            name: Place(str(checkpoint.folder / "shards" / name), str(copies / self._run / name))
            for name in (STATE, *operators)
        }
        self._progress.open(checkpoint.last())
        self._chains: Chains = {name: [()] * shards for name in self._places}
        if self._progress.last is not None:
            self._chains = self._known(self._progress.last, shards)
        self._needed: deque[set[tuple[str, str]]] = deque(maxlen=VERSIONS_KEPT)
        self._forget_strays()
        self._sql: tuple[str, str] | None = None
        self._started = threading.Event()
        self._query: StreamingQuery | None = None

    def attach(self, query: StreamingQuery) -> None:
        """Gives the publisher its query; its first batch waits for this."""
        self._query = query
        self._started.set()

    def close(self) -> None:
        self._progress.close()

    def __call__(self, rows: DataFrame, batch: int) -> None:
        if self.stopping.is_set() or not self._started.wait(START_SECONDS_MAX):
            raise Stopping
        try:
            self._take(rows, batch)
        except Exception as error:
            self.failure = error  # Spark only hands on a text with both sides' stack traces
            raise
        self._groups.commit(self._view.name, self._checkpoint.reached(batch))

    def _take(self, rows: DataFrame, batch: int) -> None:
        passes("batch begins")
        if self._progress.repeated(batch, self._checkpoint.ends(batch)):
            logger.info("view %s: batch %d is published already", self._view.name, batch)
            before = self._progress.results.get(batch - 1)
            self._tell(
                rows, batch, before.state if before else {n: [()] * len(c) for n, c in self._chains.items()}
            )
            rows.write.format("noop").mode("overwrite").save()
            return
        self._tell(rows, batch, self._chains)
        chains = self._compute(rows, batch)
        passes("batch was computed")
        counts = self._invalid_counts()
        ends = self._checkpoint.ends(batch)
        if any(counts.values()):
            self._invalid.publish(rows.sparkSession, self._view, counts, self._checkpoint.starts(batch), ends)
        result = Result(
            run=self._run,
            batch=batch,
            inputs=ends,
            partitions=self._progress.partitions,
            state=chains,
            at_ms=self._clock.now_ms(),
        )
        self._progress.publish(result, self._changes(chains[STATE], batch))
        self._chains = chains
        self._forget_old()
        passes("batch ends")

    def _known(self, last: Result, shards: int) -> Chains:
        """The chains of the last result, if they are of the same operators and shards."""
        had = {name: len(chains) for name, chains in last.state.items()}
        wants = {name: had[STATE] if name == STATE else shards for name in self._places}
        if had != wants:
            raise UsageError(
                f"view {self._view.name!r} cannot go on: its operators or shards have changed",
                got=str(wants),
                expected=str(had),
                hint=f"make it anew from the log: headwater view reset {self._view.name}",
            )
        return last.state

    def _tell(self, rows: DataFrame, batch: int, chains: Chains) -> None:
        """Tells the tasks of the batch where their state is; the frame has not run yet."""
        plan = Plan(batch, self._places, chains)
        rows.sparkSession.sparkContext.setLocalProperty(PLAN, msgspec.json.encode(plan).decode())

    def _invalid_counts(self) -> dict[str, int]:
        return {
            name: int(row.getLong(0))
            for name, row in _observed(self._query)
            if name.startswith(source.INVALID)
        }

    def _compute(self, rows: DataFrame, batch: int) -> Chains:
        """Runs the batch; the chains of all operators and shards after it."""
        if self._sql is None:
            self._sql = wire.expressions(rows.schema, self._view)
        key, value = self._sql
        published = self._chains[STATE]
        stage = keyed_stage(self._places[STATE], published, batch)
        records = rows.selectExpr(f"{key} AS key", f"{value} AS value").repartition(len(published), "key")
        outcomes = records.mapInArrow(stage, OUTCOME).collect()
        chains = {row.shard: msgspec.msgpack.decode(row.chain, type=Chain) for row in outcomes}
        if sorted(chains) != list(range(len(published))):
            got = f"shards {sorted(chains)}"
            raise MachineError(f"view {self._view.name!r}: not every shard has answered", got=got)
        after = {STATE: [chains[number] for number in range(len(chains))]}
        for name, row in _observed(self._query):
            if name.startswith(OBSERVED):
                operator = name.removeprefix(f"{OBSERVED} ").rpartition("#")[0]
                after[operator] = written(list(row.getList(0)), self._chains[operator])
        return {name: after[name] for name in self._chains}

    def _changes(self, chains: list[Chain], batch: int) -> Iterator[tuple[bytes, bytes | None]]:
        for chain in chains:
            if chain and chain[-1].version == batch:
                yield from contents(self._places[STATE], chain[-1])

    def _forget_old(self) -> None:
        """Removes the state files that no result of the last few needs."""
        full = len(self._needed) == VERSIONS_KEPT
        oldest = self._needed[0] if full else set()
        self._needed.append(files_of(self._chains))
        self._remove(oldest - set().union(*self._needed))

    def _forget_strays(self) -> None:
        """At the start: removes what attempts have left that came to nothing."""
        results = [self._progress.results[batch] for batch in sorted(self._progress.results)]
        self._needed.extend(files_of(result.state) for result in results)
        found = set()
        for operator, place in self._places.items():
            system, folder = fs.FileSystem.from_uri(place.files)
            infos = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
            found |= {(operator, info.base_name) for info in infos}
        self._remove(found - set().union(*self._needed))

    def _remove(self, files: set[tuple[str, str]]) -> None:
        for operator, name in files:
            system, folder = fs.FileSystem.from_uri(self._places[operator].files)
            system.delete_file(f"{folder}/{name}")


def keyed_stage(
    place: Place, chains: list[Chain], batch: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task runs over the rows of its shard, as key and value; a null value takes the key out of the view."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number = TaskContext.get().partitionId()
        shard = Shard(place, number, chains[number])
        changes = differing(shard, _sorted(batches))
        chain = shard.extended(batch, uuid.uuid4().hex[:12], changes)
        packed = msgspec.msgpack.encode(chain)
        yield pa.record_batch([pa.array([number], pa.int32()), pa.array([packed])], names=["shard", "chain"])

    return run


def _sorted(batches: Iterator[pa.RecordBatch]) -> dict[bytes, bytes | None]:
    """The rows by key. An order of their own makes every attempt write the same; of two rows with a key the greater one stays."""
    found = list(batches)
    if not found:
        return {}
    table = pa.Table.from_batches(found)
    order = pc.sort_indices(table, [("key", "ascending"), ("value", "ascending")])
    keys, values = (column.cast(pa.binary()).take(order).to_pylist() for column in table.columns)
    return dict(zip(keys, values, strict=True))


def differing(shard: Shard, rows: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    """The rows that differ from those published last, each with the revision that it gets."""
    published = shard.get(list(rows))
    changes: dict[bytes, bytes | None] = {}
    for key, value in rows.items():
        last = published.get(key)
        if last is None:
            if value is not None:
                changes[key] = b"%b%b1}" % (value[:-1], REVISION)
            continue
        cut = last.rindex(REVISION)
        if value is None:
            changes[key] = None
        elif last[:cut] != value[:-1]:
            changes[key] = b"%b%b%d}" % (value[:-1], REVISION, int(last[cut + len(REVISION) : -1]) + 1)
    return changes


def _observed(query: Any) -> Iterator[tuple[str, Any]]:
    """What ``observe`` has seen in the batch that has just run, name and row: progress events come too late for that."""
    pairs = query._jsq.streamingQuery().lastExecution().observedMetrics().iterator()  # noqa: SLF001
    while pairs.hasNext():
        pair = pairs.next()
        yield pair._1(), pair._2()  # noqa: SLF001
