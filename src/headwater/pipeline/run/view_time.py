"""View time: the watermark of one run, what operators may assume, and when a time-out is due."""

from collections.abc import Iterable, Mapping

from headwater.clock import Clock
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.time import watermark as time
from headwater.pipeline.time.attention import Attention, When
from headwater.pipeline.time.input_times import InputTimes, Stretch
from headwater.pipeline.time.open_ends import open_ends
from headwater.result import Heard, Result

__all__ = ["ViewTime"]


class ViewTime:
    """The time of one micro-batch view. Belongs to the query's thread; any thread may ask for ``due_ms``."""

    def __init__(
        self,
        prepared: Prepared,
        last: Result,
        clock: Clock,
        attention: Attention,
        decide: time.Watermark = time.watermark,
    ) -> None:
        self._prepared = prepared
        self._clock = clock
        self._attention = attention
        heard = time.resume(last.heard, last.at_ms, attention.now_ms())
        reached = max((at for at in (last.watermark, last.reached) if at is not None), default=time.NEVER)
        self.inputs = InputTimes(prepared.inputs, heard, reached, decide)
        self._dues: tuple[int | None, int | None] = None, None
        """The next time-out by the clock, and the next one by the driver's attention."""
        self._end_due_ms: int | None = None
        """When further rows will be complete, by the driver's attention."""
        self.expect(last)

    @property
    def heard(self) -> dict[str, Heard]:
        return self.inputs.known

    @property
    def due_ms(self) -> int | None:
        """When a time-out falls due and the view needs a tick."""
        by_clock, by_attention = self._dues
        if by_attention is not None:
            by_attention += self._clock.now_ms() - self._attention.now_ms()
        return min((due for due in (by_clock, by_attention) if due is not None), default=None)

    @property
    def is_end_due(self) -> bool:
        """Whether further rows are complete by now, if nothing has come; any thread may ask."""
        due_ms = self._end_due_ms
        return due_ms is not None and self._attention.now_ms() >= due_ms

    def plan(self, stretch: Stretch, planned: When) -> int:
        """The watermark of a batch, before it runs."""
        return self.inputs.plan(stretch, planned)

    def take(self, times: Mapping[str, int], stretch: Stretch, planned: When) -> None:
        """After a batch: the greatest time of each partition in it."""
        self.inputs.take(times, stretch, planned)

    def note_silence(self) -> None:
        """Between two batches: nothing is unread, and all inputs were silent until now."""
        now_ms = self._attention.look()
        for place in list(self.inputs.known):
            self.inputs.silence(place, now_ms)

    def expect(self, last: Result) -> None:
        """After a result: works out when the next time-outs of operators are due, and the next end."""
        by_clock: list[int] = []
        by_attention: list[int | None] = []
        for name, opens in last.opens.items():
            held_us = sum(self._prepared.holds.get(name, {}).values())
            for open_us in (time_us for time_us in opens if time_us is not None):
                if self._prepared.timed[name] == "watermark":
                    by_attention.append(self.inputs.due_ms(open_us + held_us))
                else:
                    by_clock.append(open_us // 1000 + 1)
        dues = (due for due in by_attention if due is not None)
        self._dues = min(by_clock, default=None), min(dues, default=None)
        held_us = sum(self._prepared.holds.get(PUBLISH, {}).values())
        self._end_due_ms = self.inputs.due_ms(last.ends[0] + held_us) if last.ends else None

    def input_watermarks(self, last: Result | None) -> dict[str, int]:
        """For each operator downstream of one that delays rows: the watermark that it may assume.

        It is the watermark of the batch, or just before the first row that is held, less how much older than
        the watermark the rows may be that the other emits.
        """
        opens, watermark = (last.opens, last.watermark) if last is not None else ({}, None)
        return {
            name: time.output_watermark(
                watermark, [open_us for other in holds for open_us in opens.get(other, ())]
            )
            - sum(holds.values())
            for name, holds in self._prepared.holds.items()
        }

    def complete(self, last: Result, watermark: int, waiting: Iterable[int | None]) -> int | None:
        """Up to when the view's rows are complete after a batch, by its own watermark.

        Readers also take into account what the views among its inputs say (``follow/follower.py``).
        ``waiting``: the earliest row that each shard of the publication still holds. A shard without rows in
        the batch has not published those that are due by now: they go out with the next tick.
        """
        if self._prepared.inputs:
            return time.output_watermark(self.input_watermarks(last).get(PUBLISH, watermark), waiting)
        return time.NEVER if self._prepared.views and self._prepared.open_ended else None

    def ends(self, before: Iterable[int], seen: Iterable[int], complete: int | None) -> tuple[int, ...]:
        """The times after ``complete`` at which published rows become complete.

        ``before`` are those after the last result, ``seen`` those of the batch. Rows without windows are
        complete once the watermark has passed the newest event.
        """
        if complete is None or not self._prepared.inputs:
            return ()
        if self._prepared.dated:
            return open_ends([*before, *seen], complete)
        newest = (entry.time_us for entry in self.heard.values() if entry.time_us != time.NEVER)
        return open_ends(newest, complete)
