"""Batch result: the result of a batch, from what its shards have written and what was observed in it."""

import logging
from collections.abc import Sequence

from headwater.formats import RESULT
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.definition import definition
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.engine import Computed
from headwater.pipeline.engine.observed import Observed
from headwater.pipeline.operator.building import OBSERVED
from headwater.pipeline.operator.messages import Written, written
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.run.view_time import ViewTime
from headwater.pipeline.state.layouts import format_of
from headwater.pipeline.topics import Positions
from headwater.pipeline.wire.wire import INVALID
from headwater.result import TICKS, Chain, Edit, Result, Taken

__all__ = ["Offsets", "ResultBuilder", "no_result"]

Offsets = dict[str, dict[int, list[int]]]
"""By topic and partition."""

EDITS_KEPT = 20

logger = logging.getLogger(__name__)


def no_result(prepared: Prepared) -> Result:
    """Takes the place of the last result before the first batch: no state, and nothing read."""
    state: dict[str, list[Chain]] = {name: [()] * prepared.shards for name in prepared.timed}
    return Result(run="", batch=-1, inputs={}, partitions=0, state=state)


class ResultBuilder:
    """Makes the result of each batch of one run. Belongs to the query's thread."""

    def __init__(
        self, prepared: Prepared, checkpoint: Checkpoint, results: RunResults, view_time: ViewTime
    ) -> None:
        self._prepared = prepared
        self._view = prepared.view
        self._checkpoint = checkpoint
        self._results = results
        self._time = view_time

    def begun(self) -> Positions:
        """From where the run reads."""
        return {topic: starts for topic, starts in self._checkpoint.begun().items() if topic != TICKS}

    def build(
        self,
        batch: int,
        before: Result,
        computed: Computed,
        *,
        watermark: int,
        now_ms: int,
        failed: Offsets,
    ) -> Result:
        """The result of a batch that has run after ``before``; the transaction adds where its records end."""
        seen, shards = computed.seen, self._written(computed)
        opens = self._opens(before, shards)
        complete = self._time.complete(before, watermark, opens.get(PUBLISH, ()))
        ends = (end for part in shards[PUBLISH].values() for end in part.ends)
        return Result(
            format=self._format(before, failed),
            run=self._results.run,
            batch=batch,
            generation=before.generation,
            inputs=self._checkpoint.reached(batch),
            begun=before.begun or self.begun(),
            partitions=self._results.partitions,
            state=_chains(before, shards),
            layouts=self._prepared.layouts,
            shadow=self._results.shadow,
            definition=self._prepared.definition.digest,
            parts=self._prepared.definition.parts,
            edits=self._edits(before, batch),
            columns=self._prepared.columns,
            watermark=watermark if self._prepared.inputs else None,
            complete=complete,
            views=self._prepared.views,
            now_us=now_ms * 1000,
            heard=self._time.heard,
            opens=opens,
            ends=self._time.ends(before.ends, ends, complete),
            late=before.late + sum(heard.late for heard in seen.heard),
            taken=self._taken(before, seen, failed),
            failed=failed,
            stragglers=seen.stragglers() if self._view.late.horizon_us else {},
            at_ms=now_ms,
        )

    def _written(self, computed: Computed) -> dict[str, dict[int, Written]]:
        """By operator, what its shards have written."""
        count = self._prepared.shards
        shards = {name: written(row["files"], count) for name, row in computed.seen.of(OBSERVED)}
        shards[PUBLISH] = written(computed.notes, count)
        return shards

    def _opens(self, before: Result, shards: dict[str, dict[int, Written]]) -> dict[str, list[int | None]]:
        """By operator with time-outs, the earliest of each shard; those that were not asked keep theirs."""
        opens = dict(before.opens)
        for name, parts in shards.items():
            if self._prepared.timed[name]:
                open_times: Sequence[int | None] = before.opens.get(name) or [None] * len(before.state[name])
                opens[name] = [
                    parts[number].open if number in parts else open_us
                    for number, open_us in enumerate(open_times)
                ]
        return opens

    def _format(self, before: Result, failed: Offsets) -> int:
        """The oldest format that can express the result, so that earlier versions refuse only what they would
        misread."""
        failed_before = any(taken.failed for taken in before.taken.values())
        return RESULT.newest if failed or failed_before else format_of(self._prepared.layouts.values())

    def _taken(self, before: Result, seen: Observed, failed: Offsets) -> dict[str, Taken]:
        """What has become of the records of each topic so far.

        Of a stream without records Spark may have observed nothing.
        """
        taken, split = dict(before.taken), {heard.stream: (heard.kept, heard.late) for heard in seen.heard}
        for name, row in seen.of(INVALID):
            topic = self._prepared.sources.get(name)
            if topic is not None:
                begun = Taken(0, 0, 0, before.inputs.get(topic, {}))
                invalid, valid = row["records"], row["valid"]
                taken[topic] = taken.get(topic, begun).plus(*split.get(name, (valid, 0)), invalid)
        for topic in failed.keys() & set(self._prepared.sources.values()):
            begun = Taken(0, 0, 0, before.inputs.get(topic, {}))
            taken[topic] = taken.get(topic, begun).plus(0, 0, 0, sum(map(len, failed[topic].values())))
        return taken

    def _edits(self, before: Result, batch: int) -> tuple[Edit, ...]:
        """The changes of the view so far that needed no rebuild, including this batch's."""
        digest = self._prepared.definition.digest
        if not before.definition or not definition.edited(before.definition, digest):
            return before.edits
        logger.info("view %s has changed; it continues from batch %d with its state", self._view.name, batch)
        return (*before.edits[1 - EDITS_KEPT :], Edit(digest, batch, before.inputs))


def _chains(before: Result, shards: dict[str, dict[int, Written]]) -> dict[str, list[Chain]]:
    """By operator, the chain of each shard; one without rows keeps its chain."""
    return dict(before.state) | {
        name: [
            parts[number].chain if number in parts else chain
            for number, chain in enumerate(before.state[name])
        ]
        for name, parts in shards.items()
    }
