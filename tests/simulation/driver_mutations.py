"""Defects of the driver, put in one at a time: lives of views must find each of them.

Some were there and are mended, some are what the driver takes care to avoid. ``found_driver.json`` has the life that found each;
``python tests/simulation/hunt_driver.py`` looks for them again.
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from headwater.operate.views import rebuild
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.checkpoint_sync import Durable
from headwater.pipeline.left_out import late_records
from headwater.pipeline.left_out.side_records import encode
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run import state_files
from headwater.pipeline.run.completion import Completion
from headwater.pipeline.run.publisher import Publisher
from headwater.pipeline.run.results import RunResults, columns
from headwater.pipeline.run.view_time import ViewTime
from headwater.pipeline.time.attention import Attention, When
from headwater.pipeline.time.input_times import InputTimes
from headwater.result import TICKS

__all__ = ["DRIVER_MUTATIONS", "STEPS", "mutated"]


def _when(self: Attention, planned_ms: int, since_ms: int) -> When:
    looked = self.look()
    return When(looked, looked)


def _publish_result_after(
    self: RunResults, result: Any, records: Any, too_late: Any = (), failures: Any = ()
) -> Any:
    """The rows are committed, and then the result."""
    with self._transaction():
        self._produce(records)
        for keys, values in columns(map(encode, too_late)):
            self._producer.send(late_records.topic(self._topic), keys, values)
        reached = self._producer.flush()
    outputs = {partition: end for (name, partition), end in reached.items() if name == self._topic}
    known = self.last.outputs if self.last else {}
    result = msgspec.structs.replace(result, outputs=known | outputs)
    with self._transaction():
        self._produce_result(result)
    self.by_batch[result.batch] = result
    return result


published = RunResults.publish


def _publish_late_first(
    self: RunResults, result: Any, records: Any, too_late: Any = (), failures: Any = ()
) -> Any:
    """Late records have a transaction of their own."""
    found = list(too_late)
    if found:
        with self._transaction():
            for keys, values in columns(map(encode, found)):
                self._producer.send(late_records.topic(self._topic), keys, values)
    return published(self, result, records)


def _plan_all_silent(self: InputTimes, stretch: Any, planned: When) -> int:
    for place in list(self.known):
        self.silence(place, planned.earliest_ms)
    return planned_by(self, stretch, planned)


planned_by = InputTimes.plan


def _later_unasked(self: Completion, last: Any) -> Any:
    """The log is not asked: what was read counts as all that there is."""
    ends = {topic: offsets for topic, offsets in last.inputs.items() if topic != TICKS}
    with mock.patch.object(Completion, "_ends", return_value=ends):
        return later(self, last)


def _later_batch(self: Completion, last: Any) -> Any:
    """The time of the batch moves, too."""
    made = later(self, last)
    return made and msgspec.structs.replace(made, watermark=made.reached)


later = Completion.later


def _begin_without_reached(self: ViewTime, prepared: Any, last: Any, *args: Any) -> None:
    begun(self, prepared, msgspec.structs.replace(last, reached=None), *args)


begun = ViewTime.__init__


def _swap_from_before(self: rebuild.Rebuild, run: str, say: Any) -> Any:
    """What the old run has published between the last look and the fence is not looked at."""
    old = self._visible()
    progress = RunResults(self._topics, self._view.name, old.run, self._clock)
    try:
        progress.take_over()
        after = self._last(run)
        rows = rebuild.differences(self._published(old), self._published(after))
        return progress.publish(self._visible_result(old, after), columns(rows), self._left_out(run))
    finally:
        progress.close()


def _complete(self: ViewTime, before: Any, watermark: int, _: Any) -> int | None:
    if self._prepared.inputs:
        return self.input_watermarks(before).get(PUBLISH, watermark)
    return None


def _move_ahead(self: Publisher) -> None:
    if self._query is not None and self._last.watermark is not None:
        self._engine.forget(self._query, self._time.inputs.ahead() + 10_000_000)


placed = state_files.places


def _places(checkpoint: Checkpoint, copies: Path, operators: Any, generation: str) -> Any:
    return placed(checkpoint, copies, operators, "")


def _nothing(*_: object, **__: object) -> None:
    return None


def _none(*_: object) -> int:
    return 0


def _false(*_: object) -> bool:
    return False


def _entries(_new: Any, shard: Any, _old: Any) -> Iterator[tuple[bytes, bytes]]:
    return shard.items()


DRIVER_MUTATIONS: dict[str, list[tuple[object, str, object]]] = {
    "a slow batch makes inputs silent": [(Attention, "when", _when)],
    "inputs with unread records are silent": [(InputTimes, "plan", _plan_all_silent)],
    "a result has a transaction of its own": [(RunResults, "publish", _publish_result_after)],
    "late records have a transaction of their own": [(RunResults, "publish", _publish_late_first)],
    "a repeated batch is published again": [(RunResults, "repeated", _false)],
    "a rebuild swaps before it has caught up": [(rebuild, "records_between", _none)],
    "a rebuild takes the rows from before the fence": [(rebuild.Rebuild, "_swap", _swap_from_before)],
    "a swap begins revisions again": [(rebuild, "taken_over", _entries)],
    "a swap leaves copies of state as they are": [
        (state_files, "places", _places),
        (rebuild, "places", _places),
    ],
    "state files go one version too early": [(state_files, "VERSIONS_KEPT", 1)],
    "the checkpoint is not synced before the transaction": [(Durable, "sync", _nothing)],
    "the engine forgets by the watermark to come": [(Publisher, "_move_spark", _move_ahead)],
    "drivers that start at once do not fence each other": [(RunResults, "_claim_first", _nothing)],
    "rows that wait for a tick count as published": [(ViewTime, "complete", _complete)],
    "silence between batches is not asked of the log": [(Completion, "later", _later_unasked)],
    "silence between batches moves the time of the last one": [(Completion, "later", _later_batch)],
    "a start forgets how far silence has moved time": [(ViewTime, "__init__", _begin_without_reached)],
}
"""What of the driver is replaced by what."""
STEPS: dict[str, tuple[str, ...]] = {
    "a slow batch makes inputs silent": ("slow_engine",),
    "inputs with unread records are silent": ("slow_engine", "quiet"),
    "a result has a transaction of its own": ("killed_at_a_point",),
    "late records have a transaction of their own": ("killed_at_a_point",),
    "a repeated batch is published again": ("killed_at_a_point",),
    "a rebuild swaps before it has caught up": ("rebuild", "rebuild_killed"),
    "a rebuild takes the rows from before the fence": ("rebuild",),
    "a swap begins revisions again": ("rebuild",),
    "a swap leaves copies of state as they are": ("rebuild", "back"),
    "state files go one version too early": ("work",),
    "the checkpoint is not synced before the transaction": ("power_cut",),
    "the engine forgets by the watermark to come": ("work", "quiet"),
    "drivers that start at once do not fence each other": ("twins",),
    "rows that wait for a tick count as published": ("work",),
    "silence between batches is not asked of the log": ("slow_engine", "quiet"),
    "silence between batches moves the time of the last one": ("quiet",),
    "a start forgets how far silence has moved time": ("quiet", "killed"),
}
"""The steps that may bring each of them out."""


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """The driver with one defect."""
    with ExitStack() as stack:
        for where, attribute, wrong in DRIVER_MUTATIONS[name]:
            stack.enter_context(mock.patch.object(where, attribute, wrong))
        yield
