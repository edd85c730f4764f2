"""Completion: rows of a view become complete by the clock, while nothing comes and no batch runs.

When the watermark passes the end of a window although all inputs are silent, the result of the last batch is
published once more, with a later ``complete``. That costs one small transaction and no batch of Spark's. The
time of the batch itself stays in the result, since it may have to be repeated.

The log proves the silence as it does for an empty batch: asked after the driver's last look, all inputs end
where the view has read to. So the watermark may pass, and whatever comes later is judged by it.
"""

import contextlib

import msgspec

from headwater.errors import MachineError
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.services import Services
from headwater.pipeline.run.view_time import ViewTime
from headwater.pipeline.time.attention import When
from headwater.pipeline.time.input_times import Stretch
from headwater.pipeline.topics import Positions
from headwater.result import TICKS, Result

__all__ = ["Completion"]

BETWEEN_S = 1.0
"""The shortest time after a batch, or after the last look, until the log is asked."""


class Completion:
    """The completion of one run of a view. Belongs to whose turn it is: a batch, or the runner's watch."""

    def __init__(self, prepared: Prepared, services: Services, view_time: ViewTime) -> None:
        self._prepared = prepared
        self._services = services
        self._time = view_time
        self._not_before = 0.0

    @property
    def is_due(self) -> bool:
        """Whether rows may have become complete, and no batch is about to say so.

        Any thread may ask, and it costs nothing.
        """
        clock, tick_ms = self._services.clock, self._time.due_ms
        if tick_ms is not None and tick_ms <= clock.now_ms():
            return False
        return self._time.is_end_due and clock.monotonic() >= self._not_before

    def rest(self) -> None:
        """After a batch: the next one may follow at once, and says the same."""
        self._not_before = self._services.clock.monotonic() + BETWEEN_S

    def later(self, last: Result) -> Result | None:
        """The last result with a later ``complete``.

        None if no further rows are complete, or if inputs have records that are not read yet.
        """
        self.rest()
        now_ms = self._services.attention.now_ms()
        ends = self._ends()
        if not last.ends or ends is None or not _has_read(last, ends):
            return None
        stretch, planned = Stretch(last.inputs, [ends]), When(now_ms, now_ms)
        watermark = self._time.plan(stretch, planned)
        self._time.take({}, stretch, planned)
        moved = msgspec.structs.replace(last, watermark=watermark)
        complete = self._time.complete(moved, watermark, last.opens.get(PUBLISH, ()))
        if complete is None or complete < last.ends[0]:
            return None
        return msgspec.structs.replace(
            last,
            reached=watermark,
            complete=complete,
            heard=self._time.heard,
            ends=self._time.ends(last.ends, (), complete),
            at_ms=self._services.clock.now_ms(),
        )

    def _ends(self) -> Positions | None:
        """Where the inputs end now; None if the log does not say."""
        graph, topics = self._services.graph, self._services.topics
        with contextlib.suppress(MachineError):
            streams = graph.inputs(self._prepared.view).values()
            return topics.ends({name for stream in streams for name in topics.of(stream, graph)})
        return None


def _has_read(last: Result, ends: Positions) -> bool:
    """Whether a view has read all that there is."""
    reached = {topic: offsets for topic, offsets in last.inputs.items() if topic != TICKS}
    return all(
        ends.get(topic, {}).get(partition, 0) == reached.get(topic, {}).get(partition, 0)
        for positions in (reached, ends)
        for topic, offsets in positions.items()
        for partition in offsets
    )
